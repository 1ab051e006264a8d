"""What the service needs of the layers below, as narrow as it uses it. Tests put small fakes behind
these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rebar.graph.sequence import Row, Sampled


class BlockPool(Protocol):
    """KV blocks of `block_size` positions each (rebar.graph.PagedKVCache)."""

    @property
    def block_size(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks or none: raises KVCacheFullError."""

    def release(self, blocks: list[int]) -> None:
        """Gives blocks back."""


class StepRunner(Protocol):
    """Computes slices of sequences (rebar.graph.Runner)."""

    @property
    def max_context(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def kv(self) -> BlockPool: ...
    def step(self, rows: list[Row]) -> list[list[Sampled]]:
        """Per row, one answer per wanted position. Changes no sequence; the same call again gives
        the same.
        """

    def close(self) -> None:
        """Frees everything."""


class StreamingText(Protocol):
    """Ids to text, whole characters, stop strings (rebar.dataflow.text.TextStream)."""

    @property
    def stopped(self) -> bool: ...
    def push(self, token: int, /) -> str:
        """Text that may be shown now."""

    def finish(self) -> str:
        """What is left at the end."""


TextOpener = Callable[[tuple[str, ...]], StreamingText]
"""Opens streaming text for one choice with these stop strings."""


class TextTokenizer(Protocol):
    """Text to ids and back (rebar.dataflow.text.Tokenizer)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_ids(self) -> frozenset[int]: ...
    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]: ...
    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str: ...
    def token_bytes(self, token: int, /) -> bytes: ...


class ChatRenderer(Protocol):
    """Messages to ids; control ids come from the template only (rebar.dataflow.text.ChatTemplate)."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str: ...
    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]: ...
