"""The comparison with and without guesses: turns, equal answers, rates by medians."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.speculation import Answered, Took, compare, facts, line_of, rate
from bench.speculation_prompts import COPYING, FREE
from tests.tiny import tiny_gguf

import rebar


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("bench"), "llama", "Q8_0", context_length=2048)


def test_ten_prompts_of_each_kind_and_what_is_copied_is_there() -> None:
    assert len(set(COPYING)) == len(set(FREE)) == 10
    assert all(len(prompt) > 200 for prompt in COPYING)
    assert all(len(prompt) < 100 for prompt in FREE)


def test_models_take_turns_and_an_answer_that_differs_ends_the_run(model_path: Path) -> None:
    with rebar.load(model_path, speculation=0) as plain, rebar.load(model_path) as guessing:
        (one,) = compare(plain, guessing, ("Why?",), 2, 12, 0.0)
        assert (len(one.ids), len(one.plain), len(one.guessed)) == (12, 2, 2)
        assert all(took.wall > 0 for took in one.plain + one.guessed)

        class Other:
            """A model that says something else."""

            def chat(self, prompt: str, **_: object) -> rebar.Answer:
                return guessing.chat("No", max_tokens=3)

        with pytest.raises(AssertionError, match="changed the answer to 'Why\\?'"):
            compare(plain, Other(), ("Why?",), 1, 12, 0.0)  # type: ignore[arg-type]


def test_rates_are_of_medians() -> None:
    took = [Took(wall, 2 * wall) for wall in (9.0, 1.0, 2.0)]
    found = [Answered([1] * 10, took, took[1:2]), Answered([1] * 30, took[2:], took[1:2])]
    assert rate(found, "plain") == 40 / 4
    assert rate(found, "plain", "cpu") == 40 / 8
    assert rate(found, "guessed") == 40 / 2
    assert found[0].ratio == 2.0


def test_facts_and_a_line_of_the_table(model_path: Path) -> None:
    measured = facts(str(model_path), 1, rounds=1, tokens=4)
    assert set(measured) == {"copying", "free"}
    assert measured["free"]["tokens"] == 40
    line = line_of("copying", 1e9, measured)
    assert line.met is False
    assert line_of("copying", 0.0, measured).met is True
