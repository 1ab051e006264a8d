"""Who holds the KV cache: order, priorities, pre-emption, shared beginnings."""

from __future__ import annotations

from typing import Any

import pytest

from rebar.service.messages import HIGH, LOW
from rebar.service.scheduler import Scheduler
from tests.service.fakes import FakePool
from tests.service.scheduling import generation, run, scheduler_runs, tickets


def test_who_came_first_keeps_its_memory() -> None:
    """Small requests that keep coming must not keep the memory from a large one that has begun."""
    scheduler = Scheduler(FakePool(8), max_rows=32, max_running=8)
    large = generation(0, 20, 100)
    scheduler.add(large)
    for ticket in range(1, 400):
        scheduler.add(generation(ticket, 20, 12))
        run(scheduler, scheduler.schedule())
        if large not in list(scheduler):
            break
    assert large.sampled == 100
    assert large.journal.preempted == 0


def test_who_needs_memory_takes_it_from_who_comes_last() -> None:
    """The last is computed anew, but for the blocks that nobody needed in between."""
    scheduler = Scheduler(FakePool(8), max_rows=64, max_running=4)
    first, last = generation(1, 30, 90), generation(2, 30, 90)
    scheduler.add(first)
    scheduler.add(last)
    while first in list(scheduler):
        run(scheduler, scheduler.schedule())
        scheduler.check_integrity()
    assert (first.journal.preempted, first.sampled) == (0, 90)
    assert last.journal.preempted == 1
    assert last.journal.cached == 0, "what it had computed itself is no gift"
    run(scheduler, scheduler.schedule())
    assert last.sequence.computed > 32, "two blocks of its own were still there"
    while last in list(scheduler):
        run(scheduler, scheduler.schedule())
    assert last.sampled == 90


def test_a_high_request_takes_the_next_step() -> None:
    """Neither places nor memory held by lower ones keep it waiting."""
    for pool, places in ((FakePool(64), 2), (FakePool(7), 8)):
        scheduler = Scheduler(pool, max_rows=64, max_running=places)
        for ticket in (1, 2):
            scheduler.add(generation(ticket, 30, 60, priority=LOW))
        for _ in range(10):
            run(scheduler, scheduler.schedule(1.0))
        scheduler.add(generation(3, 40, 8, priority=HIGH, now=1.0))
        plan = scheduler.schedule(1.0)
        scheduler.check_integrity()
        assert 3 in tickets(plan.work)
        assert 2 not in tickets(plan.work), "the one that came last gave way"
        assert tickets(scheduler.running) == [3, 1], "who pauses keeps its memory"


def test_an_equal_does_not_give_way() -> None:
    scheduler = Scheduler(FakePool(64), max_rows=64, max_running=1)
    scheduler.add(generation(1, 30, 60))
    run(scheduler, scheduler.schedule())
    scheduler.add(generation(2, 30, 60))
    assert tickets(scheduler.schedule().work) == [1]


def test_the_low_age_and_are_not_overtaken_for_ever() -> None:
    """A-e7: one place, a high request every second: the low one waits two minutes, no longer."""
    scheduler = Scheduler(FakePool(64), max_rows=64, max_running=1)
    low = generation(0, 4, 2, priority=LOW)
    scheduler.add(low)
    ended = None
    for second in range(300):
        scheduler.add(generation(1 + second, 4, 2, priority=HIGH, now=float(second)))
        for _ in range(2):
            run(scheduler, scheduler.schedule(float(second)))
        if low not in list(scheduler):
            ended = second
            break
    assert ended is not None
    assert 118 <= ended <= 125


def test_a_beginning_that_was_computed_is_not_computed_again() -> None:
    """Whole blocks only, and the last position always: its logits are what is asked for."""
    scheduler = Scheduler(FakePool(64), max_rows=128, max_running=8)
    text = list(range(64))
    firsts = []
    for ticket, prompt in enumerate((text, text, [*text, 7], text[:33], [9, *text])):
        work = generation(ticket, prompt, 2)
        scheduler.add(work)
        firsts.append(scheduler_runs(scheduler))
    assert firsts == [0, 48, 64, 32, 0]


@pytest.mark.parametrize(
    ("fields", "reused"),
    [({}, 48), ({"tenant": "other"}, 0), ({"score_prompt": True}, 0)],
)
def test_who_may_use_what_was_computed(fields: dict[str, Any], reused: int) -> None:
    """No other tenant; and who wants the prompt's scores needs the logits of all of it."""
    scheduler = Scheduler(FakePool(64), max_rows=128, max_running=8)
    scheduler.add(generation(1, range(64), 2))
    scheduler_runs(scheduler)
    score = bool(fields.pop("score_prompt", False))
    scheduler.add(generation(2, range(64), 2, score_prompt=score, **fields))
    assert scheduler_runs(scheduler) == reused


def test_another_model_has_other_digests() -> None:
    pool = FakePool(64)
    for model in (b"a", b"b"):
        scheduler = Scheduler(pool, max_rows=128, max_running=8, model=model)
        scheduler.add(generation(1, range(64), 2))
        assert scheduler_runs(scheduler) == 0


def test_eight_answers_to_one_prompt_compute_it_once() -> None:
    """The others wait while the first computes what they have in common."""
    scheduler = Scheduler(FakePool(128), max_rows=32, max_running=8)
    for ticket in range(8):
        scheduler.add(generation(ticket, range(100), 2))
    computed = 0
    while list(scheduler):
        plan = scheduler.schedule()
        computed += sum(min(r.first + r.count, 100) - r.first for r in plan.rows if r.first < 100)
        run(scheduler, plan)
        scheduler.check_integrity()
    assert computed == 100 + 7 * 4
    assert scheduler.cached_tokens == 7 * 96


def test_the_end_of_a_text_is_given_up_before_its_beginning() -> None:
    scheduler = Scheduler(FakePool(6), max_rows=128, max_running=8)
    scheduler.add(generation(1, range(64), 1))
    scheduler_runs(scheduler)
    scheduler.add(generation(2, 48, 1))  # two empty blocks, and the end of the text
    scheduler_runs(scheduler)
    assert scheduler.pool.evictions == 1
    scheduler.add(generation(3, range(64), 1))
    assert scheduler_runs(scheduler) == 48
