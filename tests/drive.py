"""Drives a Runner in tests: prompts in chunks, then decode, several sequences side by side, keeping
every id and the bits of every row of logits. No scheduler: a test says what stands in a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.graph import Row, Runner, RunnerOptions, Sampled, SamplingParams, Sequence, load_runner
from rebar.graph.memory_plan import KVName
from rebar.graph.weights import open_model


@dataclass
class Trace:
    """What came out for one sequence; logits[i] (vocab,) chose ids[i]."""

    ids: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        """Equal ids and equal bits: -0.0 and 0.0 differ, as do two NaNs."""
        return (
            isinstance(other, Trace)
            and self.ids == other.ids
            and len(self.logits) == len(other.logits)
            and all(
                np.array_equal(a.view(np.uint32), b.view(np.uint32))
                for a, b in zip(self.logits, other.logits, strict=True)
            )
        )


@dataclass(frozen=True)
class Prompt:
    """One request of a test."""

    ids: tuple[int, ...]
    sampling: SamplingParams


@contextmanager
def runner_of(
    path: Path,
    *,
    threads: int = 1,
    isa: str | None = None,
    fused: bool = True,
    max_rows: int = 512,
    kv_tokens: int = 4096,
    kv: KVName = "f16",
) -> Iterator[Runner]:
    """A loaded model, closed at the end."""
    options = RunnerOptions(threads=threads, isa=isa, max_rows=max_rows, kv_tokens=kv_tokens, kv=kv)
    runner = load_runner(open_model(path), options, fused=fused)
    try:
        yield runner
    finally:
        runner.close()


def generate(
    runner: Runner,
    prompts: Seq[Prompt],
    count: int,
    *,
    chunk: int | None = None,
    watched: bool = False,
) -> list[Trace]:
    """`count` ids for each prompt, all in one batch; prompts go in `chunk` ids a step.

    chunk None: whole. A sequence that has its prompt behind it decodes while others are still at
    theirs. watched: node by node instead of as a program.
    """
    sequences = [_sequence(runner, p, count) for p in prompts]
    traces = [Trace() for _ in prompts]
    while unfinished := [
        (s, t) for s, t in zip(sequences, traces, strict=True) if len(t.ids) < count
    ]:
        rows = _rows(runner, [s for s, _ in unfinished], chunk)
        answers = runner.step(rows, () if watched else None)
        _take(runner, rows, answers, unfinished)
    for sequence in sequences:
        runner.kv.release(sequence.blocks)
    return traces


def _sequence(runner: Runner, prompt: Prompt, count: int) -> Sequence:
    capacity = len(prompt.ids) + count
    sequence = Sequence.of(list(prompt.ids), capacity, prompt.sampling)
    sequence.blocks = runner.kv.allocate(-(-capacity // runner.kv.block_size))
    return sequence


def _rows(runner: Runner, sequences: list[Sequence], chunk: int | None) -> list[Row]:
    """As many ids of each sequence as the chunk and the step's room allow, in order."""
    rows, room = [], runner.max_rows
    for s in sequences:
        count = min(s.total - s.computed, room, chunk or room)
        if count:
            end = s.computed + count
            wants = range(end - 1, end) if end == s.total else range(0)
            rows.append(Row(s, s.computed, count, wants))
            room -= count
    return rows


def _take(
    runner: Runner,
    rows: list[Row],
    answers: list[list[Sampled]],
    unfinished: list[tuple[Sequence, Trace]],
) -> None:
    trace_of = {id(s): t for s, t in unfinished}
    logits = iter(runner.logits(sum(len(row.wants) for row in rows)))
    for row, answer in zip(rows, answers, strict=True):
        row.sequence.computed += row.count
        for sampled in answer:
            if sampled.error:
                raise sampled.error
            trace = trace_of[id(row.sequence)]
            trace.ids.append(sampled.id)
            trace.logits.append(next(logits))
            if row.sequence.total < len(row.sequence.tokens):
                row.sequence.append(sampled.id)


def window_mean(
    runner: Runner, ids: NDArray[np.int32], top: int = 0
) -> tuple[float, list[Sampled]]:
    """Mean negative log probability (nats) of ids[1:] in one context, and the answers; the raw log
    probability of each known next id, as a request with `echo` gets it."""
    sampling = SamplingParams(logprobs=top)
    sequence = Sequence.of(ids.tolist(), len(ids), sampling)
    sequence.blocks = runner.kv.allocate(-(-len(ids) // runner.kv.block_size))
    answers: list[Sampled] = []
    for first in range(0, len(ids), runner.max_rows):
        count = min(runner.max_rows, len(ids) - first)
        wants = range(first, min(first + count, len(ids) - 1))
        answers += runner.step([Row(sequence, first, count, wants)])[0]
    runner.kv.release(sequence.blocks)
    known = [a.id for a in answers]
    if known != ids[1:].tolist():
        raise AssertionError("the answers are not of the ids that were asked")
    return -math.fsum(a.logprob or 0.0 for a in answers) / len(answers), answers
