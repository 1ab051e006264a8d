"""The sampler's specification in NumPy float64 and in the plainest way: sort all, no shortcuts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.graph.sampling import Sampler, Wanted
from rebar.graph.sequence import Sampled, SamplingParams, Sequence

_MASK = 0xFFFF_FFFF
Logits = NDArray[np.float32]
INFINITY = math.inf


def row(*values: float) -> Logits:
    return np.array([values], dtype=np.float32)


def wanted(
    params: SamplingParams, prompt: list[int] | None = None, output: list[int] | None = None
) -> Wanted:
    """The position after everything known: its id is sampled."""
    prompt, output = prompt or [0], output or []
    sequence = Sequence.of(prompt, len(prompt) + len(output) + 1, params)
    for token in output:
        sequence.append(token)
    return Wanted(sequence, sequence.total - 1)


def sample(logits: Logits, params: SamplingParams, isa: str | None = None) -> Sampled:
    (answer,) = Sampler(logits.shape[1], isa=isa).sample(logits, [wanted(params)])
    return answer


def gaussian(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Logits:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python integers (Salmon et al., SC11)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK, (a >> 32) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [c0, c1, c2, c3]


def uniform(seed: int, position: int) -> float:
    """The draw's u: the upper 53 of the first 64 bits."""
    seed %= 2**64
    c = philox([position & _MASK, position >> 32, 0, 0], [seed & _MASK, seed >> 32])
    return ((c[0] << 32 | c[1]) >> 11) / 2**53


def adjusted(
    logits: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> NDArray[np.float32]:
    """Penalties and bias, one float32 rounding per operation as specified."""
    x = np.minimum(logits, np.finfo(np.float32).max).astype(np.float32)
    for token in set(prompt) | set(output):
        if token < len(x):
            r = np.float32(params.repetition_penalty)
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token in set(output):
        if token < len(x):
            count = np.float32(output.count(token))
            x[token] -= count * np.float32(params.frequency_penalty)
            x[token] -= np.float32(params.presence_penalty)
    for token, bias in params.logit_bias:
        x[token] += np.float32(bias)
    return x


@dataclass(frozen=True)
class Draw:
    """What the draw finds.

    slack: the least relative distance of any comparison from its bar; where it is below the
    rounding of the float weights, either answer is right.
    """

    id: int
    slack: float


def draw(x: NDArray[np.float32], params: SamplingParams, u: float) -> Draw:
    """Temperature (above the greedy bar), top-k, min-p, top-p and the draw on adjusted logits."""
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    order = [i for i in order if x[i] > -np.inf]
    top = np.float64(x[order[0]])
    with np.errstate(under="ignore"):
        w = np.exp((x.astype(np.float64) - top) / params.temperature)
    if params.top_k:
        order = order[: params.top_k]
    slacks = [1.0]
    if params.min_p:
        slacks += [abs(w[i] / params.min_p - 1) for i in order]
        order = [i for i in order if w[i] >= params.min_p]
    if params.top_p < 1:
        sums = np.cumsum([w[i] for i in order]) / sum(w[i] for i in order)
        slacks += list(abs(sums[:-1] - params.top_p))
        keep = int(np.argmax(sums >= params.top_p)) + 1 if sums[-1] >= params.top_p else len(order)
        slacks.append(_gap(x, w, order[:keep], order[keep:]))
        order = order[:keep]
    kept = sorted(order)
    sums = np.cumsum([w[i] for i in kept]) / sum(w[i] for i in kept)
    slacks += list(abs(sums[:-1] - u))
    return Draw(kept[int(np.argmax(sums > u))], float(min(slacks)))


def _gap(
    x: NDArray[np.float32], w: NDArray[np.float64], kept: list[int], dropped: list[int]
) -> float:
    """Relative distance of the weights on both sides of a cut; logits that are equal are a tie."""
    above = [i for i in kept if not dropped or x[i] != x[dropped[0]]]
    below = [i for i in dropped if x[i] != x[kept[-1]]]
    pairs = [(kept[-1], below[0])] if below else []
    pairs += [(above[-1], dropped[0])] if above and dropped else []
    return min((1 - float(w[low] / w[high]) for high, low in pairs), default=1.0)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of the untouched logits, floored at -9999."""
    x = logits.astype(np.float64)
    with np.errstate(under="ignore"):
        total = np.log(np.exp(x - x.max()).sum())
    floored: NDArray[np.float64] = np.maximum(x - x.max() - total, -9999.0)
    return floored
