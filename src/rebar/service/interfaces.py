"""What the service needs of the layers below, as narrow as it uses it.

Tests put small fakes behind these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rebar.graph.sequence import Row, Sampled


class BlockPool(Protocol):
    """KV blocks of `block_size` positions each (rebar.graph.PagedKVCache)."""

    @property
    def block_size(self) -> int:
        """Positions in a block."""

    @property
    def total_blocks(self) -> int:
        """Blocks there are."""

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds."""

    @property
    def fresh_blocks(self) -> int:
        """Free blocks that were never used."""

    @property
    def usable_blocks(self) -> int:
        """Free blocks, without the fresh ones that are held back."""

    block_bytes: int
    """Memory of a block."""

    held_back: int
    """So many fresh blocks are to be taken last of all; set by who watches the machine."""

    evictions: int
    """Blocks whose known content was given up for memory, ever."""

    adopted: int
    """Blocks whose content was known from before, computed by another process."""

    def allocate(self, count: int, /) -> list[int]:
        """Takes `count` blocks or none: raises KVCacheFullError."""

    def share(self, digests: Sequence[bytes], /) -> list[int]:
        """Holds the blocks of as many digests, from the first on, as are known."""

    def publish(self, block: int, digest: bytes, /) -> None:
        """Says what a held block, now whole, holds."""

    def held_alone(self, blocks: Iterable[int], /) -> int:
        """How many of `blocks` would become free if one holder gave them back."""

    def release(self, blocks: list[int], /) -> None:
        """Gives blocks back."""

    def check_integrity(self, held: Iterable[Sequence[int]], /) -> None:
        """Asserts that `held` are the blocks of all holders."""


class StepRunner(Protocol):
    """Computes slices of sequences (rebar.graph.Runner)."""

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and answer together."""

    @property
    def max_rows(self) -> int:
        """Most positions computed in one step."""

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""

    @property
    def kv(self) -> BlockPool:
        """Where keys and values of sequences are kept."""

    @property
    def free_bytes(self) -> int:
        """Bytes of the memory budget that nothing holds now, free KV blocks included."""

    @property
    def available_bytes(self) -> int:
        """Bytes that the machine could give now, whatever was planned."""

    @property
    def node_count(self) -> int:
        """Nodes of the model's graph as it runs."""

    def step(self, rows: list[Row], /) -> list[list[Sampled]]:
        """Per row, one answer per wanted position.

        Changes no sequence; the same call again gives the same bits.
        """

    def close(self) -> None:
        """Frees everything."""


class StreamingText(Protocol):
    """Ids to text, whole characters, stop strings (rebar.dataflow.text.TextStream)."""

    @property
    def stopped(self) -> bool:
        """A stop string was met; only text before it was given out."""

    @property
    def met(self) -> str | None:
        """The stop string that was met."""

    def push(self, token: int, /) -> str:
        """Text that may be shown now."""

    def finish(self) -> str:
        """What is left at the end."""


TextOpener = Callable[[tuple[str, ...]], StreamingText]
"""Opens streaming text for one choice with these stop strings."""


class TextTokenizer(Protocol):
    """Text to ids and back (rebar.dataflow.text.Tokenizer)."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 .. vocab_size - 1."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Ids of `text`; control tokens in it are parsed only when `special`."""

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`."""

    def token_bytes(self, token: int, /) -> bytes:
        """Bytes a token stands for."""


Messages = Sequence[Mapping[str, Any]]


class ChatRenderer(Protocol):
    """Messages to ids (rebar.dataflow.text.ChatTemplate).

    Control ids come from the template only, never from a message.
    """

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt as text."""

    def encode(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The prompt as ids. Raises InputError with the template's own words."""
