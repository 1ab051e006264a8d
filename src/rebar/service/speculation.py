"""Guessing what those that decode will say, while steps are small.

The law: a guess changes when an id is computed, never which. A row of a step may go on over guessed
ids; each is sampled as if those before it were right, and it stands if the sampler picks it. As a
sampled id is a function of logits, parameters, seed, position and the ids before, it is then the id
that would have been sampled anyway, for greedy and for sampled requests alike.

What is guessed is what followed when the sequence last stood like this (native/sampling/lookup.h),
with a chance learned from the ids it has said so far. A step of up to eight rows costs less than
two of one row, for it reads the weights once; how much less is measured. So many guesses are made
as give most ids a second, over all who decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rebar._native import Lookup
from rebar.graph.sequence import MAX_GUESSES
from rebar.service.generation import Generation

MAX_ROWS = MAX_GUESSES + 1
"""Of a step with guesses, all choices together: a ninth row is a second tile of the products, and
where so many choices decode there is less to be had."""
FIRST_SLOPE = 0.10
"""What a row more costs, in parts of a step of one row, before any was measured. 0.05 to 0.12 on
three models with contexts of 64 to 2,000 positions."""
MEMORY_STEPS = 64.0
"""So many steps count in what a step costs: a second at most."""
MAX_JUMP = 1.5
"""A step that took longer than this many times what was expected was held up by something else."""
LEAST_GAIN = 1.02
"""Guesses that promise less are not worth being wrong about."""


class SmallSteps:
    """Seconds of a step by its rows, up to MAX_ROWS: a straight line through the latest. Pure."""

    def __init__(self) -> None:
        self._weight = self._rows = self._squares = self._seconds = self._products = 0.0

    def measured(self, rows: int, seconds: float) -> None:
        """Books a step of `rows` positions, none of them of a prompt's beginning."""
        if seconds <= 0 or rows > MAX_ROWS:
            return
        if self._weight >= 1:
            base, slope = self._line()
            seconds = min(seconds, MAX_JUMP * (base + slope * rows))
        keep = 1 - 1 / MEMORY_STEPS
        self._weight = self._weight * keep + 1
        self._rows = self._rows * keep + rows
        self._squares = self._squares * keep + rows * rows
        self._seconds = self._seconds * keep + seconds
        self._products = self._products * keep + rows * seconds

    def ratio(self, rows: int, more: int) -> float:
        """How many times longer a step of `rows` takes with `more` rows."""
        base, slope = self._line() if self._weight >= 1 else (1 - FIRST_SLOPE, FIRST_SLOPE)
        return (base + slope * (rows + more)) / (base + slope * rows)

    def _line(self) -> tuple[float, float]:
        """Seconds of a step of no rows, and of each row. Where the latest steps had all the same
        number, the slope is what it was thought to be at first: a few steps' worth of doubt.
        """
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares - self._weight * mean_rows**2
        slope = (self._products - mean_rows * self._seconds) / max(spread, 1e-9)
        first = FIRST_SLOPE * mean / (1 + FIRST_SLOPE * (mean_rows - 1))
        trust = spread / (spread + MAX_ROWS)
        slope = min(max(trust * slope + (1 - trust) * first, 0.0), mean / mean_rows)
        return mean - slope * mean_rows, slope


class Speculation:
    """Makes guesses for choices that decode. most: ids guessed at a time for one choice, at most
    MAX_GUESSES; 0: none are made.
    """

    def __init__(self, most: int = MAX_GUESSES) -> None:
        self.most = min(most, MAX_GUESSES)
        self.steps = SmallSteps()
        self.guessed = self.right = 0

    def offer(self, decoding: Sequence[Generation], max_rows: int) -> list[list[int]]:
        """The ids worth guessing for each of those that decode, one row each; in all at most
        `max_rows` rows with the guesses.
        """
        room = min(MAX_ROWS, max_rows) - len(decoding)
        if room <= 0 or not self.most:
            return [[] for _ in decoding]
        found = [self._look_up(generation) for generation in decoding]
        chances = [chances for _, chances in found]
        counts = allot(chances, room, lambda n: self.steps.ratio(len(decoding), n))
        return [ids[:count] for (ids, _), count in zip(found, counts, strict=True)]

    def booked(self, guessed: int, right: int) -> None:
        """Counts what became of guesses."""
        self.guessed += guessed
        self.right += right

    def _look_up(self, generation: Generation) -> tuple[list[int], list[float]]:
        sequence = generation.sequence
        if generation.lookup is None:
            generation.lookup = Lookup(len(sequence.tokens))
        most = min(self.most, generation.guessable)
        if not most:
            return [], []
        return generation.lookup.guess(sequence.tokens, sequence.total, sequence.prompt, most)


def allot(
    chances: Sequence[Sequence[float]], room: int, longer: Callable[[int], float]
) -> list[int]:
    """How many guesses each choice gets, at most `room` in all, so that a step gives most ids a
    second. chances[i]: of each guess of choice i that it and all before it stand, so they fall.
    longer(n): how many times longer a step with n guesses takes.
    """
    order = sorted(
        ((-chance, i) for i, falling in enumerate(chances) for chance in falling),
        key=lambda offer: offer[0],
    )[:room]
    ids = float(len(chances))
    best, taken = LEAST_GAIN * ids, 0
    for n, (chance, _) in enumerate(order, start=1):
        ids -= chance
        if ids / longer(n) > best:
            best, taken = ids / longer(n), n
    counts = [0] * len(chances)
    for _, i in order[:taken]:
        counts[i] += 1
    return counts
