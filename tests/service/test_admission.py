"""Who may come in, when the others should come back, and what is remembered of each."""

from __future__ import annotations

import pytest

from rebar.errors import OverloadedError
from rebar.service.admission import MAX_RETRY_AFTER, Admission, DrainRate
from rebar.service.history import MAX_REQUESTS, RequestHistory
from rebar.service.messages import HIGH, LOW, NORMAL, ChoiceRecord, Delta
from tests.service.scheduling import generation


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """Steady from the first second on, gone a minute later."""
    rate = DrainRate(0.0)
    for tick in range(1, 301):
        rate.add(2, tick / 10)
        if tick >= 20:
            assert 17 <= rate.per_second(tick / 10) <= 23
    assert rate.per_second(90.0) < 0.1


def fill(admission: Admission, choices: int, tokens: int = 1) -> None:
    for _ in range(choices):
        admission.enter(tokens)


@pytest.mark.parametrize(("priority", "most"), [(HIGH, 18), (NORMAL, 16), (LOW, 12)])
def test_a_flood_of_one_kind_leaves_a_door_to_the_others(priority: int, most: int) -> None:
    admission = Admission(16, 0, 0.0)
    fill(admission, most - 1)
    admission.check(1, 1, priority, 1.0)
    admission.enter(1)
    with pytest.raises(OverloadedError, match=f"{most} is the limit"):
        admission.check(1, 1, priority, 1.0)


def test_tokens_bound_the_queue_too() -> None:
    """But what finds nothing open comes in, however long: nobody is refused for ever."""
    admission = Admission(16, 1000, 0.0)
    admission.check(1, 5000, NORMAL, 0.0)
    fill(admission, 1, 900)
    admission.check(1, 100, NORMAL, 0.0)
    with pytest.raises(OverloadedError, match="prompts of 900 tokens"):
        admission.check(1, 101, NORMAL, 0.0)
    admission.leave(900, 1.0)
    admission.check(1, 101, NORMAL, 1.0)


def test_retry_after_is_when_there_will_be_room() -> None:
    """Four end in a second, ten have to: three seconds. Nothing ends: a minute for all."""
    admission = Admission(100, 0, 0.0)
    fill(admission, 100)
    for tick in range(1, 201):
        admission.leave(1, tick / 4)
        admission.enter(1)
    for more, seconds in ((1, 1), (10, 3), (40, 11)):
        with pytest.raises(OverloadedError) as caught:
            admission.check(more, more, NORMAL, 50.0)
        assert abs(caught.value.retry_after - seconds) <= 1
    with pytest.raises(OverloadedError) as caught:
        admission.check(100, 1, NORMAL, 500.0)
    assert caught.value.retry_after == MAX_RETRY_AFTER


def test_history_is_bounded_and_each_tenant_sees_its_own() -> None:
    history = RequestHistory("m")
    for ticket in range(MAX_REQUESTS + 5):
        history.begin([generation(ticket, 1, 1, request_id=f"r{ticket}", tenant="a").packet])
    assert history.get("r4", "a") is None
    assert history.get("r5", "a") is not None
    assert history.get("r5", "b") is None


def test_an_engine_that_takes_over_does_not_change_the_beginning() -> None:
    history = RequestHistory("m")
    history.begin([generation(1, 1, 9, request_id="r").packet])
    history.take(Delta(1, record=ChoiceRecord(0, 0.1, 0.2, 0.2, 0, 1, 16, {})))
    history.take(
        Delta(1, finish="stop", record=ChoiceRecord(0, 5.0, 5.1, 6.0, 1, 7, 0, {"order": 0.5}))
    )
    story = history.get("r")
    assert story is not None
    (choice,) = story.choices
    assert (choice.queued, choice.first_token, choice.cached_tokens) == (0.1, 0.2, 16)
    assert (choice.state, choice.seconds, choice.preempted) == ("stop", 6.0, 1)
    assert choice.waits == {"order": 0.5}
