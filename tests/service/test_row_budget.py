"""The size of steps follows their cost: scripted machines, no clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.graph.sequence import Row
from rebar.service.row_budget import (
    ALONE_SECONDS,
    CALM,
    FIRST_ROWS,
    LEAST_ROWS,
    STEP_SECONDS,
    RowBudget,
)
from rebar.service.scheduler import Scheduler
from rebar.service.step_cost import StepCost, StepWork
from tests.service.fakes import FakePool
from tests.service.scheduling import generation, run

Machine = Callable[[StepWork], float]


def machine(step: float, position: float, attended: float) -> Machine:
    """Seconds of a step on a machine of these prices."""
    return lambda w: step + position * w.positions + attended * w.attended


QUIET = machine(0.003, 0.0006, 0.15e-6)  # about SmolLM2 on two cores


def work(rows: list[Row]) -> StepWork:
    total = StepWork()
    for row in rows:
        total = total.and_row(row.first, row.count)
    return total


def test_work_of_a_row() -> None:
    assert StepWork().and_row(0, 3) == (3, 1 + 2 + 3)
    assert StepWork(1, 5).and_row(10, 2) == (3, 5 + 11 + 12)


def long_prompt(machine: Machine, length: int = 7000) -> tuple[list[float], list[int], float]:
    """A long prompt beside eight streams: what its steps took and held, and how long it waited.
    Every stream has a token in every step.
    """
    scheduler = Scheduler(FakePool(900), max_rows=512, max_running=16)
    streams = [generation(i, 4, 3000) for i in range(8)]
    for stream in streams:
        scheduler.add(stream)
    now = 0.0
    for _ in range(3):
        run(scheduler, scheduler.schedule(now))
    long = generation(9, length, 1)
    scheduler.add(long)
    took, rows = [], []
    while long in list(scheduler):
        plan = scheduler.schedule(now)
        assert set(streams) <= set(plan.work)
        done = work(plan.rows)
        took.append(machine(done))
        rows.append(done.positions)
        now += took[-1]
        scheduler.budget.measured(done, took[-1])
        run(scheduler, plan)
    return took, rows, now


def test_a_long_prompt_beside_eight_streams() -> None:
    """No step takes much longer than is allowed, however deep the prompt; an estimate that knew
    positions only ended at one and a half times the bound.
    """
    took, rows, now = long_prompt(QUIET)
    assert max(took) <= 1.05 * STEP_SECONDS
    assert min(took[:-1]) >= 0.8 * STEP_SECONDS, "room was left unused"
    assert rows[-2] < 0.6 * max(rows), "it did not get dearer with depth"
    least = sum(QUIET(StepWork().and_row(p, 1)) - QUIET(StepWork()) for p in range(7000))
    assert now < 1.5 * least


def test_a_machine_that_stutters_gets_shorter_steps() -> None:
    """One step in eight takes half as long again: few are then a quarter over the bound."""
    chance = random.Random(4)
    took, rows, _ = long_prompt(
        lambda w: QUIET(w) * chance.choice([1.0] * 7 + [1.5]) * chance.uniform(0.97, 1.03)
    )
    _, more, _ = long_prompt(QUIET)
    late = sum(seconds > 1.25 * STEP_SECONDS for seconds in took)
    assert late <= len(took) / 24, "as if it did not stutter"
    assert len(rows) > len(more)


def test_a_busy_neighbour_is_noticed_at_once_and_forgotten_slowly() -> None:
    """From one step to the next the machine is half as fast, and then itself again."""
    budget = RowBudget(512)
    beside = StepWork(8, 8 * 200)
    sizes = []
    for n in range(240):
        slower = 2.0 if 80 <= n < 120 else 1.0
        rows = budget.prompt_rows(beside, 100)
        sizes.append(rows)
        done = beside.and_row(100, rows)
        budget.measured(done, slower * QUIET(done))
    before = sizes[79]
    assert sizes[81] < 0.75 * before, "after one step that was late"
    assert sizes[84] < 0.62 * before
    assert min(sizes) > 0.3 * before, "it does not run away"
    assert sizes[124] < 0.8 * before, "not trusted yet"
    assert sizes[239] > 0.95 * before
    swings = [abs(b - a) for a, b in itertools.pairwise(sizes[140:])]
    assert max(swings) <= 0.06 * before, "it grows evenly"


def test_budgets_before_and_beside() -> None:
    """Before anything is known; slow models still advance; alone a prompt gets more."""
    budget = RowBudget(512)
    eight = StepWork(8, 80)
    assert budget.prompt_rows(StepWork()) == 512
    assert budget.prompt_rows(eight) == FIRST_ROWS
    assert budget.prompt_seconds(0, 100) == 0.0
    budget.measured(StepWork(10, 55), 100.0)
    assert budget.prompt_rows(eight) == LEAST_ROWS
    assert budget.prompt_rows(StepWork(510, 5100)) == 2
    budget = RowBudget(512)
    budget.measured(StepWork(80, 3240), 0.05)
    assert budget.prompt_rows(eight) == pytest.approx(72, abs=2)
    assert budget.prompt_rows(StepWork()) == pytest.approx(400, abs=4)
    assert budget.prompt_seconds(0, 1024) == pytest.approx(1024 * 0.05 / 80, rel=0.05)
    budget.measured(StepWork(80, 3240), 60.0)
    assert budget.prompt_rows(eight) >= 72 // 4, "one hiccup changes little"
    assert ALONE_SECONDS > STEP_SECONDS
    assert CALM > 1


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, 10),
    st.floats(1e-5, 0.001),
    st.floats(0, 0.002),
    st.integers(0, 2**32),
    st.integers(0, 64),
    st.integers(0, 8000),
)
def test_any_machine_is_learned(
    step: float, position: float, attended: float, seed: int, decode: int, first: int
) -> None:
    """Whatever a machine spends its time on: steps as unlike as real ones teach it, and what is
    asked for takes about as long as was asked. SmolLM2's step costs five positions, and a
    position 4,000 attended to.
    """
    real = machine(step * position, position, attended * position)
    cost, chance = StepCost(), random.Random(seed)
    for _ in range(150):
        many = chance.randrange(64)
        done = StepWork(many, many * chance.randrange(8000))
        done = done.and_row(chance.randrange(8000), chance.randrange(60, 300))
        cost.measured(done, real(done))
    beside = StepWork(decode, decode * 500)
    bound = 0.05 + real(beside)
    rows = cost.positions(beside, first, bound)
    assert real(beside.and_row(first, rows)) <= 1.25 * bound
    assert real(beside.and_row(first, rows + 1)) >= 0.7 * bound
