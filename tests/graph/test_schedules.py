from __future__ import annotations

import math

import pytest

from rebar.errors import InputError
from rebar.graph.schedules import Schedule


def test_a_warm_up_climbs_in_equal_stairs_and_never_stands_at_zero() -> None:
    schedule = Schedule("constant", 0.4, warmup=4)
    assert [schedule.at(s) for s in range(6)] == [0.1, 0.2, 0.4 * 3 / 4, 0.4, 0.4, 0.4]


def test_a_line_goes_to_its_floor() -> None:
    schedule = Schedule("linear", 1.0, steps=6, warmup=2, floor=0.2)
    assert schedule.at(2) == 1.0
    assert schedule.at(4) == pytest.approx(0.6, rel=1e-15)  # halfway from 1 to 0.2: two roundings
    assert schedule.at(5) == pytest.approx(0.4, rel=1e-15)
    assert schedule.at(100) == 0.2


def test_a_cosine_is_one_half_in_the_middle() -> None:
    schedule = Schedule("cosine", 2.0, steps=100)
    assert schedule.at(0) == 2.0
    assert schedule.at(50) == pytest.approx(1.0, rel=1e-15)
    assert schedule.at(25) == 1 + math.cos(math.pi / 4)
    assert schedule.at(99) > 0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_short_run_has_no_step_at_rate_zero(kind: str) -> None:
    for steps in range(1, 5):
        for warmup in range(steps + 1):
            schedule = Schedule(kind, 0.3, steps, warmup)  # type: ignore[arg-type]
            rates = [schedule.at(step) for step in range(steps)]
            assert min(rates) > 0
            assert max(rates) == 0.3


@pytest.mark.parametrize(
    "wrong", [{"kind": "cosine"}, {"rate": 0.0}, {"rate": math.nan}, {"warmup": -1}, {"floor": 2.0}]
)
def test_what_is_no_schedule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="--"):
        Schedule(**({"kind": "constant"} | wrong))  # type: ignore[arg-type]
