"""PagedKVCache: keys and values of all layers in blocks of 16 positions, allocated once, handed out
by number.

Block b holds the same 16 positions in every layer and is one piece of memory, layer after layer: a
short context touches few pages, and a block can be copied or hashed as it lies. A block belongs to
one owner until it is released.
"""

from __future__ import annotations

from collections.abc import Iterable

from rebar import _native
from rebar.errors import KVCacheFullError, MemoryBudgetError
from rebar.hal import BLOCK_POSITIONS, KVFormat, KVStorage, Pool


def block_bytes(layers: int, kv_heads: int, head_dim: int, kind: KVFormat = KVFormat.F16) -> int:
    """Bytes of one block over all layers: 16 positions of keys and values."""
    return layers * int(_native.kv_bytes(int(kind), kv_heads, head_dim))


class PagedKVCache:
    """`blocks` blocks for `layers` layers out of `pool`; storage[i] is layer i's part of each."""

    block_size = BLOCK_POSITIONS

    def __init__(
        self,
        pool: Pool,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        kind: KVFormat = KVFormat.F16,
    ) -> None:
        self.total_blocks = blocks
        self.block_bytes = block_bytes(layers, kv_heads, head_dim, kind)
        nbytes = blocks * self.block_bytes
        memory = pool.allocate(nbytes, "keys and values").bytes()[:nbytes]
        parts = memory.reshape(blocks, layers, -1)
        self.storage = tuple(
            KVStorage(parts[:, i], kv_heads, head_dim, kind) for i in range(layers)
        )
        self._free = list(
            range(blocks - 1, -1, -1)
        )  # popped from the end: low numbers first, so few pages are touched
        self._used = bytearray(blocks)

    @property
    def free_blocks(self) -> int:
        """Blocks nobody owns."""
        return len(self._free)

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-positions // BLOCK_POSITIONS)

    def allocate(self, n: int) -> list[int]:
        """n block numbers, all or none; KVCacheFullError with the numbers when there are fewer."""
        if n > len(self._free):
            raise KVCacheFullError(
                f"the KV cache needs {n} blocks, {len(self._free)} of "
                f"{self.total_blocks} are free. Wait, or give it more "
                "with --kv-tokens or --memory.",
                needed=n,
                available=len(self._free),
            )
        taken = [self._free.pop() for _ in range(n)]
        for block in taken:
            self._used[block] = 1
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Gives blocks back; giving one back that nobody owns is an error and changes nothing."""
        given = list(blocks)
        if len(set(given)) != len(given) or not all(
            0 <= b < self.total_blocks and self._used[b] for b in given
        ):
            raise MemoryBudgetError(f"blocks {given[:8]} are not all in use", needed=0, available=0)
        for block in reversed(given):
            self._used[block] = 0
            self._free.append(block)
