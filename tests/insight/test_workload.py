"""Who comes, when and with what: functions of the seed, and of the distributions asked for."""

from __future__ import annotations

import itertools
import json
import random
import statistics

import pytest

from rebar.errors import InputError
from rebar.insight.workload import Lengths, Workload, arrivals, words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64", "64"),
        ("20-200", "20-200"),
        ("uniform:20-200", "20-200"),
        ("lognormal:120,0.6", "lognormal, median 120, sigma 0.6"),
    ],
)
def test_distributions_are_read(text: str, said: str) -> None:
    assert str(Lengths.parse(text)) == said


@pytest.mark.parametrize("text", ["", "0", "-5", "200-20", "0-5", "lognormal:5", "normal:1,2", "x"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Lengths.parse(text)


def test_lengths_are_distributed_as_they_say() -> None:
    chance = random.Random(1)
    uniform = [Lengths.parse("20-200").draw(chance) for _ in range(4000)]
    assert (min(uniform), max(uniform)) == (20, 200)
    assert abs(statistics.mean(uniform) - 110) < 5  # 52 / sqrt(4000) = 0.8 of standard error
    skewed = [Lengths.parse("lognormal:100,0.5").draw(chance) for _ in range(4000)]
    assert abs(statistics.median(skewed) - 100) < 6  # about 1.25 * 50 / sqrt(4000) = 1
    assert statistics.mean(skewed) > statistics.median(skewed)
    assert {Lengths.parse("7").draw(chance) for _ in range(9)} == {7}


def test_arrivals_are_a_poisson_process() -> None:
    moments = list(itertools.takewhile(lambda t: t < 1000.0, arrivals(5.0, seed=3)))
    gaps = [b - a for a, b in itertools.pairwise(moments)]
    assert abs(len(moments) - 5000) < 5 * 71  # five standard deviations of the count
    # Of exponential gaps mean and standard deviation are one.
    assert abs(statistics.stdev(gaps) / statistics.mean(gaps) - 1) < 0.1
    assert moments == list(itertools.islice(arrivals(5.0, seed=3), len(moments)))
    assert moments[:9] != list(itertools.islice(arrivals(5.0, seed=4), 9))


def test_a_request_is_a_function_of_seed_and_number() -> None:
    one, same, other = Workload(seed=1), Workload(seed=1), Workload(seed=2)
    assert [one.ask(i) for i in range(5)] == [same.ask(i) for i in (0, 1, 2, 3, 4)]
    assert one.ask(-3) == same.ask(-3) != one.ask(3)
    assert one.ask(0).body != other.ask(0).body


def test_bodies_are_of_the_route_with_what_was_added() -> None:
    text = "It is a truth universally acknowledged. " * 50
    chat = Workload(model="m", text=text, extra={"temperature": 0})
    body = json.loads(chat.ask(1).body)
    assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0)
    assert body["messages"][0]["content"].strip() in text * 2
    plain = json.loads(Workload(route="completions").ask(1).body)
    assert "model" not in plain
    assert isinstance(plain["prompt"], str)


def test_prompts_are_as_long_as_asked_for_and_share_a_beginning() -> None:
    load = Workload(
        prompt=Lengths.parse("300"), shared=200, per_token=5.0, text=words(1), route="completions"
    )
    first, second = (json.loads(load.ask(i).body)["prompt"] for i in range(2))
    assert len(first) == len(second) == 300 * 5 + 2
    assert first[: 200 * 5] == second[: 200 * 5] == load.text[: 200 * 5]
    assert first[200 * 5 :] != second[200 * 5 :]


def test_who_leaves_does_so_in_the_first_half_or_in_a_hurry() -> None:
    load = Workload(output=Lengths.parse("40"), leave=0.25)
    after = [load.ask(i).leaves_after for i in range(400)]
    leaving = [n for n in after if n is not None]
    assert 60 < len(leaving) < 140  # 100, standard deviation 8.7
    assert 0 in leaving
    assert max(leaving) < 20
    hurried = [Workload(leave=1.0, hurry=2.0).ask(i) for i in range(50)]
    assert all(ask.leaves_after is None for ask in hurried)
    assert all(ask.leaves_at is not None and 0 <= ask.leaves_at <= 2 for ask in hurried)


def test_a_text_that_is_too_short_to_cut_is_refused() -> None:
    with pytest.raises(InputError, match="1,000 characters"):
        Workload(text="short")
    with pytest.raises(InputError, match="0 to 1"):
        Workload(leave=1.5)
