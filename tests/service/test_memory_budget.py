"""How many run follows memory: what pre-emptions cost, and what the machine has left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rebar.graph.blocks import BlockLedger
from rebar.graph.sequence import SamplingParams
from rebar.service.memory_budget import CALM_STEPS, MOST_BLOCKS, SPARE_BYTES, Margin, held_back
from rebar.service.messages import Orders, RequestPacket
from rebar.service.scheduler import Scheduler
from tests.service.fakes import FakePool, ScriptedRunner, hashed
from tests.service.scheduling import generation, run
from tests.service.test_engine import engine_over


def test_a_margin_grows_at_once_and_shrinks_slowly() -> None:
    margin = Margin()
    margin.stepped()
    assert margin.blocks == 1
    for expected in (2, 4, MOST_BLOCKS):
        margin.pre_empted()
        assert margin.blocks == expected
    for _ in range(CALM_STEPS - 1):
        margin.stepped()
    assert margin.blocks == MOST_BLOCKS
    margin.stepped()
    assert margin.blocks == MOST_BLOCKS - 1
    for _ in range(10 * CALM_STEPS):
        margin.stepped()
    assert margin.blocks == 1


def computed(adaptive: bool) -> tuple[int, int, int]:
    """32 chats in a cache for four at a time: positions computed, pre-emptions, choices ended."""
    scheduler = Scheduler(FakePool(40), max_rows=512, max_running=32)
    if not adaptive:
        scheduler.margin.pre_empted = lambda: None  # type: ignore[method-assign]
    for i in range(32):
        scheduler.add(generation(i, 30, 100 + 37 * i % 100))
    rows = ended = 0
    while list(scheduler):
        first = min(scheduler, key=lambda g: g.rank)
        plan = scheduler.schedule()
        assert first in plan.work, "who comes first must advance in every step"
        rows += sum(row.count for row in plan.rows)
        ended += len(run(scheduler, plan))
        scheduler.check_integrity()
    return rows, scheduler.preemptions, ended


def test_less_is_computed_twice_where_memory_runs_out() -> None:
    """The margin of one block let choices in only to pre-empt them again, all day long."""
    was, is_now = computed(False), computed(True)
    assert is_now[2] == was[2] == 32, "nobody is left behind"
    assert is_now[1] < 0.7 * was[1]
    assert is_now[0] < 0.95 * was[0]


@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 1 << 30),
    st.integers(1, 1 << 22),
)
def test_what_is_held_back(before: int, fresh: int, available: int, block: int) -> None:
    """Never less than the machine lacks, never more than there is, and with time exactly that."""
    lacking = max(0, fresh - max(0, available - SPARE_BYTES) // block)
    now = held_back(before, fresh, available, block)
    assert min(lacking, fresh) <= now <= fresh
    for _ in range(60):
        now = held_back(now, fresh, available, block)
    assert now == lacking


def test_held_back_blocks_are_taken_last() -> None:
    ledger = BlockLedger(6)
    used = ledger.allocate(3)
    ledger.publish(used[0], b"known")
    ledger.release(used)
    assert (ledger.fresh_blocks, ledger.free_blocks, ledger.usable_blocks) == (3, 6, 6)
    ledger.held_back = 2
    assert ledger.usable_blocks == 4
    assert sorted(ledger.allocate(4)) == [0, 1, 2, 3], "a known block before one held back"
    assert ledger.evictions == 1
    assert ledger.usable_blocks == 0
    assert sorted(ledger.allocate(2)) == [4, 5], "who must have it gets it"
    ledger.check_integrity([range(6)])


def test_a_machine_without_memory_runs_one_at_a_time_and_ends_all() -> None:
    """Others have taken the memory that the plan counted on; later they give it back."""
    runner = ScriptedRunner(choose=hashed, kv_blocks=60, max_rows=64)
    now = [0.0]
    engine = engine_over(runner)
    engine.clock = lambda: now[0]
    packets = [
        RequestPacket(i, f"r{i}", "t", [i] * 20, SamplingParams(seed=i), 40) for i in range(1, 9)
    ]
    runner.available_bytes = 0
    engine.obey(Orders(submit=packets))
    ended, ran = 0, []
    while not engine.idle:
        ended += sum(delta.last for delta in engine.step())
        ran.append(engine.stats().running)
        if ended == 3:
            runner.available_bytes = 1 << 40
        now[0] += 0.5
    assert ended == 8, "no request was dropped"
    assert max(ran[:30]) == 1
    assert max(ran) > 3
    assert engine.stats().held_back_blocks == 0
    assert engine.stats().preemptions == 0
