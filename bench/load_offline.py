"""What HTTP costs: python -m bench.load_offline

16 streams over HTTP beside the same batch without a server (`rebar bench engine`, 16 rows), in
turns; tokens a second while all 16 are open, medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics

from bench.harness import Line, measure, note, rebar
from bench.serving import Default, Server, rebar_server, run

from rebar.insight.load import LoadRun, Pace
from rebar.insight.workload import Lengths, Workload

STREAMS, TOKENS = 16, 256
TARGET = 0.85
FIGURE = "decode16"
DEFAULTS: dict[str, Default] = {"rounds": 3}


def over_http(server: Server, seed: int) -> float:
    """Tokens a second from the first text of the last stream to the last text of the first."""
    workload = Workload(
        prompt=Lengths("constant", 16), output=Lengths("constant", TOKENS), seed=seed,
        extra={"ignore_eos": True, "temperature": 0},
    )  # fmt: skip
    pace = Pace(concurrency=STREAMS, requests=STREAMS, timeout=120)
    load = LoadRun(server.target, workload, pace, keep=True)
    load.run()
    answers = list(load.outcomes.values())
    begin = max(outcome.moments[0] for outcome in answers)
    end = min(outcome.moments[-1] for outcome in answers)
    # A token an arrival, unless arrivals were joined: the server's count says how many those hold.
    tokens = sum(
        sum(begin < m <= end for m in o.moments) * o.tokens / len(o.moments) for o in answers
    )
    return tokens / (end - begin)


def prove(given: argparse.Namespace) -> list[Line]:
    """In turns."""
    served, offline = [], []
    command = rebar("bench", "engine", given.model, "--only", FIGURE, "--repeats", "2", "--json")
    for number in range(given.rounds):
        facts = measure(command) or {}
        offline.append(facts["figures"][FIGURE]["tok_s"])
        with rebar_server(given.log, model=given.model) as server:
            over_http(server, 1000 + number)
            served += [over_http(server, 2 * number + i) for i in range(2)]
        note(f"round {number + 1}: {served[-1]:.0f} over HTTP, {offline[-1]:.0f} without")
    ours, theirs = statistics.median(served), statistics.median(offline)
    share = ours / theirs
    return [
        Line("tokens/s of 16 streams over HTTP", f">= {TARGET:.0%} of the batch without a server",
             f"{ours:.0f}", f"{theirs:.0f}", f"{share:.0%}", share >= TARGET)
    ]  # fmt: skip


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
