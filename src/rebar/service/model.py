"""A model as its callers see it, and together with the engine that computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from rebar.errors import InputError
from rebar.graph.models.image_config import ConvNetConfig
from rebar.service.engine import InferenceEngine
from rebar.service.interfaces import ChatRenderer, TextTokenizer
from rebar.service.messages import EngineLimits


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its callers see it. `aliases`: other names it answers to. source: where it came
    from, as the operator said it. classifier: of a model that takes images, not text.
    """

    name: str
    tokenizer: TextTokenizer
    template: ChatRenderer | None
    limits: EngineLimits
    created: int = 0
    aliases: tuple[str, ...] = ()
    source: str = ""
    classifier: ConvNetConfig | None = None


class NoText:
    """Stands where a tokenizer would, of a model without text. The router lets no text through to
    it; whoever comes another way is told.
    """

    vocab_size = 0
    end_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Refuses."""
        self._refuse()

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Refuses."""
        self._refuse()

    def token_bytes(self, token: int, /) -> bytes:
        """Refuses."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InputError("This model takes images. POST /v1/classify.", code="wrong_model_kind")


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter as clients see it. source: the folder it was taken from. created: seconds since
    1970.
    """

    name: str
    digest: str
    source: str
    created: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory: what callers see, and the engine that computes it (not started)."""

    served: ServedModel
    engine: InferenceEngine
