"""The scheduler alone: rows, budgets, deadlines, reasons."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.errors import ContextLengthError
from rebar.service.messages import NORMAL
from rebar.service.scheduler import Scheduler
from rebar.service.step_cost import StepWork
from tests.service.fakes import END, FakePool
from tests.service.scheduling import generation, run, tickets


def test_a_long_prompt_leaves_room_for_a_short_one() -> None:
    """A quarter of the room is the shortest prompt's, and who decodes has its row in every step."""
    scheduler = Scheduler(FakePool(64), max_rows=8, max_running=8)
    scheduler.add(generation(1, 40, 4))
    scheduler.add(generation(2, 4, 4))
    rows = []
    for _ in range(3):
        plan = scheduler.schedule()
        rows.append([(row.first, row.count) for row in plan.rows])
        run(scheduler, plan)
    assert rows == [[(0, 6), (0, 2)], [(6, 6), (2, 2)], [(12, 7), (4, 1)]]


def test_logits_are_wanted_only_where_they_are_read() -> None:
    scheduler = Scheduler(FakePool(64), max_rows=8, max_running=8)
    plain, scored, only_scored = (
        generation(1, 10, 1),
        generation(2, 10, 1, score_prompt=True),
        generation(3, 10, 0, score_prompt=True),
    )
    wants = {}
    for work in (plain, scored, only_scored):
        scheduler.add(work)
        seen: list[int] = []
        while work in list(scheduler):
            plan = scheduler.schedule()
            seen += [position for row in plan.rows for position in row.wants]
            run(scheduler, plan)
        wants[work.packet.ticket] = seen
    assert wants == {1: [9], 2: list(range(10)), 3: list(range(9))}


def test_first_come_first_served_for_memory() -> None:
    """A small request behind a large one waits: overtaking would starve the large one."""
    scheduler = Scheduler(FakePool(4), max_rows=32, max_running=8)
    first, large, small = generation(1, 16, 1), generation(2, 50, 15), generation(3, 1, 1)
    for work in (first, large, small):
        scheduler.add(work)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [1]
    scheduler.remove(first)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [2]
    scheduler.remove(large)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [3]


def test_choices_that_may_need_everything_run_together() -> None:
    """Chats without max_tokens: reserving the whole context for each let two of eight run."""
    scheduler = Scheduler(FakePool(16), max_rows=32, max_running=8)
    chats = [generation(i, 10, 118) for i in range(8)]  # each may come to need eight blocks
    for chat in chats:
        scheduler.add(chat)
    together = 0
    while list(scheduler):
        plan = scheduler.schedule()
        scheduler.check_integrity()
        together = max(together, len(plan.rows))
        run(scheduler, plan, END if scheduler.running[0].sampled >= 4 else 97)
    assert together == 8


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"), [(64, 1, True), (64, 2, False), (65, 1, False)]
)
def test_what_can_never_fit_is_refused(prompt: int, max_tokens: int, fits: bool) -> None:
    """A-e2: such a request blocked the queue for ever. The last id sampled needs no KV position."""
    scheduler = Scheduler(FakePool(4), max_rows=128, max_running=8)
    if fits:
        scheduler.add(generation(1, prompt, max_tokens))
        assert len(scheduler.schedule().rows) == 1
    else:
        with pytest.raises(ContextLengthError, match="cache holds 64"):
            scheduler.add(generation(1, prompt, max_tokens))


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 20), st.integers(20, 110), st.integers(-1, 1)),
        min_size=3,
        max_size=6,
    ),
    blocks=st.integers(9, 14),
)
def test_memory_is_shared_to_the_brim_and_never_locked(
    requests: list[tuple[int, int, int]], blocks: int
) -> None:
    """Requests that together need more than there is, each run to its end."""
    scheduler = Scheduler(FakePool(blocks), max_rows=64, max_running=4)
    for ticket, (prompt, max_tokens, priority) in enumerate(requests):
        scheduler.add(generation(ticket, prompt, max_tokens, priority=priority))
    for _ in range(2000):
        if not list(scheduler):
            break
        first = min(scheduler, key=lambda g: g.rank)
        plan = scheduler.schedule()
        scheduler.check_integrity()
        assert first in plan.work, "who comes first must advance in every step"
        run(scheduler, plan)
    assert not list(scheduler)


def test_what_cannot_be_in_time_is_not_started() -> None:
    """Nor is it gone on with; who has no deadline is not asked."""
    scheduler = Scheduler(FakePool(64), max_rows=64, max_running=1)
    scheduler.budget.measured(StepWork(100, 5050), 1.0)  # 10 ms a position
    scheduler.add(generation(1, 10, 60))
    scheduler.add(generation(2, 50, 60, deadline=1.0))
    scheduler.add(generation(3, 50, 60, deadline=9.0))
    assert tickets(scheduler.schedule(0.4).expired) == []
    assert tickets(scheduler.schedule(0.6).expired) == [2]
    assert tickets(scheduler.waiting) == [3]
    scheduler.remove(scheduler.running[0])
    run(scheduler, scheduler.schedule(8.0))
    assert tickets(scheduler.running) == [3]
    assert tickets(scheduler.schedule(9.0).expired) == [3]
    scheduler.check_integrity()
    assert scheduler.pool.free_blocks == 64


def test_why_it_waited() -> None:
    """Each second has one reason, and the record adds up."""
    scheduler = Scheduler(FakePool(64), max_rows=64, max_running=1)
    first, second, third = (generation(i, 10, 60) for i in (1, 2, 3))
    for work in (first, second, third):
        scheduler.add(work)
    scheduler.schedule(1.0)
    scheduler.schedule(3.0)
    scheduler.remove(first)
    scheduler.schedule(5.0)
    record = second.journal.record(NORMAL, 6.0)
    assert record.waits == {"order": 1.0, "place": 4.0}
    assert (record.admitted, record.seconds) == (5.0, 6.0)
    assert third.journal.record(NORMAL, 6.0).waits == {"order": 5.0, "place": 1.0}
