"""Beside llama.cpp's server, same file, same load: python -m bench.load_peers --peers PEERS

PEERS: a folder with the virtual environment `xllamacpp` (pip install xllamacpp) and the models of
bench.all. 16 clients, each sends its next request when its last was answered; prompts of 20-200
tokens, answers of 16-64 in full length, greedy. Servers in turns, each in a process of its own;
medians. For llama.cpp the better of the Q4_1 file and its Q4_0 requantization counts.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import AbstractContextManager
from pathlib import Path

from bench.harness import Facts, Line, note
from bench.serving import Server, arguments, corpus, finish, rebar_server, server

from rebar.insight.load import Pace, Slo
from rebar.insight.load_report import measure_load
from rebar.insight.workload import Lengths, Workload

CLIENTS = 16
TIMES = 2.0
HERE = Path(__file__).parent


def measured(running: Server, seed: int, requests: int) -> Facts:
    """One run."""
    text = corpus()
    workload = Workload(
        prompt=Lengths("uniform", 20, 200), output=Lengths("uniform", 16, 64), seed=seed, text=text,
        route="completions", model=running.target.model(), per_token=4.2,
        extra={"ignore_eos": True, "temperature": 0},
    )  # fmt: skip
    pace = Pace(concurrency=CLIENTS, requests=requests, timeout=300)
    return measure_load(running.target, workload, pace, Slo(), warm_up=2)


def servers(given: argparse.Namespace) -> dict[str, AbstractContextManager[Server]]:
    """New ones, not started yet; ours first."""
    models = given.peers / "models"
    python = given.peers / "xllamacpp" / "bin" / "python"
    found = {"rebar": rebar_server(given.log, model=str(models / "smollm2.gguf"))}
    for name in ("smollm2", "smollm2-q4_0"):
        command = [str(python), str(HERE / "peers" / "serve_llama.py")]
        command += [str(models / f"{name}.gguf"), str(given.threads), str(CLIENTS)]
        log = given.log.with_name(f"load-{name}.log")
        found[f"llama-server {name}"] = server(command, log)
    return found


def prove(given: argparse.Namespace) -> list[Line]:
    """All rounds."""
    runs: dict[str, list[Facts]] = {}
    for number in range(given.rounds):
        for name, context in servers(given).items():
            with context as running:
                facts = measured(running, number, given.requests)
            note(f"{name}: {facts['output_tokens_s']:.0f} tokens/s, P99 TTFT "
                 f"{facts['ttft_ms']['p99']:.0f} ms, errors {facts['errors']}")  # fmt: skip
            runs.setdefault(name, []).append(facts)
    speed = {n: statistics.median(f["output_tokens_s"] for f in r) for n, r in runs.items()}
    first = {n: statistics.median(f["ttft_ms"]["p99"] for f in r) for n, r in runs.items()}
    ours = speed.pop("rebar"), first.pop("rebar")
    best, soonest = max(speed.values()), min(first.values())
    return [
        Line("16 clients, output tokens/s", f">= {TIMES} x llama-server", f"{ours[0]:.0f}",
             f"{best:.0f}", f"{ours[0] / best:.2f} x", ours[0] >= TIMES * best),
        Line("16 clients, P99 TTFT, ms", "lower", f"{ours[1]:.0f}", f"{soonest:.0f}",
             f"{ours[1] / soonest:.2f}", ours[1] < soonest),
    ]  # fmt: skip


def main() -> None:
    """Measures and prints."""
    given = arguments(__doc__, peers="", threads=2, rounds=3, requests=96)
    given.peers = Path(given.peers).resolve()
    raise SystemExit(finish(prove(given)))


if __name__ == "__main__":
    main()
