"""The engine is killed under open streams, and no client can tell: python -m bench.load_kills

32 streams at a time over HTTP, greedy, seeded, held to a grammar, ended by stop strings. SIGKILL at
random moments, twenty times; then SIGSTOP. Every text must be the one of a run in which nothing
happened. Printed: lost and changed streams, how long until an engine computes again, the longest
gap that any client saw, and where it went: what the front says of each engine that took over.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bench.harness import Line, note
from bench.serving import Default, Server, corpus, holds, rebar_server, run, text_of

from rebar.insight.load import LoadRun, Pace
from rebar.insight.workload import Ask, Lengths, Workload

STREAMS = 32
BACK_SECONDS, GAP_SECONDS, NOTICED_SECONDS = 1.0, 4.0, 5.0
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.3},
    {"temperature": 0.8, "guided_regex": "([A-Za-z]{2,9}[ ,.]){40,80}"},
    {"temperature": 0.7, "stop": ["\n\n\n", "the end", "lord"]},
)
DEFAULTS: dict[str, Default] = {"requests": 320, "kills": 20, "stops": 3}


class Mixed(Workload):
    """Four kinds of sampling in turns."""

    def ask(self, number: int) -> Ask:
        """The request of this number."""
        extra = {"seed": number} | KINDS[number % len(KINDS)]
        return replace(self, extra=extra)._plain(number)

    def _plain(self, number: int) -> Ask:
        return Workload.ask(self, number)


@dataclass(slots=True)
class Trouble:
    """Sends a signal to the engine at random moments while streams are open. back: seconds until
    the next engine computes; noticed: until the front ended the one that was stopped.
    """

    server: Server
    kind: signal.Signals
    times: int
    done: int = 0
    back: list[float] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def make(self) -> None:
        """In a thread of its own."""
        chance = random.Random(3)
        while self.done < self.times and not self.ended.is_set():
            time.sleep(chance.uniform(0.05, 1.5))
            pid = self.server.engine_pid()
            if pid is None or self.ended.is_set():
                continue
            restarts = self.server.metric("rebar_engine_restarts_total")
            os.kill(pid, self.kind)
            begin = time.monotonic()
            self.done += 1
            self._wait(partial(self._replaced, restarts))
            self.noticed.append(time.monotonic() - begin)
            self._wait(lambda: self.server.metric("rebar_engine_up") == 1)
            self.back.append(time.monotonic() - begin - self.noticed[-1])
            self._wait(self._flowing)

    def _replaced(self, restarts: float) -> bool:
        return self.server.metric("rebar_engine_restarts_total") > restarts

    def _flowing(self) -> bool:
        """Whether all contexts are computed anew and every open stream decodes: a gap is then one
        kill's, and a kill comes at any moment of flowing streams.
        """
        for _ in range(3):
            if self.server.metric("dfp_batch_size_current") > STREAMS:
                return False
            time.sleep(0.02)
        return self.server.metric("rebar_num_requests_waiting") == 0

    def _wait(self, true: Callable[[], bool]) -> None:
        while not true() and not self.ended.is_set():
            time.sleep(0.01)


def workload() -> Mixed:
    """Long enough answers that streams are open at every moment."""
    return Mixed(
        prompt=Lengths("uniform", 20, 120), output=Lengths("uniform", 100, 250), seed=5,
        route="completions", text=corpus(), per_token=4.2,
    )  # fmt: skip


def run_under(server: Server, requests: int, trouble: Trouble | None) -> tuple[LoadRun, float]:
    """All requests, 32 at a time, under trouble."""
    pace = Pace(concurrency=STREAMS, requests=requests, timeout=300)
    load = LoadRun(server.target, workload(), pace, keep=True)
    thread = threading.Thread(target=trouble.make) if trouble else None
    if thread:
        thread.start()
    tally = load.run()
    if trouble and thread:
        trouble.ended.set()
        thread.join()
    return load, tally.itl.greatest


SAID = "the next engine goes on: "


def taken_over(server: Server) -> list[str]:
    """What the front has said of each so far."""
    lines = server.log.read_text().splitlines()
    return [line.partition(SAID)[2] for line in lines if SAID in line]


def slowest(said: list[str], moment: str) -> Line:
    """The worst of the times until that moment, counted from when the end was noticed."""
    found = [
        float(match[1]) for line in said if (match := re.search(rf"{moment} ([\d.]+) s", line))
    ]
    middle, worst = (statistics.median(found), max(found)) if found else (0.0, 0.0)
    ours = f"{middle:.2f}, {worst:.2f}"
    return holds(f"of it until {moment}, s: median, worst", "", ours, None)


def lines_of(
    name: str,
    expected: dict[int, str],
    load: LoadRun,
    gap: float,
    trouble: Trouble,
    said: list[str],
) -> list[Line]:
    """What one kind of trouble did."""
    texts = {n: text_of(o) for n, o in load.outcomes.items() if o.good}
    lost = load.tally.sent - load.tally.completed
    changed = sum(expected[n] != text for n, text in texts.items())
    note(f"{name}: back {[round(s, 2) for s in trouble.back]} errors {dict(load.tally.errors)}")
    note("\n".join(f"  {line}" for line in said))
    back, noticed = max(trouble.back, default=0.0), max(trouble.noticed, default=0.0)
    want = f"{trouble.times}"
    return [
        holds(f"{name}: times", want, f"{trouble.done}", trouble.done == trouble.times),
        holds(f"{name}: streams lost of {load.tally.sent}", "0", f"{lost}", lost == 0),
        holds(f"{name}: texts changed", "0", f"{changed}", changed == 0),
        holds(f"{name}: noticed, s, worst", f"< {NOTICED_SECONDS}", f"{noticed:.2f}",
              noticed < NOTICED_SECONDS),
        holds(f"{name}: next engine computes, s, worst", f"< {BACK_SECONDS}", f"{back:.2f}",
              back < BACK_SECONDS),
        holds(f"{name}: longest gap of a client, s", f"< {GAP_SECONDS}", f"{gap:.2f}",
              gap < GAP_SECONDS),
        *(slowest(said, moment) for moment in ("ready", "first ids", "all streams")),
    ]  # fmt: skip


def prove(given: argparse.Namespace) -> list[Line]:
    """Quiet, then killed, then stopped."""
    lines: list[Line] = []
    with rebar_server(given.log, model=given.model) as server:
        quiet, gap = run_under(server, given.requests, None)
        expected = {n: text_of(o) for n, o in quiet.outcomes.items()}
        note(f"quiet: {quiet.tally.seconds:.0f} s, longest gap {gap:.2f} s")
        for name, kind, times in (
            ("SIGKILL", signal.SIGKILL, given.kills),
            ("SIGSTOP", signal.SIGSTOP, given.stops),
        ):
            if not times:
                continue
            trouble, before = Trouble(server, kind, times), len(taken_over(server))
            load, gap = run_under(server, given.requests, trouble)
            said = taken_over(server)[before:]
            lines += lines_of(name, expected, load, gap, trouble, said)
    return lines


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
