"""Pools: every byte belongs to a named pool with a budget, and each pool can say to the byte what
it holds.

The law: a pool takes its whole budget from the system once, as one mapping (pages cost memory only
when first touched), and cuts aligned blocks from it, first fit, neighbours joined again on free.
The mapping is anonymous, or of a SharedMemory whose contents outlive this process. Nothing on the
token path allocates.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rebar.errors import MemoryBudgetError, ShapeError
from rebar.hal.huge_pages import reserve
from rebar.hal.shared_memory import SharedMapping, SharedMemory

ALIGNMENT = 256  # a multiple of every vector width and of CUDA's allocation alignment


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Bytes of one pool. fragmentation: the share of the free bytes that is not in the largest free
    block.
    """

    name: str
    budget: int
    used: int
    free: int
    largest_block: int
    fragmentation: float
    peak: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """An aligned piece of a pool. `what` says whose it is. fresh: nobody had any of it before, so
    that it is zero, and no page of it costs memory yet.
    """

    pool: Pool
    offset: int
    nbytes: int
    what: str
    fresh: bool = False

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.pool.address + self.offset

    def bytes(self) -> NDArray[np.uint8]:
        """All bytes, writable."""
        return self.pool.memory[self.offset : self.offset + self.nbytes]

    def array(self, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """The block's first bytes as an array; ShapeError when they do not suffice."""
        kind = np.dtype(dtype)
        needed = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        if needed > self.nbytes:
            raise ShapeError(
                f"{self.what}: {shape} of {kind} needs {needed:,} bytes, block has {self.nbytes:,}"
            )
        return self.bytes()[:needed].view(kind).reshape(shape)


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """nbytes rounded up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


class Pool:
    """A budget of bytes from which blocks are cut.

    Errors: MemoryBudgetError with needed and available bytes, naming the largest free block when
    only fragmentation is in the way.
    shared: the pool's bytes are the first of this memory, and hold what they held.
    """

    def __init__(
        self,
        name: str,
        budget: int,
        alignment: int = ALIGNMENT,
        *,
        shared: SharedMemory | None = None,
    ) -> None:
        if budget < 0:
            raise MemoryBudgetError(
                f"pool {name}: a budget of {budget} bytes", needed=0, available=0
            )
        self.name = name
        self.budget = aligned(budget, alignment)
        self.alignment = alignment
        self._mapping: SharedMapping | None = None
        self.memory: NDArray[np.uint8] = self._reserve(max(self.budget, 1), shared)
        self.address: int = self.memory.ctypes.data
        self._gaps: list[tuple[int, int]] = (
            [(0, self.budget)] if self.budget else []
        )  # (offset, nbytes), by offset
        self._blocks: dict[int, Block] = {}
        self._given = 0  # what lies behind was in no block yet
        self._peak = 0

    def _reserve(self, nbytes: int, shared: SharedMemory | None) -> NDArray[np.uint8]:
        try:
            if shared is None:
                return reserve(nbytes)
            self._mapping = shared.map(nbytes)
            return self._mapping.bytes()
        except (OSError, OverflowError, ValueError) as error:
            message = (
                f"pool {self.name}: the system refuses {nbytes:,} bytes ({error}). Give a "
                "smaller --memory."
            )
            raise MemoryBudgetError(message, needed=nbytes, available=0) from error

    def allocate(self, nbytes: int, what: str) -> Block:
        """A block of at least `nbytes` bytes, aligned; contents undefined unless it is fresh."""
        size = aligned(max(nbytes, 1), self.alignment)
        for i, (offset, gap) in enumerate(self._gaps):
            if gap >= size:
                self._gaps[i : i + 1] = [(offset + size, gap - size)] if gap > size else []
                fresh = self._mapping is None and offset >= self._given
                self._given = max(self._given, offset + size)
                block = Block(self, offset, size, what, fresh)
                self._blocks[offset] = block
                self._peak = max(self._peak, self.stats().used)
                return block
        raise self._full(size, what)

    def reach(self, end: int) -> None:
        """Says that the bytes up to offset `end` are about to be used: shared memory has large
        pages only where they are asked for in time; other memory has them already.
        """
        if self._mapping is not None:
            self._mapping.reach(end)

    def _full(self, size: int, what: str) -> MemoryBudgetError:
        stats = self.stats()
        cause = (
            f"its largest free block is {stats.largest_block:,}"
            if stats.free >= size
            else f"{stats.free:,} are free"
        )
        return MemoryBudgetError(
            f"pool {self.name}: {what} needs {size:,} bytes, {cause} of "
            f"{self.budget:,}. Give it more with --memory.",
            needed=size,
            available=stats.largest_block,
        )

    def free(self, block: Block) -> None:
        """Gives a block back. Freeing twice, or a block of another pool, is an error."""
        if self._blocks.get(block.offset) is not block:
            raise MemoryBudgetError(
                f"pool {self.name}: {block.what} is not allocated here", needed=0, available=0
            )
        del self._blocks[block.offset]
        insort(self._gaps, (block.offset, block.nbytes))
        joined: list[tuple[int, int]] = []
        for offset, nbytes in self._gaps:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
            else:
                joined.append((offset, nbytes))
        self._gaps = joined

    def close(self) -> None:
        """Lets go of all blocks: they and the pool know each other, and memory that waits for a
        garbage collector waits long. It goes when the last view of it has.
        """
        self._blocks.clear()
        self._gaps = []

    def stats(self) -> PoolStats:
        """What the pool holds now."""
        free = sum(nbytes for _, nbytes in self._gaps)
        largest = max((nbytes for _, nbytes in self._gaps), default=0)
        return PoolStats(
            name=self.name,
            budget=self.budget,
            used=self.budget - free,
            free=free,
            largest_block=largest,
            fragmentation=1.0 - largest / free if free else 0.0,
            peak=self._peak,
        )

    def blocks(self) -> list[Block]:
        """Blocks in use, by offset."""
        return [self._blocks[offset] for offset in sorted(self._blocks)]
