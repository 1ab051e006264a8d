"""Blocks that outlive their engine: what stands in the table is true at every moment, and whatever
is torn, of another model, of another form or of another build is not there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.errors import MemoryBudgetError
from rebar.graph import (
    ModelFile,
    Row,
    Runner,
    RunnerOptions,
    SamplingParams,
    Sequence,
    load_runner,
    loader,
)
from rebar.graph import kept as kept_module
from rebar.graph.blocks import BlockLedger
from rebar.graph.kept import (
    ENTRY_BYTES,
    HEADER_BYTES,
    BlockTable,
    KeptLayout,
    KeptMemory,
    good_for,
)
from rebar.graph.weights import open_model
from rebar.hal import SharedMemory
from tests.tiny import tiny_gguf

LAYOUT = KeptLayout(kind=0, layers=2, block_bytes=4096, blocks=6, good_for=b"m" * 32)
OPTIONS = RunnerOptions(threads=1, max_rows=64, memory=64 << 20, kv_tokens=320)
WHOLE = 48  # bytes of an entry that say something: digest and check


def blank() -> np.ndarray:
    return np.zeros(LAYOUT.table_bytes, np.uint8)


def digest(i: int) -> bytes:
    return bytes([i, 255 - i] * 16)


def table(memory: np.ndarray) -> BlockTable:
    return BlockTable(memory, LAYOUT)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory.create("rebar-test-kept")
    yield made
    made.close()


def test_what_is_written_stands_in_order_of_use() -> None:
    memory = blank()
    first = table(memory)
    for block in (4, 1, 3):
        first.write(block, digest(block))
    first.use([4])
    first.clear(1)
    assert table(memory).standing() == [(3, digest(3)), (4, digest(4))]
    next_one = table(memory)
    next_one.write(0, digest(0))  # its clock goes on where the other's stood
    assert [block for block, _ in table(memory).standing()] == [3, 4, 0]


@pytest.mark.parametrize("cut", range(WHOLE + 1))
def test_an_entry_that_was_being_written_is_none(cut: int) -> None:
    """A kill at any byte of it, over an empty place, over one that was just cleared, and in the
    clearing.
    """
    done = blank()
    table(done).write(2, digest(7))
    begin = HEADER_BYTES + 2 * ENTRY_BYTES

    def torn(before: np.ndarray, after: np.ndarray) -> list[tuple[int, bytes]]:
        memory = before.copy()
        memory[begin : begin + cut] = after[begin : begin + cut]
        return table(memory).standing()

    empty = blank()
    table(empty)
    assert torn(empty, done) == ([(2, digest(7))] if cut == WHOLE else [])
    cleared = torn(done, empty)
    # nothing was overwritten yet when none of it was cleared
    assert cleared == ([(2, digest(7))] if cut == 0 else [])
    other = done.copy()
    table(other).write(2, digest(9))  # never done over a standing entry; it could not lie either
    assert torn(done, other) in ([], [(2, digest(7))], [(2, digest(9))])


@given(st.integers(0, WHOLE * 8 - 1))
@settings(deadline=None)
def test_an_entry_with_a_wrong_bit_is_none(bit: int) -> None:
    memory = blank()
    table(memory).write(2, digest(7))
    memory[HEADER_BYTES + 2 * ENTRY_BYTES + bit // 8] ^= 1 << bit % 8
    assert table(memory).standing() == []


def test_an_entry_says_for_which_block_it_is() -> None:
    memory = blank()
    table(memory).write(2, digest(7))
    at = [HEADER_BYTES + block * ENTRY_BYTES for block in (2, 3)]
    memory[at[1] : at[1] + ENTRY_BYTES] = memory[at[0] : at[0] + ENTRY_BYTES]
    assert table(memory).standing() == [(2, digest(7))]


OTHERS = (
    {"kind": 1}, {"layers": 3}, {"block_bytes": 4097}, {"blocks": 5}, {"good_for": b"n" * 32}
)  # fmt: skip


@pytest.mark.parametrize("change", OTHERS)
def test_another_layout_begins_empty(change: dict[str, object]) -> None:
    """And whoever comes back to the first one finds nothing from before."""
    memory = blank()
    table(memory).write(2, digest(7))
    other = replace(LAYOUT, **change)  # type: ignore[arg-type]
    assert BlockTable(memory[: other.table_bytes], other).standing() == []
    assert table(memory).standing() == []


@given(st.integers(0, HEADER_BYTES * 8 - 1))
@settings(deadline=None)
def test_a_header_with_a_wrong_bit_begins_empty(bit: int) -> None:
    memory = blank()
    table(memory).write(2, digest(7))
    memory[bit // 8] ^= 1 << bit % 8
    assert table(memory).standing() == []


def test_a_header_is_read_back_or_not_at_all(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KeptLayout.read(memory) is None
    view = memory.map(LAYOUT.table_bytes).bytes()
    assert KeptLayout.read(memory) is None
    BlockTable(view, LAYOUT)
    assert KeptLayout.read(memory) == LAYOUT
    monkeypatch.setattr(kept_module, "LAYOUT_VERSION", 2)
    assert KeptLayout.read(memory) is None
    monkeypatch.undo()
    view[100] ^= 1
    assert KeptLayout.read(memory) is None


def test_another_build_of_the_program_computes_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade under a running server: the next engine is another program."""
    mine = good_for(b"model")
    assert mine == good_for(b"model") != good_for(b"mobel")
    other = tmp_path / "_native.so"
    other.write_bytes(b"x")
    monkeypatch.setattr(_native, "__file__", str(other))
    assert good_for(b"model") != mine


