"""The sampler against its specification in NumPy, and its independence of all else."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.sampling import LOGPROB_FLOOR, Sampler, Wanted
from rebar.graph.sequence import Sampled, SamplingParams, Sequence
from tests.graph import sampling_reference as reference
from tests.graph.sampling_reference import INFINITY, Logits, gaussian, row, sample, wanted

# Quarter steps make ties likely, the plain floats everything else.
LOGIT = st.one_of(
    st.integers(-40, 40).map(lambda q: q / 4), st.floats(-30, 30, width=32), st.just(-INFINITY)
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Logits, SamplingParams, list[int], list[int]]:
    logits = draw(st.lists(LOGIT, min_size=1, max_size=90))
    assume(max(logits) > -INFINITY)
    ids = st.integers(0, len(logits) + 2)  # ids beyond the vocabulary may stand in a prompt
    bias = st.tuples(st.integers(0, len(logits) - 1), st.floats(-100, 100, width=32))
    params = SamplingParams(
        temperature=draw(st.floats(0.05, 3)),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 40, 1000])),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0.01, 0.999))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0.001, 1))),
        repetition_penalty=draw(st.one_of(st.just(1.0), st.floats(0.5, 2))),
        frequency_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
        presence_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2))),
        logit_bias=tuple(draw(st.lists(bias, max_size=3))),
        seed=draw(st.integers(-(2**70), 2**70)),
    )
    prompt = draw(st.lists(ids, min_size=1, max_size=8))
    return np.array([logits], np.float32), params, prompt, draw(st.lists(ids, max_size=8))


@settings(deadline=None, max_examples=400)
@given(cases())
def test_the_sampled_id_is_the_one_of_the_specification(
    case: tuple[Logits, SamplingParams, list[int], list[int]],
) -> None:
    logits, params, prompt, output = case
    x = reference.adjusted(logits[0], params, prompt, output)
    assume(x.max() > -INFINITY)
    position = len(prompt) + len(output)
    expected = reference.draw(x, params, reference.uniform(params.seed, position))
    # A weight's relative error is at most |t| 2^-23 + 2^-22 with t > -87: 2e-5 leaves room.
    assume(params.top_k == 1 or expected.slack > 2e-5)
    for isa in _native.sampler_isas():
        sampler = Sampler(logits.shape[1], isa=isa)
        assert sampler.sample(logits, [wanted(params, prompt, output)]) == [Sampled(expected.id)]


@settings(deadline=None, max_examples=200)
@given(st.lists(LOGIT, min_size=1, max_size=90), st.integers(0, 20), st.integers(0, 92))
def test_log_probabilities_are_of_the_raw_distribution(
    values: list[float], top: int, known: int
) -> None:
    assume(max(values) > -INFINITY)
    logits = row(*values)
    bias = ((0, 50.0),)  # changes the choice, not the report
    params = SamplingParams(logprobs=top, temperature=0.7, repetition_penalty=1.5, logit_bias=bias)
    sequence = Sequence.of([0, known], 2, params)
    (answer,) = Sampler(len(values)).sample(logits, [Wanted(sequence, 0)])
    expected = reference.log_softmax(logits[0])
    order = sorted(range(len(values)), key=lambda i: (-logits[0, i], i))
    order = [i for i in order if values[i] > -INFINITY][:top]
    assert answer.id == known
    assert [token for token, _ in answer.top] == order
    # Float sums of at most 64 weights, each within 2^-22: the logarithm is within 64 * 2^-22.
    near = 64 * 2.0**-22
    assert answer.logprob is not None
    want = expected[known] if known < len(values) else LOGPROB_FLOOR
    assert abs(answer.logprob - want) < near
    assert all(abs(logprob - expected[token]) < near for token, logprob in answer.top)


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 1023, 1024, 1025, 49_152, 65_537])
def test_every_instruction_set_gives_the_same_bits(vocab: int) -> None:
    logits = gaussian(10, vocab)
    variants = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logprobs=5),
        SamplingParams(logprobs=20, top_p=0.9),
        SamplingParams(top_p=0.95, temperature=4.0),
        SamplingParams(top_p=0.999999),
        SamplingParams(top_k=50),
        SamplingParams(top_k=50, min_p=0.02, top_p=0.8),
        SamplingParams(top_k=30_000),
        SamplingParams(min_p=0.05),
        SamplingParams(),
    ]
    rows = [wanted(p) for p in variants]
    first, *others = (Sampler(vocab, isa=i).sample(logits, rows) for i in _native.sampler_isas())
    assert all(a.error is None for a in first)
    assert all(other == first for other in others)


def test_a_large_vocabulary_agrees_with_the_specification() -> None:
    """The selections that avoid sorting 20,000 ids keep what sorting them keeps."""
    logits = gaussian(1, 20_000)
    cases = [{"top_p": p} for p in (1e-9, 0.3, 0.9, 0.99)] + [
        {"top_k": k} for k in (2, 700, 19_999)
    ]
    cases += [{"min_p": 0.001}, {"top_k": 900, "min_p": 0.01, "top_p": 0.7}, {"top_p": 1 - 1e-9}]
    compared = 0
    for seed in range(4):
        for case in cases:
            params = SamplingParams(seed=seed, temperature=2.0, **case)  # type: ignore[arg-type]
            expected = reference.draw(logits[0], params, reference.uniform(seed, 1))
            if expected.slack > 2e-5:
                compared += 1
                assert sample(logits, params).id == expected.id
    assert compared > len(cases)


def test_randomness_is_philox_at_seed_and_position() -> None:
    """The authors' test vectors (Random123, kat_vectors), then ours against plain integers."""
    assert _native.philox([0] * 4, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert _native.philox(pi, 0xA4093822, 0x299F31D0)[0] == 0xD16CFE09
    for seed, position in [(0, 0), (7, 2**33 + 5), (2**64 - 1, 2**63)]:
        assert _native.sampler_uniform(seed, position) == reference.uniform(seed, position)


def chi_square_bound(df: int) -> float:
    """Quantile 1 - 1e-6 (z = 4.753), Wilson and Hilferty (1931). Seeds are fixed: a pass stays."""
    spread = 2 / (9 * df)
    return float(df * (1 - spread + 4.753 * math.sqrt(spread)) ** 3)


@pytest.mark.parametrize("walk", ["positions", "seeds"])
def test_frequencies_follow_the_distribution(walk: str) -> None:
    draws, vocab = 20_000, 40
    logits = gaussian(1, vocab, spread=1.0)
    rows = []
    tokens = np.zeros(draws + 1, np.int32)
    for i in range(draws):
        at, seed = (i, 11) if walk == "positions" else (0, i)
        sequence = Sequence(tokens, 1, SamplingParams(seed=seed, temperature=1.3), total=at + 1)
        rows.append(Wanted(sequence, at))
    answers = Sampler(vocab).sample(np.repeat(logits, draws, axis=0), rows)
    p = np.exp(logits[0].astype(np.float64) / 1.3)
    expected = draws * p / p.sum()
    assert expected.min() > 5  # the usual condition for the chi-square distribution to hold
    counts = Counter(a.id for a in answers)
    statistic = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert statistic < chi_square_bound(vocab - 1)


def test_an_answer_does_not_depend_on_the_batch() -> None:
    """One generator for a batch made seeded requests depend on neighbours and order of arrival."""
    vocab = 3_000
    logits = gaussian(8, vocab)
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2}
    rows = [
        wanted(SamplingParams(seed=s, temperature=0.8, logprobs=s % 3, **penalties), [s, 5], [7, 7])  # type: ignore[arg-type]
        for s in range(8)
    ]
    sampler = Sampler(vocab)
    alone = [sampler.sample(logits[i : i + 1], [w])[0] for i, w in enumerate(rows)]
    for shuffle in range(5):
        order = random.Random(shuffle).sample(range(8), 8)
        together = sampler.sample(logits[order], [rows[i] for i in order])
        assert together == [alone[i] for i in order]


