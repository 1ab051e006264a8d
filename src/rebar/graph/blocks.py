"""BlockLedger: who holds which KV block, and which blocks have known content. Numbers only.

A block is held by one sequence or by several that begin with the same ids, or it is free. A free
block whose content is known by its digest is kept until its memory is needed, oldest first, and
within what was given back together the end of a sequence before its beginning: a beginning is worth
more to others. `held_back`: of the blocks never used so many are taken last of all, for the
machine has no memory left to put behind them. Content becomes known when it is whole (`publish`)
and is never written again. A table (kept.py) makes it known to the next process too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from rebar.errors import KVCacheFullError, MemoryBudgetError
from rebar.hal import BLOCK_POSITIONS


class KnownBlocks(Protocol):
    """Where it is written what blocks hold (kept.BlockTable)."""

    def standing(self) -> list[tuple[int, bytes]]:
        """(block, digest) of what was written and not cleared, used longest ago first."""

    def write(self, block: int, digest: bytes, /) -> None:
        """The block holds this."""

    def clear(self, block: int, /) -> None:
        """The block may hold anything."""

    def use(self, blocks: Sequence[int], /) -> None:
        """They were used, in this order."""


class BlockLedger:
    """`total_blocks` block numbers. digests are bytes that stand for everything that decided a
    block's content: model, tenant, and every id up to the block's end. table: what blocks hold from
    before, and where it is written what they hold.
    """

    block_size = BLOCK_POSITIONS

    def __init__(self, total_blocks: int, table: KnownBlocks | None = None) -> None:
        self.total_blocks = total_blocks
        self.evictions = 0
        self._table = table
        self._holders = [0] * total_blocks
        self._digest: list[bytes | None] = [None] * total_blocks
        self._block_of: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.held_back = 0
        self._empty: list[int] = []  # used before, and nothing of it known
        # Popped from the end: low numbers first, so that few pages are touched.
        self._fresh = list(range(total_blocks - 1, -1, -1))
        if table is not None:
            self._adopt(table)
        self.adopted = len(self._kept)

    def _adopt(self, table: KnownBlocks) -> None:
        """Takes in what is known from before. The other blocks below the last of those were most
        likely used as well.
        """
        for block, digest in table.standing():
            if digest in self._block_of:
                table.clear(block)
                continue
            self._digest[block] = digest
            self._block_of[digest] = block
            self._kept[block] = None
        used = max(self._kept, default=-1) + 1
        del self._fresh[self.total_blocks - used :]
        self._empty = [b for b in range(used - 1, -1, -1) if b not in self._kept]

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, the kept ones among them."""
        return len(self._empty) + len(self._fresh) + len(self._kept)

    @property
    def fresh_blocks(self) -> int:
        """Free blocks that were never used: the system may not have given their memory yet."""
        return len(self._fresh)

    @property
    def usable_blocks(self) -> int:
        """Free blocks without the fresh ones that are to be held back."""
        return self.free_blocks - min(self.held_back, len(self._fresh))

    @property
    def kept_blocks(self) -> int:
        """Free blocks whose content is known and may be shared again."""
        return len(self._kept)

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-positions // self.block_size)

    def allocate(self, count: int, /) -> list[int]:
        """Takes `count` blocks or none: raises KVCacheFullError with the numbers."""
        if count > self.free_blocks:
            raise KVCacheFullError(
                f"the KV cache needs {count} blocks, {self.free_blocks} of "
                f"{self.total_blocks} are free. Wait, or give it more "
                "with --kv-tokens or --memory.",
                needed=count,
                available=self.free_blocks,
            )
        taken = [self._take() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        return taken

    def share(self, digests: Sequence[bytes], /) -> list[int]:
        """Holds the blocks of as many digests, from the first on, as are known."""
        taken = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            if not self._holders[block]:
                del self._kept[block]
            self._holders[block] += 1
            taken.append(block)
        return taken

    def publish(self, block: int, digest: bytes, /) -> None:
        """Says what a held block, now whole, holds. Of two equal ones the first is known."""
        if self._digest[block] is None and digest not in self._block_of:
            self._digest[block] = digest
            self._block_of[digest] = block
            if self._table is not None:
                self._table.write(block, digest)

    def held_alone(self, blocks: Iterable[int], /) -> int:
        """How many of `blocks` one holder would set free by giving them back."""
        return sum(self._holders[block] == 1 for block in blocks)

    def release(self, blocks: Iterable[int], /) -> None:
        """Gives blocks back; giving one back that nobody holds is an error and changes nothing."""
        given = list(blocks)
        if len(set(given)) != len(given) or not all(
            0 <= b < self.total_blocks and self._holders[b] for b in given
        ):
            raise MemoryBudgetError(f"blocks {given[:8]} are not all in use", needed=0, available=0)
        kept = []
        for block in reversed(given):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._digest[block] is None:
                self._empty.append(block)
            else:
                self._kept[block] = None
                kept.append(block)
        if self._table is not None and kept:
            self._table.use(kept)

    def check_integrity(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Asserts that each block is held as often as `held` (the blocks of every holder) says, or
        is free once, and that every digest leads to its block.
        """
        holders = [0] * self.total_blocks
        for blocks in held:
            assert len(set(blocks)) == len(blocks), "a sequence holds a block twice"
            for block in blocks:
                holders[block] += 1
        assert holders == self._holders, "a block is lost or has a holder too many"
        free = [*self._empty, *self._fresh, *self._kept]
        assert len(set(free)) == len(free), "a block is free twice"
        assert {b for b, n in enumerate(holders) if not n} == set(free), "free and held"
        known = {digest: b for b, digest in enumerate(self._digest) if digest is not None}
        assert known == self._block_of, "a digest leads to another block"
        if self._table is not None:
            written = {digest: b for b, digest in self._table.standing()}
            assert written == known, "what is written for the next engine is not what is known"
        assert all(self._digest[b] is not None for b in self._kept), "kept without content"
        blank = [*self._empty, *self._fresh]
        assert all(self._digest[b] is None for b in blank), "empty with content"

    def _take(self) -> int:
        if self._empty:
            return self._empty.pop()
        if len(self._fresh) > self.held_back or not self._kept:
            block = self._fresh.pop()
            self._begin(block)
            return block
        return self._evict()

    def _begin(self, block: int) -> None:
        """The memory of a block is about to be used for the first time."""

    def _evict(self) -> int:
        block, _ = self._kept.popitem(last=False)
        digest, self._digest[block] = self._digest[block], None
        if digest is not None:
            del self._block_of[digest]
            if self._table is not None:
                self._table.clear(block)
        self.evictions += 1
        return block
