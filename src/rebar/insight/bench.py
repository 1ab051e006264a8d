"""The engine's speed without a server: prompt, decode alone, decode of eight, load time, memory.

Measured in a fresh process, so that load time and peak memory are those of an engine and nothing
else. Ids are random: no prefix repeats, and no end id ends a run early. bench/compare_peers.py
gives the same work to other engines.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rebar import _native
from rebar.errors import EngineError, RebarError
from rebar.graph import ModelFile, Row, Runner, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.weights import open_model
from rebar.graph.weights.pack import packed_nbytes
from rebar.hal.measure import peak_resident_bytes, read_bandwidth

PROMPT, DECODE, ROWS, ROW_DECODE = 512, 64, 8, 32
FIRST_ID = 100  # below lie the control ids of every family
MARGIN = 1000  # and, in some, above
GREEDY = SamplingParams(temperature=0.0)

Report = Callable[[str], None]
Result = dict[str, Any]


def bench_engine(
    path: Path,
    options: RunnerOptions | None = None,
    *,
    repeats: int = 3,
    report: Report | None = None,
) -> Result:
    """One line of facts about `path` on this machine; medians of `repeats` runs.

    prefill512_tok_s: a prompt of 512 ids. decode1_tok_s: one id at a time after 16. decode8_tok_s:
    eight sequences, one id each a step, the sum. load_s: until the first step may run. peak_rss_mb:
    MB (10^6) of the whole process. spread: lowest and highest of the runs. read_gb_s: what the
    machine's memory gives the same threads; decode1_ceiling_tok_s: how often a second the weights
    that one id needs can be read at that rate. Errors: those of loading, EngineError when the
    measuring process dies.
    """
    report = report or _to_stderr
    result = _in_fresh_process(path, options or RunnerOptions(), repeats)
    report("memory bandwidth")
    rate = read_bandwidth(result["threads"])
    needed = result.pop("decode1_bytes")
    return result | {
        "read_gb_s": round(rate / 1e9, 2),
        "decode1_read_mb": round(needed / 1e6, 1),
        "decode1_ceiling_tok_s": round(rate / needed, 1),
    }


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()


def _in_fresh_process(path: Path, options: RunnerOptions, repeats: int) -> Result:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_into, args=(sender, path, options, repeats))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    process.join()
    if answer is None:
        raise EngineError(
            f"the measuring process ended with code {process.exitcode} and said nothing. "
            "Look for its last words above; if it was killed, try a smaller --memory."
        )
    if isinstance(answer, _Failure):
        raise answer.error()
    result: Result = answer
    return result


class _Failure:
    """An error on its way between processes: keyword-only arguments do not survive pickling."""

    def __init__(self, error: RebarError) -> None:
        self.type, self.message, self.fields = type(error), str(error), vars(error)

    def error(self) -> RebarError:
        error = self.type.__new__(self.type, self.message)
        error.__dict__.update(self.fields)
        return error


def _measure_into(sender: Connection, path: Path, options: RunnerOptions, repeats: int) -> None:
    try:
        sender.send(measure(path, options, repeats, _to_stderr))
    except RebarError as error:
        sender.send(_Failure(error))


def measure(path: Path, options: RunnerOptions, repeats: int, report: Report) -> Result:
    """The measurement itself, in this process."""
    report(f"loading {path.name}")
    begin = time.perf_counter()
    model = open_model(path)
    runner = load_runner(model, options)
    load = time.perf_counter() - begin
    bench = EngineBench(runner)
    bench.prefill(64)
    bench.decode(8)
    plan: dict[str, Callable[[], list[float]]] = {
        "prefill512_tok_s": lambda: [bench.prefill(PROMPT) for _ in range(repeats)],
        "decode1_tok_s": lambda: [bench.decode(DECODE) for _ in range(repeats)],
        "decode8_tok_s": lambda: bench.decode_rows(ROWS, ROW_DECODE, repeats),
    }
    runs: dict[str, list[float]] = {}
    for name, run in plan.items():
        report(name)
        runs[name] = run()
    facts: Result = {"engine": "rebar", "model": path.name, "version": version("rebar-llm")}
    facts |= {"threads": runner.device.threads, "isa": options.isa or _native.best_isa()}
    facts |= {name: round(statistics.median(values), 1) for name, values in runs.items()}
    facts |= {"load_s": round(load, 3), "peak_rss_mb": round(peak_resident_bytes() / 1e6, 1)}
    facts["spread"] = {n: [round(min(v), 1), round(max(v), 1)] for n, v in runs.items()}
    facts["decode1_bytes"] = weight_bytes(model)
    runner.close()
    return facts


def weight_bytes(model: ModelFile) -> int:
    """Bytes of packed matrices that one id reads: all but the embedding, unless it is the head."""
    matrices = [
        t
        for name, t in model.tensors.items()
        if len(t.shape) == 2 and (name != "embed.weight" or "head.weight" not in model.tensors)
    ]
    return sum(packed_nbytes(t.type, *t.shape) for t in matrices)


class EngineBench:
    """The three runs over one runner; each returns tokens a second."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(seed)
        self._top = max(FIRST_ID + 1, runner.config.vocab_size - MARGIN)

    def prefill(self, count: int) -> float:
        """A prompt of `count` ids, logits of the last."""
        sequence = self._sequence(count, count + 1)
        begin = time.perf_counter()
        self._compute(sequence)
        seconds = time.perf_counter() - begin
        self._release(sequence)
        return count / seconds

    def decode(self, count: int) -> float:
        """`count` steps of one id, after a prompt of 16."""
        sequence = self._sequence(16, 16 + count + 1)
        self._compute(sequence)
        begin = time.perf_counter()
        for _ in range(count):
            self._advance([sequence])
        seconds = time.perf_counter() - begin
        self._release(sequence)
        return count / seconds

    def decode_rows(self, rows: int, count: int, repeats: int) -> list[float]:
        """`repeats` times `count` steps of `rows` sequences, after prompts of 8, in one go."""
        sequences = [self._sequence(8, 8 + repeats * count + 1) for _ in range(rows)]
        for sequence in sequences:
            self._compute(sequence)
        rates = []
        for _ in range(repeats):
            begin = time.perf_counter()
            for _ in range(count):
                self._advance(sequences)
            rates.append(rows * count / (time.perf_counter() - begin))
        for sequence in sequences:
            self._release(sequence)
        return rates

    def _id(self) -> int:
        return int(self._rng.integers(FIRST_ID, self._top))

    def _sequence(self, count: int, capacity: int) -> Sequence:
        sequence = Sequence.of([self._id() for _ in range(count)], capacity, GREEDY)
        sequence.blocks = self.runner.kv.allocate(-(-capacity // self.runner.kv.block_size))
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
