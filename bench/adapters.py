"""What adapters cost a step: python -m bench.adapters MODEL [--threads N]

The same rows without an adapter, with one, and with four different ones: a decode step of 1, 8 and
32 rows at depth 100, and a prompt of 512. Adapters are random, of rank 8 on q and v and of rank 16
on all seven parts of a layer. Each launch counts with the shortest of its times; a ratio is the
whole step over the step without what adapters launch, of one and the same run, since whole steps
differ more from run to run than adapters cost.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from rebar.graph import Row, Runner, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.lora import LoraSpec, lora_shapes, read_adapter, write_adapter
from rebar.graph.weights import ModelFile, open_model

KINDS = {"r 8, q v": LoraSpec(8, 16.0), "r 16, all": LoraSpec(16, 16.0, ("all-linear",))}
COUNTS = (1, 8, 32)
DEPTH, PROMPT, EACH = 100, 512, 4


def adapters_of(runner: Runner, model: ModelFile, spec: LoraSpec, folder: Path) -> list[int]:
    """Slots of EACH random adapters."""
    assert runner.adapters is not None
    slots = []
    for seed in range(EACH):
        random = np.random.default_rng(seed)
        matrices = {
            name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            for name, shape in lora_shapes(model.config, spec)
        }
        write_adapter(folder, spec, matrices)
        slots.append(runner.adapters.load(read_adapter(folder, model.config)))
    return slots


def rows_of(runner: Runner, count: int, length: int, slots: list[int]) -> list[Row]:
    """count rows at the end of as many sequences, or a whole prompt where length says so."""
    rows = []
    for i in range(count):
        ids = np.random.default_rng(i).integers(3, runner.config.vocab_size, length).tolist()
        s = Sequence.of(ids, length, SamplingParams(temperature=0.0))
        s.blocks, s.adapter = runner.kv.allocate(-(-length // 16)), slots[i % len(slots)]
        first = length - 1 if length == DEPTH else 0
        if first:
            runner.step([Row(s, 0, first, range(0))])
        rows.append(Row(s, first, length - first, range(length - 1, length)))
    return rows


def measured(
    model: ModelFile, threads: int | None, rounds: int = 15
) -> dict[str, dict[str, float]]:
    """Milliseconds without an adapter, and ratios with, by what is computed."""
    options = RunnerOptions(
        threads=threads, max_adapters=len(KINDS) * EACH, max_rank=16, max_context=PROMPT + 16,
        kv_tokens=64 * 1024,
    )  # fmt: skip
    runner = load_runner(model, options)
    with tempfile.TemporaryDirectory() as folder:
        ways = {"none": [-1]}
        for name, spec in KINDS.items():
            slots = adapters_of(runner, model, spec, Path(folder))
            ways |= {name: slots[:1], f"{name}, {EACH} of them": slots}
    work = {f"{count} rows": (count, DEPTH) for count in COUNTS}
    work[f"prompt of {PROMPT}"] = (1, PROMPT)
    steps = {
        (what, way): rows_of(runner, count, length, slots)
        for what, (count, length) in work.items()
        for way, slots in ways.items()
        if len(slots) <= count
    }
    found: dict[str, dict[str, float]] = {what: {} for what in work}
    for (what, way), rows in steps.items():
        total, own = costs(runner, rows, rounds)
        found[what][way] = total / 1e6 if way == "none" else total / (total - own)
    runner.close()
    return found


def costs(runner: Runner, rows: list[Row], rounds: int) -> tuple[int, int]:
    """Nanoseconds of a step, and of what adapters launch in it."""
    runs = [runner.timings(rows) for _ in range(rounds)]
    best = [(name, min(run[i][1] for run in runs)) for i, (name, _) in enumerate(runs[0])]
    own = sum(took for name, took in best if name.startswith("lora"))
    return sum(took for _, took in best), own


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: milliseconds without an adapter, then what each kind makes of them."""
    ways = list(found[f"{COUNTS[-1]} rows"])
    lines = ["| | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for what, times in found.items():
        cells = [f"{times['none']:.1f} ms"]
        cells += [f"{times[w]:.2f} x" if w in times else "" for w in ways[1:]]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    print("\n".join(table(measured(open_model(given.model), given.threads))))


if __name__ == "__main__":
    main()
