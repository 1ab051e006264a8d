"""A prompt of high priority has the step to itself; who waits for it loses nothing and ages."""

from __future__ import annotations

import pytest

from rebar.service.messages import HIGH, LOW, NORMAL
from rebar.service.scheduler import Scheduler
from tests.service.fakes import FakePool
from tests.service.scheduling import generation, run, tickets


def decoding(scheduler: Scheduler, count: int, priority: int, now: float = 0.0) -> None:
    """So many choices that decode."""
    for ticket in range(1, count + 1):
        scheduler.add(generation(ticket, 4, 40, priority=priority, now=now))
    while any(g.remaining > 1 for g in scheduler) or not scheduler.running:
        run(scheduler, scheduler.schedule(now))


def test_a_high_prompt_does_not_share_its_steps_with_low_choices() -> None:
    """Each step beside 64 low ones had room for 16 of its positions: 25 seconds to the first token
    of a burst's P99, where a quiet server needed a tenth of a second."""
    scheduler = Scheduler(FakePool(256), max_rows=32, max_running=24)
    decoding(scheduler, 20, LOW)
    scheduler.add(generation(99, 60, 4, priority=HIGH, now=1.0))
    scheduler.add(generation(98, 60, 4, priority=LOW, now=1.0))
    held = []
    for _ in range(2):
        plan = scheduler.schedule(1.0)
        held.append(
            [(g.packet.ticket, row.count) for g, row in zip(plan.work, plan.rows, strict=True)]
        )
        run(scheduler, plan)
        scheduler.check_integrity()
    assert held == [[(99, 32)], [(99, 28)]]
    after = scheduler.schedule(1.0)
    assert tickets(after.work)[:2] == [99, 1], "its prompt is done: everybody goes on"
    assert len(after.work) >= 21
    paused = next(g for g in scheduler.running if g.packet.ticket == 1)
    assert paused.journal.preempted == 0


@pytest.mark.parametrize(
    ("running", "prompt", "pauses"),
    [(LOW, HIGH, True), (LOW, NORMAL, True), (NORMAL, HIGH, True), (NORMAL, NORMAL, False),
     (HIGH, NORMAL, False), (HIGH, LOW, False)],
)  # fmt: skip
def test_only_who_is_less_urgent_pauses(running: int, prompt: int, pauses: bool) -> None:
    scheduler = Scheduler(FakePool(64), max_rows=16, max_running=8)
    decoding(scheduler, 2, running)
    scheduler.add(generation(9, 10, 2, priority=prompt, now=1.0))
    assert (tickets(scheduler.schedule(1.0).work) == [9]) is pauses


def test_who_has_waited_long_enough_does_not_pause() -> None:
    """A flood of high prompts holds a normal choice up for a minute, not for ever."""
    scheduler = Scheduler(FakePool(64), max_rows=16, max_running=8)
    decoding(scheduler, 1, NORMAL)
    scheduler.add(generation(8, 30, 2, priority=HIGH, now=59.0))
    assert tickets(scheduler.schedule(59.0).work) == [8]
    scheduler.remove(next(g for g in scheduler if g.packet.ticket == 8))
    scheduler.add(generation(9, 30, 2, priority=HIGH, now=61.0))
    assert tickets(scheduler.schedule(61.0).work) == [1, 9]


def test_interrupted_streams_are_all_back_before_anybody_goes_on() -> None:
    """An engine was killed under 32 streams: those that were back decoded, each step beside them
    held few positions of the others, and the last client waited 20 seconds for its next token.
    """
    scheduler = Scheduler(FakePool(64), max_rows=16, max_running=8)
    for ticket in (1, 2, 3):
        said = tuple(range(2000, 2004))
        scheduler.add(generation(ticket, 20, 40, said=said, now=0.0))
    scheduler.add(generation(4, 20, 40, now=0.0))
    taken: dict[int, int] = {}
    while any(g.interrupted for g in scheduler):
        plan = scheduler.schedule(0.0)
        for work, row in zip(plan.work, plan.rows, strict=True):
            taken[work.packet.ticket] = taken.get(work.packet.ticket, 0) + row.count
        run(scheduler, plan)
        scheduler.check_integrity()
    assert taken == {1: 24, 2: 24, 3: 24}, "and not a position for anybody else"
    assert tickets(scheduler.schedule(0.0).work) == [1, 2, 3, 4]


def test_a_high_stream_does_not_wait_for_low_ones_that_were_interrupted() -> None:
    scheduler = Scheduler(FakePool(64), max_rows=16, max_running=8)
    decoding(scheduler, 1, HIGH)
    scheduler.add(generation(8, 30, 40, said=(2000, 2001), priority=LOW, now=0.0))
    assert tickets(scheduler.schedule(0.0).work) == [1, 8]
