"""A model as its callers see it, and together with the engine that computes it."""

from __future__ import annotations

from dataclasses import dataclass

from rebar.service.engine import InferenceEngine
from rebar.service.interfaces import ChatRenderer, TextTokenizer
from rebar.service.messages import EngineLimits


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its callers see it. `aliases`: other names it answers to. source: where it came
    from, as the operator said it.
    """

    name: str
    tokenizer: TextTokenizer
    template: ChatRenderer | None
    limits: EngineLimits
    created: int = 0
    aliases: tuple[str, ...] = ()
    source: str = ""


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
