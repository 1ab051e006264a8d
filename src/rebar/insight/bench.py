"""The engine's speed without a server, each figure beside its ceiling, measured in the same run:
before and after, of which the better counts, for a machine with neighbours has slow minutes.

The engine runs in a fresh process, so that load time and peak memory are those of an engine and
nothing else. figures.py says what is run, ceilings.py what the machine would allow.
bench/compare_peers.py gives the same work to other engines.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import EngineError, InputError, RebarError
from rebar.graph import ModelFile, Runner, RunnerOptions, load_runner
from rebar.graph.weights import open_model
from rebar.hal import read_machine
from rebar.hal.files import mapping_of
from rebar.hal.measure import READ_BLOCK, Buffer, Gauge, largest_cache, peak_resident_bytes
from rebar.insight.ceilings import ModelWork, Peaks, Work
from rebar.insight.figures import EngineBench, Figure, chosen

PLACES = 5  # buffers that memory's rate is measured on

WARM = (Figure("warm-up", prompt=64), Figure("warm-up", steps=8))

Report = Callable[[str], None]
Facts = dict[str, Any]


def bench_engine(
    path: Path,
    options: RunnerOptions | None = None,
    *,
    only: tuple[str, ...] = (),
    repeats: int = 5,
    report: Report,
) -> Facts:
    """Facts about the model at `path` on this machine, `only` the figures chosen.

    figures: by name, tok_s (median of `repeats` runs), low and high; ceiling_tok_s, the share of it
    that was reached, and its limit (memory or arithmetic). skipped: why a figure could not be run.
    ceilings: read_gb_s as taken for a step of all weights, weights_gb_s from the very bytes of this
    run's weights by a loop that only reads, int8_gop_s, f32_gop_s. load_s: until the first step may
    run. peak_rss_mb: MB (10^6) of the whole process. plan_mb: its pools.
    Errors: InputError for an unknown figure or no runs, those of loading, EngineError when the
    measuring process dies.
    """
    figures, options = chosen(only), options or RunnerOptions()
    if repeats < 1:
        raise InputError("no runs are no figures. Give --repeats 1 or more.", param="repeats")
    threads = read_machine().cores if options.threads is None else options.threads
    gauge = Gauge(threads, options.isa)
    report("ceilings, before")
    before = peaks(gauge)
    measured = _in_fresh_process(path, options, figures, repeats)
    report("ceilings, after")
    return measured.facts | beside(measured, before.best(peaks(gauge)))


@dataclass(slots=True)
class Measured:
    """What comes from the measuring process: facts; by figure its runs (tokens a second), its ids
    a run and the work of its steps; the weights of all layers and the head, and the bytes a second
    at which nothing but reading gets through them where they lie."""

    facts: Facts
    runs: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    work: dict[str, list[Work]] = field(default_factory=dict)
    weights: Work = field(default_factory=Work)
    weights_rate: float = 0.0


def peaks(gauge: Gauge) -> Peaks:
    """What the machine gives these threads. What fits the largest cache is read from there, the
    rest from memory: how much of a working set of two or three caches' size stays in them from one
    step to the next is luck of the hour and of neighbours (measured for one such set: 38 to 83
    GB/s), no ceiling to be held against. An engine in luck shows a share above 100 %.
    """
    cached, memory = largest_cache(), memory_set()

    @cache
    def measured(nbytes: int) -> float:
        return read_rate(gauge, nbytes)

    def read(nbytes: int) -> float:
        return measured(nbytes if nbytes <= cached else memory)

    measured(memory)  # now, whenever it is asked for

    return Peaks(read, gauge.operations("int8").median, gauge.operations("f32").median)


def memory_set() -> int:
    """Bytes that no cache holds a good part of."""
    return max(256 << 20, 4 * largest_cache())


def read_rate(gauge: Gauge, nbytes: int) -> float:
    """Bytes a second from a working set of nbytes in 2 MiB pages; the median over several places.

    Where the system puts a buffer decides: on one and the same machine two threads read 31 to 37
    GB/s from nine buffers of ten and 63 from the tenth, again and again.
    """
    grain = gauge.threads * READ_BLOCK
    size = -(-nbytes // grain) * grain
    return statistics.median(gauge.read(Buffer(size, huge=True).data).median for _ in range(PLACES))


def weights_in_place(model: ModelFile, runner: Runner) -> NDArray[np.uint8]:
    """The bytes that a step reads its weights from: a pool, or the mapped file."""
    pool = runner.device.pool("weights")
    packed = [tensor.data for tensor in model.tensors.values() if tensor.packed]
    found = mapping_of(packed[0]) if packed else None
    if found is None or 2 * pool.budget > sum(data.nbytes for data in packed):
        return pool.memory[: pool.budget]
    return np.frombuffer(found[0], np.uint8)


def beside(measured: Measured, allowed: Peaks) -> Facts:
    """Figures with their ceilings, and the ceilings."""
    figures: dict[str, Facts] = {}
    for name, rates in measured.runs.items():
        floors = [allowed.floor(work) for work in measured.work[name]]
        ceiling = measured.tokens[name] / sum(seconds for seconds, _ in floors)
        median = statistics.median(rates)
        figures[name] = {
            "tok_s": round(median, 1),
            "low": round(min(rates), 1),
            "high": round(max(rates), 1),
            "ceiling_tok_s": round(ceiling, 1),
            "share": round(median / ceiling, 3),
            "limit": max(floors)[1],
        }
    return {
        "figures": figures,
        "ceilings": {
            "read_gb_s": round(allowed.read(measured.weights.nbytes) / 1e9, 2),
            "weights_gb_s": round(measured.weights_rate / 1e9, 2),
            "int8_gop_s": round(allowed.int8 / 1e9, 1),
            "f32_gop_s": round(allowed.f32 / 1e9, 1),
        },
    }


def _in_fresh_process(
    path: Path, options: RunnerOptions, figures: list[Figure], repeats: int
) -> Measured:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure_into, args=(sender, path, options, figures, repeats), daemon=True
    )
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    process.join()
    if isinstance(answer, _Failure):
        raise answer.error()
    if not isinstance(answer, Measured):
        raise EngineError(
            f"the measuring process ended with code {process.exitcode} and said nothing. "
            "Look for its last words above; if it was killed, try a smaller --memory."
        )
    return answer


class _Failure:
    """An error on its way between processes: keyword-only arguments do not survive pickling."""

    def __init__(self, error: RebarError) -> None:
        self.type, self.message, self.fields = type(error), str(error), vars(error)

    def error(self) -> RebarError:
        error = self.type.__new__(self.type, self.message)
        error.__dict__.update(self.fields)
        return error


def _measure_into(
    sender: Connection, path: Path, options: RunnerOptions, figures: list[Figure], repeats: int
) -> None:
    def report(line: str) -> None:
        print(f"bench: {line}", file=sys.stderr, flush=True)

    try:
        sender.send(measure(path, options, figures, repeats, report))
    except RebarError as error:
        sender.send(_Failure(error))


def measure(
    path: Path, options: RunnerOptions, figures: list[Figure], repeats: int, report: Report
) -> Measured:
    """The measurement itself, in this process."""
    report(f"loading {path.name}")
    begin = time.perf_counter()
    model = open_model(path)
    runner = load_runner(model, options)
    load = time.perf_counter() - begin
    per_position = runner.kv.block_bytes // runner.kv.block_size // model.config.layers
    unavoidable = ModelWork.of(model, per_position)
    measured = Measured({"engine": "rebar", "model": path.name, "version": version("rebar-llm")})
    measured.weights = unavoidable.layers + unavoidable.head
    bench = EngineBench(runner)
    skipped: dict[str, str] = {}
    for figure in (*(w for w in WARM if not bench.obstacle(w)), *figures):
        if obstacle := bench.obstacle(figure):
            skipped[figure.name] = obstacle
            continue
        report(figure.name)
        rates = bench.run(figure, repeats if figure in figures else 1)
        if figure in figures:
            measured.runs[figure.name] = rates
            measured.tokens[figure.name] = figure.tokens
            measured.work[figure.name] = figure.work(unavoidable, runner.max_rows)
    measured.facts |= {
        "threads": runner.device.threads,
        "isa": options.isa or _native.best_isa(),
        "load_s": round(load, 3),
        "peak_rss_mb": round(peak_resident_bytes() / 1e6, 1),
        "plan_mb": {e.pool: round(e.nbytes / 1e6, 1) for e in runner.plan.entries},
        "weights_mb": round(measured.weights.nbytes / 1e6, 1),
        "skipped": skipped,
    }
    gauge = Gauge(runner.device.threads, options.isa)
    measured.weights_rate = gauge.read(weights_in_place(model, runner)).median
    runner.close()
    return measured


def table(facts: Facts) -> list[str]:
    """The facts for people."""
    ceilings = facts["ceilings"]
    lines = [
        f"{facts['model']}, {facts['isa']}, threads: {facts['threads']}; loaded in "
        f"{facts['load_s']} s; peak {facts['peak_rss_mb']:,} MB",
        f"the machine reads {ceilings['read_gb_s']} GB/s; the weights' {facts['weights_mb']:,} MB, "
        f"where they lie now, {ceilings['weights_gb_s']}; "
        f"{ceilings['int8_gop_s']:,} Gop/s int8, {ceilings['f32_gop_s']:,} f32",
        "",
        f"{'':<16}{'tok/s':>10}{'low':>10}{'high':>10}{'ceiling':>10}{'share':>8}  limit",
    ]
    for name, f in facts["figures"].items():
        numbers = (f["tok_s"], f["low"], f["high"], f["ceiling_tok_s"])
        lines.append(
            f"{name:<16}" + "".join(f"{n:>10,.1f}" for n in numbers)
            + f"{f['share']:>8.0%}  {f['limit']}"
        )  # fmt: skip
    return lines + [f"{name:<16}skipped: {why}" for name, why in facts["skipped"].items()]
