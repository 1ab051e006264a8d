"""The figures of `rebar bench engine`: names, the steps each is made of, and the runs.

Ids are random: no prefix repeats, and no end id ends a run early. bench/peers gives other engines
the same work under the same names.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from rebar.errors import InputError
from rebar.graph import Row, Runner, SamplingParams, Sequence
from rebar.insight.ceilings import ModelWork, Slice, Work

FIRST_ID = 100  # below lie the control ids of every family
MARGIN = 1000  # and, in some, above
GREEDY = SamplingParams(temperature=0.0)
SHORT = 16  # "depth 0": positions before the first measured step, as after a tiny prompt


@dataclass(frozen=True, slots=True)
class Figure:
    """Tokens a second of a prompt (`prompt` ids at once, logits of the last) or of decode (`steps`
    steps of `rows` sequences, each at `depth` positions).
    """

    name: str
    prompt: int = 0
    rows: int = 1
    depth: int = SHORT
    steps: int = 32

    @property
    def tokens(self) -> int:
        """Ids of one run."""
        return self.prompt or self.rows * self.steps

    @property
    def positions(self) -> int:
        """Positions that a sequence of it needs, the id sampled last included."""
        return (self.prompt or self.depth + self.steps) + 1

    def work(self, model: ModelWork, max_rows: int) -> list[Work]:
        """What each step of a run cannot avoid; a decode run stands for its middle step."""
        if not self.prompt:
            return [model.step([Slice(self.depth + self.steps // 2)] * self.rows)] * self.steps
        starts = range(0, self.prompt, max_rows)
        counts = [min(max_rows, self.prompt - start) for start in starts]
        return [
            model.step([Slice(start, count, int(start + count == self.prompt))])
            for start, count in zip(starts, counts, strict=True)
        ]


FIGURES = (
    *(Figure(f"prefill{n}", prompt=n) for n in (128, 512, 2048)),
    Figure("decode1", steps=64),
    *(Figure(f"decode1_at{depth}", depth=depth) for depth in (1024, 4096)),
    *(Figure(f"decode{rows}", rows=rows) for rows in (4, 8, 16, 32)),
)


def chosen(only: tuple[str, ...]) -> list[Figure]:
    """The figures of these names or, for what names none, of names that begin so; all for none.

    InputError for what fits nothing.
    """
    names = [figure.name for figure in FIGURES]
    wanted: set[str] = set()
    for word in only:
        found = [word] if word in names else [name for name in names if name.startswith(word)]
        if not found:
            raise InputError(
                f"no figure is called {word!r}. There are {', '.join(names)}; "
                "the beginning of a name stands for all that begin so.",
                param="only",
            )
        wanted.update(found)
    return [figure for figure in FIGURES if not only or figure.name in wanted]


class EngineBench:
    """The runs over one runner; each returns tokens a second."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(seed)
        self._top = max(FIRST_ID + 1, runner.config.vocab_size - MARGIN)

    def obstacle(self, figure: Figure) -> str:
        """Why this runner cannot run a figure; empty when it can."""
        runner, kv = self.runner, self.runner.kv
        if figure.positions > runner.max_context:
            return f"a context of {runner.max_context:,} positions; it takes {figure.positions:,}"
        blocks = figure.rows * kv.blocks_for(figure.positions)
        if blocks > kv.free_blocks:
            return f"the KV cache has {kv.free_blocks:,} free blocks; it takes {blocks:,}"
        if figure.rows > min(runner.max_rows, runner.max_sequences):
            return f"a step takes {min(runner.max_rows, runner.max_sequences)} sequences"
        return ""

    def run(self, figure: Figure, repeats: int) -> list[float]:
        """`repeats` runs; for decode after the sequences were brought to their depth once."""
        if figure.prompt:
            return [self._prefill(figure) for _ in range(repeats)]
        sequences = [self._sequence(figure.depth, figure.positions) for _ in range(figure.rows)]
        for sequence in sequences:
            self._compute(sequence)
        self._advance(sequences)  # the first step at a new width touches what no other has
        rates = []
        for _ in range(repeats):
            for sequence in sequences:  # back to the depth: the same positions are computed again
                sequence.computed, sequence.total = figure.depth, figure.depth + 1
            begin = time.perf_counter()
            for _ in range(figure.steps):
                self._advance(sequences)
            rates.append(figure.tokens / (time.perf_counter() - begin))
        for sequence in sequences:
            self._release(sequence)
        return rates

    def _prefill(self, figure: Figure) -> float:
        sequence = self._sequence(figure.prompt, figure.positions)
        begin = time.perf_counter()
        self._compute(sequence)
        seconds = time.perf_counter() - begin
        self._release(sequence)
        return figure.tokens / seconds

    def _id(self) -> int:
        return int(self._rng.integers(FIRST_ID, self._top))

    def _sequence(self, count: int, capacity: int) -> Sequence:
        sequence = Sequence.of([self._id() for _ in range(count)], capacity, GREEDY)
        sequence.blocks = self.runner.kv.allocate(self.runner.kv.blocks_for(capacity))
        return sequence

    def _release(self, sequence: Sequence) -> None:
        self.runner.kv.release(sequence.blocks)

    def _compute(self, sequence: Sequence) -> None:
        """Everything that is known, in steps as large as the runner takes; then one more id."""
        end = sequence.total
        while sequence.computed < end:
            first = sequence.computed
            count = min(self.runner.max_rows, end - first)
            last = range(end - 1, end) if first + count == end else range(0)
            self.runner.step([Row(sequence, first, count, last)])
            sequence.computed = first + count
        sequence.append(self._id())

    def _advance(self, sequences: list[Sequence]) -> None:
        """One step: the last id of each sequence is computed, the next is sampled and replaced by a
        random one, as for the peers."""
        rows = [Row(s, s.computed, 1, range(s.computed, s.computed + 1)) for s in sequences]
        self.runner.step(rows)
        for sequence in sequences:
            sequence.computed += 1
            sequence.append(self._id())
