"""Every way a row of logits, or its parameters, can be strange."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from rebar import _native
from rebar.errors import EngineError, InputError, ShapeError
from rebar.graph.sampling import LOGPROB_FLOOR, Sampler, Wanted, check_sampling
from rebar.graph.sequence import Sampled, SamplingParams, Sequence
from tests.graph.sampling_reference import INFINITY, gaussian, row, sample, wanted


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1e-7, 1e-4])
@pytest.mark.parametrize(
    "extra", [{}, {"top_p": 1e-9}, {"top_p": 1e-4}, {"logit_bias": ((3, -100.0),)}]
)
def test_tiny_temperatures_are_greedy(temperature: float, extra: dict[str, object]) -> None:
    """Logits / 1e-7 overflowed, softmax gave NaN and the loop died for everyone."""
    logits = np.repeat(row(-3e38, 1.0, 3e38, 3.2e38, 2.0), 2, axis=0)
    logits[1] = [0.5, 0.25, 0.125, 0.3, 0.4]
    neighbour = wanted(SamplingParams(seed=3))
    tiny = SamplingParams(temperature=temperature, **extra)  # type: ignore[arg-type]
    answers = Sampler(5).sample(logits, [wanted(tiny), neighbour])
    assert answers[0] == Sampled(3)  # 100 is nothing beside 3e38
    assert [answers[1]] == Sampler(5).sample(logits[1:], [neighbour])
    greedy = 1 if extra.get("logit_bias") else 3
    assert sample(row(0.5, 1.0, 0.75, 1.25), tiny).id == greedy


@pytest.mark.parametrize("temperature", [1.1e-4, 1e-3, 3e38])
def test_extreme_temperatures_sample_without_overflow(temperature: float) -> None:
    logits = row(-3e38, -INFINITY, 3e38, 3.2e38)
    ids = {sample(logits, SamplingParams(temperature=temperature, seed=s)).id for s in range(64)}
    assert ids == (
        {3} if temperature < 1 else {2, 3}
    )  # -3e38 is more than FLT_MAX below the maximum


@pytest.mark.parametrize("isa", _native.sampler_isas())
def test_ties_go_to_the_lowest_id(isa: str) -> None:
    for vocab in (3, 40, 5_000):
        logits = np.zeros((1, vocab), np.float32)
        assert sample(logits, SamplingParams(temperature=0), isa).id == 0
        logits[0, 1:] = 2.5
        assert sample(logits, SamplingParams(temperature=0), isa).id == 1
        kept = {sample(logits, SamplingParams(top_k=2, seed=s), isa).id for s in range(40)}
        assert kept == {1, 2}
        top = sample(logits, SamplingParams(temperature=0, logprobs=2), isa).top
        assert [token for token, _ in top] == [1, 2]


def test_nan_ends_its_own_row_only() -> None:
    logits = gaussian(5, 100)
    logits[1, 99] = math.nan
    logits[3, 0] = -math.nan
    rows = [wanted(SamplingParams(seed=i, temperature=i % 2)) for i in range(5)]
    rows[3] = wanted(SamplingParams(logprobs=2))
    answers = Sampler(100).sample(logits, rows)
    for i in (1, 3):
        assert isinstance(answers[i].error, EngineError)
        assert answers[i].id == -1
        assert "NaN" in str(answers[i].error)
    for i in (0, 2, 4):
        assert [answers[i]] == Sampler(100).sample(logits[i : i + 1], [rows[i]])


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"logprobs": 1}]
)
def test_a_row_without_any_possible_id_is_an_error(params: dict[str, float]) -> None:
    answer = sample(row(*[-INFINITY] * 20), SamplingParams(**params))  # type: ignore[arg-type]
    assert isinstance(answer.error, EngineError)
    assert answer.id == -1


@pytest.mark.parametrize("params", [{}, {"top_k": 9}, {"top_p": 0.9999}, {"min_p": 1e-300}])
def test_minus_infinity_is_never_sampled(params: dict[str, float]) -> None:
    logits = row(*[-INFINITY] * 10, 0.0, -INFINITY, 0.0, -INFINITY)
    seeds = range(60)
    ids = {sample(logits, SamplingParams(seed=s, **params)).id for s in seeds}  # type: ignore[arg-type]
    assert ids == {10, 12}


def test_plus_infinity_takes_everything_in_equal_shares() -> None:
    logits = row(5.0, INFINITY, 88.0, INFINITY)
    assert sample(logits, SamplingParams(temperature=0)).id == 1
    seeds = range(60)
    assert {sample(logits, SamplingParams(seed=s)).id for s in seeds} == {1, 3}
    answer = sample(logits, SamplingParams(temperature=0, logprobs=4))
    assert answer.logprob == pytest.approx(-math.log(2), abs=1e-15)
    assert answer.top[2:] == ((2, LOGPROB_FLOOR), (0, LOGPROB_FLOOR))


def test_log_probabilities_are_always_json_numbers() -> None:
    """Masked ids had a log probability of -inf, which strict JSON encoders refuse."""
    logits = row(-INFINITY, 2.0, INFINITY, -3e38)
    for known in range(4):
        sequence = Sequence.of([1, known], 2, SamplingParams(logprobs=4))
        (answer,) = Sampler(4).sample(logits, [Wanted(sequence, 0)])
        assert answer.logprob is not None
        json.dumps([answer.logprob, answer.top], allow_nan=False)
        assert LOGPROB_FLOOR <= answer.logprob <= 0


def test_padding_is_never_sampled_nor_looked_at() -> None:
    """A-c5: Embedding rows beyond the tokenizer's size have logits too."""
    logits = np.full((3, 64), INFINITY, np.float32)
    logits[1, 50:] = math.nan
    logits[:, :50] = gaussian(3, 50)
    rows = [wanted(SamplingParams(temperature=t, logprobs=5)) for t in (0, 1, 2)]
    answers = Sampler(50).sample(logits, rows)
    assert answers == Sampler(50).sample(np.ascontiguousarray(logits[:, :50]), rows)
    assert all(a.error is None and a.id < 50 for a in answers)


