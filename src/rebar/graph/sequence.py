"""Token ids of one request and the slices of them that a step computes. No text, no requests, no
clients here.

A sequence is `computed` chasing `total`: prompt, decode and replay are the same thing with other
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rebar.errors import RebarError

MAX_GUESSES = 7
"""Ids guessed at a time: with the one that is known a tile of eight rows, whose products read the
weights once."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next id is chosen from logits. The choice is a function of (logits, these, position).

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0: off. Penalties: repetition
    divides/multiplies the logits of ids in prompt and output (Keskar et al., arXiv:1909.05858);
    frequency and presence subtract for ids in the output (OpenAI API). logprobs: how many
    alternatives to report, None for no logprobs.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None


@dataclass(slots=True)
class Sequence:
    """Ids of one request. tokens[:prompt] came in, tokens[prompt:total] were sampled; KV exists for
    [:computed].

    guesses: so many ids after `total` are guessed, for the step in progress only. The ids at their
    places are sampled as if they were right; those after a wrong one mean nothing.
    allowed: which ids may be sampled, (at least 1 + guesses, words): row i is for the id at
    total + i, bit id % 32 of word id // 32; None: every id.
    adapter: the slot of the adapter that all of it is computed with, -1 for none.
    """

    tokens: NDArray[np.int32]
    prompt: int
    sampling: SamplingParams
    total: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    allowed: NDArray[np.int32] | None = None
    guesses: int = 0
    adapter: int = -1
    prepared: object = None  # `sampling` as the sampler that answers it takes it (sampling.py)

    @classmethod
    def of(cls, ids: list[int], capacity: int, sampling: SamplingParams) -> Sequence:
        """A sequence that begins with `ids` and can grow to `capacity` ids."""
        tokens = np.zeros(capacity, dtype=np.int32)
        tokens[: len(ids)] = ids
        return cls(tokens=tokens, prompt=len(ids), sampling=sampling, total=len(ids))

    def append(self, token: int) -> None:
        """Adds one sampled id."""
        self.tokens[self.total] = token
        self.total += 1


@dataclass(slots=True)
class Row:
    """A slice of one sequence in one step: positions first .. first+count-1.

    `wants`: absolute positions in the slice whose logits are needed. At position p the id for p+1
    is sampled when p+1 >= total, else (the id is known) its log probability is reported. hidden:
    they are answered with their hidden states instead.
    """

    sequence: Sequence
    first: int
    count: int
    wants: range
    hidden: bool = False


@dataclass(slots=True)
class Sampled:
    """The answer for one wanted position. logprob and top (id, logprob; best first) are of the raw
    distribution.

    hidden: in place of an id (which is -1), the float32 of the state behind the final norm.
    error: this position has no answer (its logits held a NaN, or its parameters make no sense) and
    id is -1; the other positions of the step are answered as if it had not been there.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: RebarError | None = None
    hidden: bytes = b""