@given(st.lists(st.tuples(st.sampled_from("acprs"), st.integers(0, 1000)), max_size=60))
@settings(deadline=None, max_examples=300)
def test_at_every_moment_the_table_says_what_is_known(moves: list[tuple[str, int]]) -> None:
    """Allocated, published, shared, given back, evicted: a process killed between any two of these
    leaves exactly the blocks whose content is known, in the order in which they would have gone.
    """
    memory = blank()
    ledger = BlockLedger(LAYOUT.blocks, table(memory))
    held: list[list[int]] = []
    for move, n in moves:
        if move == "a" and ledger.free_blocks:
            held.append(ledger.allocate(1 + n % ledger.free_blocks))
        elif move == "p" and held:
            blocks = held[n % len(held)]
            ledger.publish(blocks[n % len(blocks)], digest(n % 9))
        elif move == "s":
            taken = ledger.share([digest((n + i) % 9) for i in range(3)])
            held += [taken] if taken else []
        elif move == "r" and held:
            ledger.release(held.pop(n % len(held)))
        ledger.check_integrity(held)
        heir = BlockLedger(LAYOUT.blocks, table(memory.copy()))
        heir.check_integrity()
        assert heir._block_of == ledger._block_of
        kept = [block for block in heir._kept if block in ledger._kept]
        assert kept == list(ledger._kept)
        assert (heir.adopted, heir.free_blocks) == (len(ledger._block_of), LAYOUT.blocks)


def test_blocks_taken_in_are_shared_evicted_and_given_up_like_others() -> None:
    memory = blank()
    ledger = BlockLedger(LAYOUT.blocks, table(memory))
    a = ledger.allocate(5)
    for block in a[:4]:
        ledger.publish(block, digest(block))
    ledger.release(a)
    heir = BlockLedger(LAYOUT.blocks, table(memory))
    assert (heir.adopted, heir.kept_blocks, heir.fresh_blocks) == (4, 4, 2)
    assert heir.share([digest(0), digest(1), digest(5)]) == [0, 1]
    assert heir.allocate(2) == [4, 5], "blocks that hold nothing go first"
    assert heir.allocate(1) == [3], "then the end of what was kept, before its beginning"
    assert heir.evictions == 1
    heir.check_integrity([[0, 1], [4, 5], [3]])
    assert [b for b, _ in table(memory).standing()] == [2, 1, 0]
    heir.publish(3, digest(8))
    heir.release([3])
    heir.release([0, 1])
    assert [b for b, _ in table(memory).standing()] == [2, 3, 1, 0]


def test_of_two_blocks_with_one_content_one_is_taken_in() -> None:
    """No engine writes that; a table is read as if anybody could have."""
    memory = blank()
    both = table(memory)
    both.write(1, digest(3))
    both.write(4, digest(3))
    heir = BlockLedger(LAYOUT.blocks, table(memory))
    assert heir.adopted == 1
    heir.check_integrity()


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return open_model(tiny_gguf(tmp_path, "gemma3", "Q8_0"))


def sequence(runner: Runner, ids: list[int]) -> Sequence:
    made = Sequence.of(ids, runner.max_context, SamplingParams(temperature=0.0))
    made.blocks = runner.kv.allocate(runner.kv.blocks_for(len(ids)))
    return made