BAD = [
    ("temperature", math.nan), ("temperature", INFINITY), ("temperature", -1.0),
    ("temperature", 1e39), ("temperature", "1"), ("top_p", 0.0), ("top_p", 1.5),
    ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.1), ("top_k", -1), ("top_k", 0.01),
    ("top_k", True), ("top_k", 2**40), ("repetition_penalty", 0.0), ("repetition_penalty", -1.0),
    ("frequency_penalty", 1e308), ("presence_penalty", math.nan), ("seed", 1.5), ("logprobs", -1),
    ("logit_bias", ((100, 1.0),)), ("logit_bias", ((-1, 1.0),)), ("logit_bias", ((2**40, 1.0),)),
    ("logit_bias", ((1, math.inf),)), ("logit_bias", ((1, 1e39),)),
    ("logit_bias", ((True, 1.0),)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_parameters_without_meaning_end_their_own_row_only(name: str, value: object) -> None:
    """A top_k of 0.01 and a bias outside the vocabulary raised inside the shared step."""
    bad = SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=name) as raised:
        check_sampling(bad, 100)
    assert raised.value.param == name
    logits = gaussian(2, 100)
    good = wanted(SamplingParams(seed=5))
    refused, answer = Sampler(100).sample(logits, [wanted(bad), good])
    assert isinstance(refused.error, InputError)
    assert refused.error.param == name
    assert refused.id == -1
    assert [answer] == Sampler(100).sample(logits[1:], [good])


def test_the_native_door_refuses_such_parameters_as_well() -> None:
    """Status 3 (kParams), whatever the caller checked before."""
    names = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
    fine: dict[str, Any] = {"top_k": 0, "seed": 0, "top": -1, "bias": []} | dict.fromkeys(
        names, 1.0
    )
    bad: list[dict[str, Any]] = [{n: math.nan} for n in names] + [
        {"top_k": -1},
        {"top": -2},
        {"bias": [(9, 0.0)]},
    ]
    native = _native.Sampler(9)
    tokens = np.zeros(1, np.int32)
    for change in [{}, *bad]:
        params = _native.SamplerParams(**{**fine, **change})
        ((status, *_),) = native.sample(row(*range(9)), [(tokens, 1, 1, 0, params, None)])
        assert status == (3 if change else 0)


def test_penalties_see_the_ids_before_the_position_only() -> None:
    """A position in the middle is judged as when it was last: replay and drafts rely on it."""
    params = SamplingParams(temperature=0, frequency_penalty=2.0)
    tokens = np.array([0, 1, 2, 2, 2], np.int32)
    logits = row(0.0, 0.5, 1.0)
    for total, expected in [(1, 2), (2, 2), (3, 0), (4, 0)]:
        sequence = Sequence(tokens, 1, params, total=total)
        (answer,) = Sampler(3).sample(logits, [Wanted(sequence, total - 1)])
        assert answer.id == expected
    prompt_only = Sequence(tokens, 5, params, total=5)
    assert Sampler(3).sample(logits, [Wanted(prompt_only, 4)])[0].id == 2


def test_a_known_id_is_reported_without_looking_at_logits_nobody_asked_for() -> None:
    sequence = Sequence.of([4, 2, 1], 4, SamplingParams())
    nan = np.full((1, 5), math.nan, np.float32)
    assert Sampler(5).sample(nan, [Wanted(sequence, 0)]) == [Sampled(2)]


def test_logits_and_wanted_must_fit_together() -> None:
    ask = wanted(SamplingParams())
    sampler = Sampler(10)
    transposed = np.zeros((10, 1), np.float32).T
    misfits: list[tuple[Any, list[Wanted]]] = [
        (gaussian(2, 10), [ask]),
        (gaussian(1, 9), [ask]),
        (np.repeat(transposed, 2, axis=1)[:, ::2], [ask]),
        (gaussian(1, 10), [Wanted(ask.sequence, 1)]),
        (gaussian(1, 10), [Wanted(ask.sequence, -1)]),
        (gaussian(1, 10).astype(np.float64), [ask]),
    ]
    for logits, rows in misfits:
        with pytest.raises(ShapeError):
            sampler.sample(logits, rows)
    assert sampler.sample(np.zeros((0, 10), np.float32), []) == []
    with pytest.raises(ShapeError):
        Sampler(0)
    with pytest.raises(ShapeError):
        Sampler(10, isa="abacus")


def test_rows_may_be_slices_of_a_wider_buffer() -> None:
    wide = gaussian(4, 128)
    rows = [wanted(SamplingParams(seed=i)) for i in range(4)]
    assert Sampler(100).sample(wide[:, :100], rows) == Sampler(100).sample(wide, rows)
