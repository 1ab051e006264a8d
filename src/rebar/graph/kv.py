"""PagedKVCache: keys and values of all layers in blocks of 16 positions, allocated once, handed out
by number.

Block b holds the same 16 positions in every layer and is one piece of memory, layer after layer: a
short context touches few pages, and a block can be copied or hashed as it lies. Who holds a block,
and what is known to lie in it, is the ledger's business (blocks.py). Where blocks are kept from one
engine to the next, a table of what they hold lies before them (kept.py).
"""

from __future__ import annotations

from rebar import _native
from rebar.graph.blocks import BlockLedger
from rebar.graph.kept import BlockTable, KeptLayout
from rebar.hal import KVFormat, KVStorage, Pool


def block_bytes(layers: int, kv_heads: int, head_dim: int, kind: KVFormat = KVFormat.F16) -> int:
    """Bytes of one block over all layers: 16 positions of keys and values."""
    return layers * int(_native.kv_bytes(int(kind), kv_heads, head_dim))


class PagedKVCache(BlockLedger):
    """`blocks` blocks for `layers` layers out of `pool`; storage[i] is layer i's part of each.
    good_for: given (kept.good_for), the pool is kept memory, and blocks in it that were computed
    for the same are taken in.
    """

    def __init__(
        self,
        pool: Pool,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        kind: KVFormat = KVFormat.F16,
        good_for: bytes | None = None,
    ) -> None:
        self.block_bytes = block_bytes(layers, kv_heads, head_dim, kind)
        table = None
        if good_for is not None:
            layout = KeptLayout(int(kind), layers, self.block_bytes, blocks, good_for)
            nbytes = layout.table_bytes
            table = BlockTable(pool.allocate(nbytes, "block table").bytes()[:nbytes], layout)
        super().__init__(blocks, table)
        nbytes = blocks * self.block_bytes
        block = pool.allocate(nbytes, "keys and values")
        self._pool, self._offset = pool, block.offset
        parts = block.bytes()[:nbytes].reshape(blocks, layers, -1)
        self.storage = tuple(
            KVStorage(parts[:, i], kv_heads, head_dim, kind) for i in range(layers)
        )

    def _begin(self, block: int) -> None:
        self._pool.reach(self._offset + (block + 1) * self.block_bytes)
