"""What keys and values in shared memory cost against memory of the process:
python -m bench.kept_memory

Decode of 1, 8 and 16 rows at depths of 512 and 4,096 positions, in turns over runners that differ
in nothing else: the weights are one mapped file. Each round puts the cache somewhere else, for
where it lies decides too; of six runs there the best counts, for others only slow it down. "small
pages" is shared memory that nobody asks large pages for.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Line, note, number
from bench.serving import holds, run

from rebar.dataflow.models import open_source
from rebar.graph import Runner, RunnerOptions, Sequence, load_runner
from rebar.graph.kept import KeptMemory
from rebar.graph.weights.source import resolve
from rebar.hal import SharedMemory
from rebar.insight.figures import EngineBench, Figure

ROWS, DEPTHS, STEPS, REPEATS = (1, 8, 16), (512, 4096), 8, 6
COST = 0.02
PLACES = ("private", "shared", "small pages")


class AtDepth(EngineBench):
    """Decode at a depth that nobody computed: what lies in the cache decides no time."""

    def _compute(self, sequence: Sequence) -> None:
        sequence.computed = sequence.total
        sequence.append(self._id())


@contextmanager
def cache_in(place: str, path: Path, rows: int, depth: int) -> Iterator[Runner]:
    """A runner whose cache lies there, all of it touched."""
    from rebar.graph.weights import open_model

    options = RunnerOptions(
        kv_tokens=rows * (depth + 2 * STEPS + 16), max_context=8192, max_rows=64, weights="mapped"
    )
    memory = None if place == "private" else SharedMemory.create("bench")
    kept = None if memory is None else KeptMemory(memory, b"bench")
    runner = load_runner(open_model(path), options, kept=kept)
    mapping = runner.device.pool("kv")._mapping
    if mapping is not None and place == "small pages":
        mapping._collapses = False
    blocks = runner.kv.allocate(runner.kv.total_blocks)
    for storage in runner.kv.storage:
        storage.data[:] = 0x11
    runner.kv.release(blocks)
    yield runner
    runner.close()
    if memory is not None:
        memory.close()


def prove(given: argparse.Namespace) -> list[Line]:
    """A line a figure."""
    cache = Path(given.cache)
    path = open_source(resolve(given.model, cache), cache, None).path
    lines = []
    for depth in [given.depth] if given.depth else DEPTHS:
        for rows in [given.rows] if given.rows else ROWS:
            figure = Figure(f"decode{rows}_at{depth}", rows=rows, depth=depth, steps=STEPS)
            rates: dict[str, list[float]] = {place: [] for place in PLACES}
            for turn in range(given.rounds):
                for place in PLACES[turn % 3 :] + PLACES[: turn % 3]:
                    with cache_in(place, path, rows, depth) as runner:
                        rates[place].append(max(AtDepth(runner).run(figure, REPEATS)))
            lines += compared(figure.name, rates)
            note(f"{figure.name} {rates}")
    return lines


def compared(name: str, rates: dict[str, list[float]]) -> list[Line]:
    """Medians, and ratios of shared to private."""
    middle = {place: statistics.median(found) for place, found in rates.items()}
    ratio = {place: middle[place] / middle["private"] for place in PLACES}
    say = partial("{:.3f}".format)
    return [
        holds(f"{name}: shared, tok/s", f"> {1 - COST}", number(middle["shared"]),
              ratio["shared"] > 1 - COST, f"{number(middle['private'])} x {say(ratio['shared'])}"),
        holds(f"{name}: small pages, tok/s", "", number(middle["small pages"]), None,
              f"{number(middle['private'])} x {say(ratio['small pages'])}"),
    ]  # fmt: skip


if __name__ == "__main__":
    run(__doc__, prove, rounds=5, rows=0, depth=0, cache=str(Path.home() / ".cache" / "rebar"))
