"""Pools: budgets, alignment, exact accounting, errors that carry both numbers."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.errors import MemoryBudgetError, ShapeError
from rebar.hal import Block, Pool


def test_accounting_is_exact_to_the_byte() -> None:
    pool = Pool("test", 4096)
    a, b, c = (pool.allocate(n, "x") for n in (1, 256, 257))
    assert [a.nbytes, b.nbytes, c.nbytes] == [256, 256, 512]
    assert pool.stats().used == 1024
    pool.free(b)
    stats = pool.stats()
    assert (stats.used, stats.free, stats.largest_block, stats.peak) == (768, 3328, 3072, 1024)
    assert stats.fragmentation == 1 - 3072 / 3328


def test_a_block_is_fresh_until_somebody_had_it() -> None:
    """Fresh memory is zero and costs nothing yet: who needs zeros need not write them."""
    pool = Pool("p", 1536)
    first = pool.allocate(512, "first")
    assert first.fresh
    first.bytes()[:] = 7
    pool.free(first)
    again, behind = pool.allocate(256, "again"), pool.allocate(512, "behind")
    assert not again.fresh
    assert not behind.fresh  # its first half was the second of the first block
    assert behind.bytes()[:256].all()
    last = pool.allocate(256, "last")
    assert last.fresh
    assert not last.bytes().any()


def test_blocks_are_aligned_and_writable() -> None:
    pool = Pool("test", 1 << 16)
    block = pool.allocate(100, "x")
    assert block.address % 256 == 0
    array = block.array(np.float32, (5, 5))
    array[:] = 7
    assert (block.bytes()[:100].view(np.float32) == 7).all()
    with pytest.raises(ShapeError, match=r"needs 1,028 bytes, block has 256"):
        block.array(np.float32, (257,))


def test_a_full_pool_says_needed_and_available() -> None:
    pool = Pool("kv", 1024)
    kept = [pool.allocate(256, "x") for _ in range(4)]
    pool.free(kept[0])
    pool.free(kept[2])
    with pytest.raises(MemoryBudgetError, match=r"largest free block is 256 of 1,024") as caught:
        pool.allocate(512, "keys")
    assert (caught.value.needed, caught.value.available) == (512, 256)
    with pytest.raises(MemoryBudgetError, match=r"512 are free"):
        pool.allocate(1024, "keys")


def test_freeing_twice_or_elsewhere_is_refused() -> None:
    pool, other = Pool("a", 1024), Pool("b", 1024)
    block = pool.allocate(10, "x")
    with pytest.raises(MemoryBudgetError, match="not allocated here"):
        other.free(block)
    pool.free(block)
    with pytest.raises(MemoryBudgetError, match="not allocated here"):
        pool.free(block)
    assert pool.stats().used == 0


def test_what_the_system_refuses_is_a_budget_error() -> None:
    with pytest.raises(MemoryBudgetError, match="the system refuses"):
        Pool("huge", 1 << 60)
    with pytest.raises(MemoryBudgetError, match="a budget of -1 bytes"):
        Pool("negative", -1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=60))
@settings(deadline=None)
def test_blocks_never_overlap_and_nothing_is_lost(moves: list[tuple[bool, int]]) -> None:
    pool = Pool("test", 16384)
    held: list[Block] = []
    for take, n in moves:
        if take:
            with contextlib.suppress(MemoryBudgetError):
                held.append(pool.allocate(n, "x"))
        elif held:
            pool.free(held.pop(n % len(held)))
        spans = sorted((b.offset, b.offset + b.nbytes) for b in held)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert pool.stats().used == sum(b.nbytes for b in held)
        assert [b.offset for b in pool.blocks()] == [s for s, _ in spans]
    for block in held:
        pool.free(block)
    assert (pool.stats().largest_block, pool.stats().fragmentation) == (16384, 0.0)
