"""Logits -> ids: a function of (logits, parameters, seed, position, the ids before), nothing else.

Order of the steps (native/sampling/sample.h is the specification): ids that the sequence does not
allow, repetition penalty (prompt and
output), frequency and presence penalty (output), logit bias, temperature, top-k, min-p, top-p, one
draw with u = Philox(seed, position). A temperature of at most 1e-4 is greedy. Log probabilities are
of the raw distribution, before any of these steps, and never below -9999.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import EngineError, InputError, ShapeError
from rebar.graph.sequence import Sampled, SamplingParams, Sequence

GREEDY_TEMPERATURE = 1e-4
"""At or below this temperature the greatest logit wins."""
LOGPROB_FLOOR = -9999.0
"""No reported log probability is lower: it stays a number in every wire format."""


@dataclass(slots=True)
class Wanted:
    """One row of logits: those of `position` in `sequence`, which speak of the id at position + 1.

    The id is sampled when position + 1 >= sequence.total, with guesses taken for said; else it is
    known and its log probability is reported.
    """

    sequence: Sequence
    position: int


class Sampler:
    """Chooses ids below `vocab_size`; logits beyond it (padding of the head) are not looked at.

    isa: "portable", "avx2" or "avx512" (same bits), None for the fastest here. pool: threads that
    share the rows (same bits), None for the caller's alone. ShapeError when there is no such isa.
    """

    def __init__(
        self, vocab_size: int, *, isa: str | None = None, pool: _native.Pool | None = None
    ) -> None:
        try:
            self._native = _native.Sampler(vocab_size, isa or "", pool)
        except ValueError as error:
            raise ShapeError(f"sampling: {error}. Choose one that this machine has.") from error
        self.vocab_size = vocab_size

    def sample(self, logits: NDArray[np.float32], wanted: list[Wanted]) -> list[Sampled]:
        """One answer per wanted position; logits (len(wanted), row length >= vocab_size).

        A row that cannot be answered carries its error in `Sampled.error`; its neighbours are not
        touched. ShapeError when logits and wanted do not fit together.
        """
        params = [_prepared(w.sequence, self.vocab_size) for w in wanted]
        rows = [_row(w, p) for w, p in zip(wanted, params, strict=True)]
        try:
            answers = self._native.sample(logits, rows)
        except (ValueError, TypeError) as error:
            raise ShapeError(f"sampling: {error}. Pass the step's own logits and rows.") from error
        return [_sampled(w, p, a) for w, p, a in zip(wanted, params, answers, strict=True)]


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """InputError naming the first parameter that means nothing.

    That is: not finite, out of range, a bias outside the vocabulary. These are the limits of
    arithmetic; a service may draw narrower ones. Any integer is a seed (taken modulo 2**64).
    """
    for name, least, most, what in _RANGES:
        value = getattr(params, name)
        _require(_is_number(value) and least <= value <= most, name, value, what)
    _require(params.repetition_penalty > 0, "repetition_penalty", 0.0, "greater than 0")
    _require(params.top_p > 0, "top_p", 0.0, "greater than 0, at most 1")
    for name, value in (("top_k", params.top_k), ("logprobs", params.logprobs or 0)):
        _require(_is_int(value) and 0 <= value < 2**31, name, value, "an integer of at least 0")
    _require(_is_int(params.seed), "seed", params.seed, "an integer")
    for token, bias in params.logit_bias:
        known = _is_int(token) and 0 <= token < vocab_size
        _require(known, "logit_bias", token, f"of ids from 0 to {vocab_size - 1}")
        _require(_is_number(bias) and abs(bias) < _FLOAT_MAX, "logit_bias", bias, "finite")


_FLOAT_MAX = float(np.finfo(np.float32).max)
_RANGES = (
    ("temperature", 0.0, _FLOAT_MAX, "finite and at least 0"),
    ("top_p", 0.0, 1.0, "greater than 0, at most 1"),
    ("min_p", 0.0, 1.0, "from 0 to 1"),
    ("repetition_penalty", 1 / _FLOAT_MAX, _FLOAT_MAX, "finite and greater than 0"),
    ("frequency_penalty", -_FLOAT_MAX, _FLOAT_MAX, "finite"),
    ("presence_penalty", -_FLOAT_MAX, _FLOAT_MAX, "finite"),
)
_WHY = {  # by native Status
    1: "the logits at position {} hold a NaN",
    2: "the logits at position {} are all -inf, so no id can be chosen",
    3: "the sampling parameters at position {} were refused",
}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(holds: bool, name: str, value: object, what: str) -> None:
    if not holds:
        raise InputError(f"{name} must be {what}, not {value!r}. Change {name}.", param=name)


@lru_cache(maxsize=4096)
def _converted(params: SamplingParams, vocab_size: int) -> _native.SamplerParams | InputError:
    """The native form, made once per request; an error is a value, since only its row may fail."""
    try:
        check_sampling(params, vocab_size)
    except InputError as error:
        return error
    return _native_form(params)


def _prepared(sequence: Sequence, vocab_size: int) -> _native.SamplerParams | InputError:
    """The native form, looked up once a sequence: comparing parameters costs more than a row's
    whole way through Python should.
    """
    held = sequence.prepared
    if isinstance(held, tuple) and held[0] == vocab_size and held[1] is sequence.sampling:
        found: _native.SamplerParams | InputError = held[2]
        return found
    made = _converted(sequence.sampling, vocab_size)
    sequence.prepared = (vocab_size, sequence.sampling, made)
    return made


def _native_form(params: SamplingParams) -> _native.SamplerParams:
    return _native.SamplerParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        seed=params.seed % 2**64,
        top=-1 if params.logprobs is None else params.logprobs,
        bias=params.logit_bias,
    )


_GREEDY = _native_form(
    SamplingParams(temperature=0.0)
)  # stands in for parameters that were refused


def _row(
    wanted: Wanted, params: _native.SamplerParams | InputError
) -> tuple[NDArray[np.int32], int, int, int, _native.SamplerParams, NDArray[np.int32] | None]:
    s = wanted.sequence
    native = _GREEDY if isinstance(params, InputError) else params
    guessed = wanted.position + 1 - s.total
    total = s.total + min(max(guessed, 0), s.guesses)
    allowed = s.allowed[guessed] if s.allowed is not None and 0 <= guessed <= s.guesses else None
    return s.tokens, s.prompt, total, wanted.position, native, allowed


def _sampled(
    wanted: Wanted,
    params: _native.SamplerParams | InputError,
    answer: tuple[int, int, float, tuple[tuple[int, float], ...]],
) -> Sampled:
    status, token, logprob, top = answer
    if isinstance(params, InputError):
        return Sampled(id=-1, error=params)
    if status in _WHY:
        why = _WHY[status].format(wanted.position)
        advice = "Send the request again; if it fails again, run `rebar verify` on the model file."
        return Sampled(id=-1, error=EngineError(f"{why}. {advice}"))
    return (
        Sampled(token)
        if wanted.sequence.sampling.logprobs is None
        else Sampled(token, logprob, top)
    )
