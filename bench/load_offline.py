"""What HTTP costs: python -m bench.load_offline

16 streams over HTTP beside the same batch without a server, in turns; tokens a second while all 16
are open, medians of the rounds. Twice: short streams beside `rebar bench engine` (rows 16, which
stands at a depth of 16 to 48 positions), and long ones beside a batch that goes as deep as they do,
for a step at a depth of 300 reads a third more than one at 30.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field

from bench.batch import ROWS
from bench.harness import Command, Facts, Line, measure, note, rebar
from bench.serving import Default, Server, rebar_server, run

from rebar.insight.load import LoadRun, Pace
from rebar.insight.workload import Lengths, Route, Workload

TARGET = 0.85
FIGURE = "decode16"
DEFAULTS: dict[str, Default] = {"rounds": 3}


@dataclass(slots=True)
class Streams:
    """Streams of one length. served, offline: tokens a second; depth: of their prompts."""

    name: str
    route: Route
    tokens: int
    runs: int
    served: list[float] = field(default_factory=list)
    offline: list[float] = field(default_factory=list)
    depth: int = 0

    def ask(self, server: Server, seed: int) -> float:
        """Tokens a second from the first text of the last stream to the last text of the first."""
        workload = Workload(
            prompt=Lengths("constant", 16), output=Lengths("constant", self.tokens), seed=seed,
            route=self.route, extra={"ignore_eos": True, "temperature": 0},
        )  # fmt: skip
        pace = Pace(concurrency=ROWS, requests=ROWS, timeout=120)
        load = LoadRun(server.target, workload, pace, keep=True)
        load.run()
        answers = list(load.outcomes.values())
        self.depth = max(outcome.prompt_tokens for outcome in answers)
        begin = max(outcome.moments[0] for outcome in answers)
        end = min(outcome.moments[-1] for outcome in answers)
        # A token an arrival, unless arrivals were joined: the server's count says how many.
        tokens = sum(
            sum(begin < m <= end for m in o.moments) * o.tokens / len(o.moments) for o in answers
        )
        return tokens / (end - begin)

    def line(self) -> Line:
        """The medians beside each other."""
        ours, theirs = statistics.median(self.served), statistics.median(self.offline)
        what = f"tokens/s of {ROWS} streams of {self.tokens} over HTTP, beside {self.name}"
        share = ours / theirs
        return Line(
            what, f">= {TARGET:.0%}", f"{ours:.0f}", f"{theirs:.0f}", f"{share:.0%}",
            share >= TARGET,
        )  # fmt: skip


def offline_rate(command: Command, *path: str) -> float:
    """The number at `path` of what the command prints."""
    facts: Facts = measure(command) or {}
    for key in path:
        facts = facts[key]
    return float(facts["tok_s"])


def prove(given: argparse.Namespace) -> list[Line]:
    """In turns."""
    short = Streams("`rebar bench engine`, rows 16", "completions", 64, 6)
    long = Streams("the same batch", "chat", 256, 2)
    engine = rebar("bench", "engine", given.model, "--only", FIGURE, "--repeats", "2", "--json")
    for number in range(given.rounds):
        with rebar_server(given.log, model=given.model) as server:
            for streams in (short, long):
                streams.ask(server, 1000 + number)  # the first steps at a new width
                seeds = range(streams.runs * number, streams.runs * (number + 1))
                streams.served += [streams.ask(server, seed) for seed in seeds]
        short.offline.append(offline_rate(engine, "figures", FIGURE))
        batch = [sys.executable, "-m", "bench.batch", given.model, str(long.depth), "256"]
        long.offline.append(offline_rate(batch))
        for streams in (short, long):
            ours, theirs = streams.served[-1], streams.offline[-1]
            note(f"round {number + 1}: {ours:.0f} over HTTP, {theirs:.0f} without")
    return [short.line(), long.line()]


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