def test_equal_seeds_repeat_and_different_seeds_differ() -> None:
    logits = gaussian(3, 3_000)
    logits[:] = logits[0]
    rows = [wanted(SamplingParams(seed=s, temperature=1.5)) for s in (7, 7, 8)]
    a, b, c = (x.id for x in Sampler(3_000).sample(logits, rows))
    assert a == b != c


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_threads_share_the_rows_and_change_no_bit(threads: int, rows: int) -> None:
    """Every way of sampling, scores included; each row alone on one thread is the measure. Again
    and again, so that a thread meets scratch that another row left behind.
    """
    vocab = 2_000
    random = np.random.default_rng(threads)
    logits = (random.standard_normal((rows, vocab)) * 3).astype(np.float32)
    ways = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, logprobs=3),
        SamplingParams(temperature=0.9, top_k=40, min_p=0.02, seed=2, repetition_penalty=1.3),
        SamplingParams(temperature=1.1, seed=3, frequency_penalty=0.5, logit_bias=((7, 4.0),)),
    )
    wanted = [
        Wanted(Sequence.of(random.integers(0, vocab, 50).tolist(), 60, ways[i % len(ways)]), 49)
        for i in range(rows)
    ]
    alone = [Sampler(vocab).sample(logits[i : i + 1], [w])[0] for i, w in enumerate(wanted)]
    shared = Sampler(vocab, pool=_native.Pool(threads))
    for _ in range(20):
        assert shared.sample(logits, wanted) == alone


