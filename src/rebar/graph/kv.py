"""PagedKVCache: keys and values of all layers in blocks of 16 positions, allocated once, handed out
by number.

Block b holds the same 16 positions in every layer and is one piece of memory, layer after layer: a
short context touches few pages, and a block can be copied or hashed as it lies. Who holds a block,
and what is known to lie in it, is the ledger's business (blocks.py).
"""

from __future__ import annotations

from rebar import _native
from rebar.graph.blocks import BlockLedger
from rebar.hal import KVFormat, KVStorage, Pool


def block_bytes(layers: int, kv_heads: int, head_dim: int, kind: KVFormat = KVFormat.F16) -> int:
    """Bytes of one block over all layers: 16 positions of keys and values."""
    return layers * int(_native.kv_bytes(int(kind), kv_heads, head_dim))


class PagedKVCache(BlockLedger):
    """`blocks` blocks for `layers` layers out of `pool`; storage[i] is layer i's part of each."""

    def __init__(
        self,
        pool: Pool,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        kind: KVFormat = KVFormat.F16,
    ) -> None:
        super().__init__(blocks)
        self.block_bytes = block_bytes(layers, kv_heads, head_dim, kind)
        nbytes = blocks * self.block_bytes
        memory = pool.allocate(nbytes, "keys and values").bytes()[:nbytes]
        parts = memory.reshape(blocks, layers, -1)
        self.storage = tuple(
            KVStorage(parts[:, i], kv_heads, head_dim, kind) for i in range(layers)
        )