def last_logits(runner: Runner, one: Sequence, first: int = 0) -> bytes:
    end = one.total
    runner.step([Row(one, first, end - first, range(end - 1, end))])
    return runner.logits(1).tobytes()


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_blocks_of_the_runner_before_give_the_same_bits(
    model: ModelFile, memory: SharedMemory, kv: str
) -> None:
    ids = [(7 * i) % 300 + 40 for i in range(60)]
    options = replace(OPTIONS, kv=kv)  # type: ignore[arg-type]
    kept = KeptMemory(memory, b"model")
    alone = load_runner(model, options)
    expected = last_logits(alone, sequence(alone, ids))
    before = load_runner(model, options, kept=kept)
    one = sequence(before, ids)
    assert last_logits(before, one) == expected
    for i, block in enumerate(one.blocks[:3]):
        before.kv.publish(block, digest(i))
    before.close()
    del before
    heir = load_runner(model, options, kept=kept)
    assert heir.kv.adopted == 3
    two = sequence(heir, ids)
    own, two.blocks[:3] = two.blocks[:3], heir.kv.share([digest(i) for i in range(4)])
    heir.kv.release(own)
    assert last_logits(heir, two, first=48) == expected
    heir.kv.release(two.blocks)
    heir.kv.check_integrity()


def test_what_another_model_or_format_left_is_not_taken(
    model: ModelFile, memory: SharedMemory
) -> None:
    first = load_runner(model, OPTIONS, kept=KeptMemory(memory, b"model"))
    (block,) = first.kv.allocate(1)
    first.kv.publish(block, digest(1))
    assert first.kv.adopted == 0
    again = load_runner(model, OPTIONS, kept=KeptMemory(memory, b"model"))
    assert again.kv.adopted == 1
    assert load_runner(model, OPTIONS, kept=KeptMemory(memory, b"mobel")).kv.adopted == 0
    again = load_runner(model, OPTIONS, kept=KeptMemory(memory, b"model"))
    assert again.kv.adopted == 0, "it was there, and another has been since"
    again.kv.publish(again.kv.allocate(1)[0], digest(1))
    int8 = load_runner(model, replace(OPTIONS, kv="int8"), kept=KeptMemory(memory, b"model"))
    assert int8.kv.adopted == 0


def test_the_cache_keeps_its_size_while_memory_allows(
    model: ModelFile, memory: SharedMemory
) -> None:
    """What a machine has to spare is never twice the same. An engine that planned a block more than
    the one before once would have begun empty; and clients were told what the first one can hold.
    """
    kept = KeptMemory(memory, b"model")
    first = load_runner(model, replace(OPTIONS, max_context=48), kept=kept)
    free = replace(OPTIONS, kv_tokens=None)
    assert first.kv.total_blocks == 20
    assert load_runner(model, free).kv.total_blocks > 20
    assert load_runner(model, free, kept=kept).kv.total_blocks == 20
    free = replace(OPTIONS, kv_tokens=None, max_context=48)
    less = first.plan.total - first.kv.block_bytes
    assert loader._plan(model, free, first.plan.total, kept).blocks == 20
    assert 3 <= loader._plan(model, replace(free, memory=None), less, kept).blocks < 20


def test_a_closed_runner_holds_no_memory(model: ModelFile) -> None:
    """Blocks and their pool knew each other, so half a gigabyte of cache waited for the garbage
    collector: a process that loaded one model after the other was out of memory at the tenth.
    """
    name = f"rebar-test-closed-{os.getpid()}"
    memory = SharedMemory.create(name)
    gc.disable()
    try:
        runner = load_runner(model, OPTIONS, kept=KeptMemory(memory, b"model"))
        assert name in Path("/proc/self/maps").read_text()
        runner.close()
        del runner
        assert name not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
        memory.close()


def test_the_plan_counts_the_table(model: ModelFile, memory: SharedMemory) -> None:
    """To the byte, and what does not fit is refused before anything is touched."""
    runner = load_runner(model, OPTIONS, kept=KeptMemory(memory, b"model"))
    blocks = runner.kv.total_blocks
    assert runner.plan.of("kv") == HEADER_BYTES + blocks * (runner.kv.block_bytes + ENTRY_BYTES)
    names = [(block.what, block.nbytes) for block in runner.device.pool("kv").blocks()]
    assert names[0][0] == "block table"
    assert names[0][1] >= HEADER_BYTES + blocks * ENTRY_BYTES
    assert names[1] == ("keys and values", blocks * runner.kv.block_bytes)
    with pytest.raises(MemoryBudgetError, match="Give it more with --memory"):
        load_runner(model, replace(OPTIONS, memory=100_000), kept=KeptMemory(memory, b"other"))