def test_a_sampler_keeps_its_threads_alive() -> None:
    """The pool is let go of before the sampler that was given it is used."""
    sampler = Sampler(16, pool=_native.Pool(2))
    wanted = [Wanted(Sequence.of([1, 2, 3], 8, SamplingParams(temperature=0.0)), 2)] * 5
    logits = np.eye(16, dtype=np.float32)[:5]
    assert [answer.id for answer in sampler.sample(logits, wanted)] == [0, 1, 2, 3, 4]


@settings(deadline=None, max_examples=200)
@given(cases(), st.randoms(use_true_random=False))
def test_a_mask_is_the_same_as_logits_that_allow_no_more(
    case: tuple[Logits, SamplingParams, list[int], list[int]], chance: random.Random
) -> None:
    """And log probabilities are still those of the raw distribution."""
    logits, params, prompt, output = case
    allowed = np.array([chance.random() < 0.6 for _ in range(logits.shape[1])])
    allowed[int(np.argmax(logits[0]))] = True
    masked = np.where(allowed, logits, -INFINITY).astype(np.float32)
    ones = np.packbits(allowed, bitorder="little")
    words = np.zeros(-(-logits.shape[1] // 32) * 4, np.uint8)
    words[: len(ones)] = ones
    for isa in _native.sampler_isas():
        sampler = Sampler(logits.shape[1], isa=isa)
        (expected,) = sampler.sample(masked, [wanted(params, prompt, output)])
        w = wanted(params, prompt, output)
        w.sequence.allowed = words.view(np.int32)[None]
        assert sampler.sample(logits, [w]) == [expected]
        scored = wanted(replace(params, logprobs=2), prompt, output)
        free = sampler.sample(logits, [scored])[0].top
        scored.sequence.allowed = words.view(np.int32)[None]
        (answer,) = sampler.sample(logits, [scored])
        assert (answer.id, answer.top) == (expected.id, free)


def test_a_mask_without_a_bit_for_every_id_is_refused() -> None:
    w = wanted(SamplingParams(), [1], [])
    w.sequence.allowed = np.zeros((1, 1), np.int32)
    with pytest.raises(ShapeError, match="a bit for every id"):
        Sampler(33).sample(np.zeros((1, 33), np.float32), [w])
