"""The paged cache: blocks are owned once, all or none, and what is given back can be had again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.errors import KVCacheFullError, MemoryBudgetError
from rebar.graph.kv import PagedKVCache, block_bytes
from rebar.hal import KVFormat, Pool


def cache(blocks: int) -> PagedKVCache:
    return PagedKVCache(Pool("kv", 2 * block_bytes(2, 2, 8) * blocks + 4096), 2, 2, 8, blocks)


def test_storage_is_what_the_formula_says() -> None:
    kv = cache(4)
    assert len(kv.storage) == 2
    assert sum(s.keys.nbytes + s.values.nbytes for s in kv.storage) == 4 * block_bytes(2, 2, 8)
    assert kv.storage[0].keys.shape == (4, 2, 8, 16)
    assert kv.storage[0].values.shape == (4, 2, 16, 8)
    assert [kv.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", list(KVFormat))
def test_a_block_is_one_piece_layer_after_layer(kind: KVFormat) -> None:
    """What lies in a block's bytes is all of its keys and values, of every layer, and no others."""
    nbytes = block_bytes(3, 2, 32, kind)
    kv = PagedKVCache(Pool("kv", 4 * nbytes), 3, 2, 32, 4, kind)
    assert kv.block_bytes == nbytes
    first = kv.storage[0].address
    assert [s.address - first for s in kv.storage] == [i * nbytes // 3 for i in range(3)]
    for s in kv.storage:
        assert (s.stride, s.blocks) == (nbytes, 4)
        for part in (s.keys, s.values, *((s.scales(0), s.scales(1)) if kind else ())):
            part[2] = 1
    for b in range(4):
        piece = np.concatenate([s.data[b] for s in kv.storage])
        assert piece.any() == (b == 2)


def test_a_full_cache_gives_all_or_none() -> None:
    kv = cache(4)
    first = kv.allocate(3)
    with pytest.raises(KVCacheFullError, match="needs 2 blocks, 1 of 4 are free") as caught:
        kv.allocate(2)
    assert (caught.value.needed, caught.value.available, kv.free_blocks) == (2, 1, 1)
    kv.release(first)
    assert sorted(kv.allocate(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("bad", [[0, 0], [3], [-1], [99]])
def test_giving_back_what_nobody_owns_changes_nothing(bad: list[int]) -> None:
    kv = cache(4)
    held = kv.allocate(2)
    assert held == [0, 1]
    with pytest.raises(MemoryBudgetError, match="are not all in use"):
        kv.release([1, *bad])
    assert kv.free_blocks == 2
    kv.release(held)
    assert kv.free_blocks == 4


@given(st.lists(st.integers(-4, 6), max_size=50))
@settings(deadline=None)
def test_no_block_has_two_owners(moves: list[int]) -> None:
    kv, held = cache(12), []
    for n in moves:
        if n > 0 and n <= kv.free_blocks:
            held.append(kv.allocate(n))
        elif n < 0 and held:
            kv.release(held.pop(-n % len(held)))
        owned = [b for blocks in held for b in blocks]
        assert len(set(owned)) == len(owned)
        assert kv.free_blocks == 12 - len(owned)
