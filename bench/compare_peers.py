"""Rebar beside other engines, alternately: python bench/compare_peers.py PEERS MODEL.gguf

PEERS: a folder with a virtual environment per engine: PEERS/llama (llama-cpp-python) and, where it
is there, PEERS/ov (openvino-genai). Absolute figures differ from machine to machine and hour to
hour, so the ratios of medians are what counts; every engine gets the same file, threads and hour.
Progress goes to standard error, the table (or, with --json, one line of JSON) to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = (
    "import json, sys; from pathlib import Path; from rebar.graph import RunnerOptions; "
    "from rebar.insight.bench import bench_engine; "
    "options = RunnerOptions(threads=int(sys.argv[2]), max_context=2048); "
    "print(json.dumps(bench_engine(Path(sys.argv[1]), options)))"
)
FIGURES = ("prefill512_tok_s", "decode1_tok_s", "decode8_tok_s", "load_s", "peak_rss_mb")
LIMIT_S = 600  # no engine takes this long for one round on a model these comparisons are for

Facts = dict[str, Any]


def commands(peers: Path, model: Path, threads: int) -> dict[str, list[str]]:
    """The engines that can be run here, ours first."""
    found = {"rebar": [sys.executable, "-c", OURS, str(model), str(threads)]}
    for engine, venv, script in (
        ("llama.cpp", "llama", "peer_llama_cpp.py"),
        ("openvino", "ov", "peer_openvino.py"),
    ):
        python = peers / venv / "bin" / "python"
        if python.exists():
            command = [str(python), str(HERE / "peers" / script), str(model)]
            found[engine] = [*command, str(threads)] if engine == "llama.cpp" else command
        else:
            note(f"{engine}: {python} is not there, left out")
    return found


def note(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def measure(command: list[str]) -> Facts | None:
    """The facts an engine prints last, None when it fails (it says why on standard error)."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        note(f"  failed: {type(error).__name__}")
        return None
    facts: Facts = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def rounds(engines: Mapping[str, list[str]], count: int) -> dict[str, list[Facts]]:
    """Alternately, so that a slow minute of the machine is everybody's. A failed engine is out."""
    results: dict[str, list[Facts]] = {name: [] for name in engines}
    for number in range(count):
        for name in list(engines):
            if len(results[name]) < number:
                continue
            note(f"round {number + 1} of {count}: {name}")
            facts = measure(engines[name])
            if facts:
                results[name].append(facts)
    return {name: runs for name, runs in results.items() if runs}


def medians(runs: list[Facts]) -> Facts:
    """The figures of one engine."""
    return {
        figure: statistics.median(run[figure] for run in runs)
        for figure in FIGURES
        if figure in runs[0]
    }


def table(results: Mapping[str, Facts]) -> list[str]:
    """Engines, then ours over theirs (for load and memory: theirs over ours, so more is better)."""
    ours = results.get("rebar", {})
    lines = [f"{'':<20}" + "".join(f"{figure:>18}" for figure in FIGURES)]
    for name, facts in results.items():
        lines.append(row(name, {f: f"{facts[f]:,.2f}" for f in FIGURES if f in facts}))
    for name, facts in results.items():
        if name != "rebar":
            ratios = {f: ratio(f, ours[f], facts[f]) for f in FIGURES if f in facts and f in ours}
            lines.append(row(f"ahead of {name}", {f: f"{r:.2f}x" for f, r in ratios.items()}))
    return lines


def ratio(figure: str, ours: float, theirs: float) -> float:
    """How far ours is ahead; above 1 is better."""
    return ours / theirs if figure.endswith("tok_s") else theirs / ours


def row(name: str, cells: Mapping[str, str]) -> str:
    """One line of the table."""
    return f"{name:<20}" + "".join(f"{cells.get(figure, '-'):>18}" for figure in FIGURES)


def floor(runs: list[Facts]) -> str:
    """What the machine allows, from our own facts."""
    best = max(runs, key=lambda run: float(run["read_gb_s"]))
    reached = statistics.median(run["decode1_tok_s"] for run in runs)
    return (
        f"memory reads {best['read_gb_s']} GB/s; one id reads {best['decode1_read_mb']} MB of "
        f"weights: at most {best['decode1_ceiling_tok_s']} tok/s, reached "
        f"{reached / best['decode1_ceiling_tok_s']:.0%}"
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    engines = commands(arguments.peers, arguments.model.resolve(), arguments.threads)
    results = rounds(engines, arguments.rounds)
    figures = {name: medians(runs) for name, runs in results.items()}
    if arguments.json:
        print(json.dumps({"model": arguments.model.name, "medians": figures, "runs": results}))
        return
    print("\n".join(table(figures)))
    if "rebar" in results:
        print(floor(results["rebar"]))


if __name__ == "__main__":
    main()
