"""A thousand streams at once on a real model, each answer as alone: python -m bench.load_crowd

Prompts of 20-200 tokens, answers of 16-64, sampled with a seed. First all at once, then on a fresh
server one by one; every text must be the same. Peak memory of both processes is printed beside what
was planned before anything was loaded. --alone N compares the first N only.
"""

from __future__ import annotations

import argparse
import re

from bench.harness import Line, note
from bench.serving import Default, corpus, holds, rebar_server, run, text_of

from rebar.insight.load import LoadRun, Pace, Tally
from rebar.insight.load_target import LoadTarget
from rebar.insight.workload import Workload

FRONT_MB = 400
"""A front that holds 1,000 requests: some 100 MB of Python and tables, the rest for them."""
BESIDE_PLAN_MB = 160
"""Python, libraries and tables of the tokenizer in the engine, beside its planned pools."""
DEFAULTS: dict[str, Default] = {"streams": 1000, "alone": 0}


def texts(target: LoadTarget, streams: int, at_once: int) -> tuple[Tally, dict[int, str]]:
    """All answers, so many at a time."""
    text = corpus()
    workload = Workload(
        seed=11,
        text=text,
        per_token=target.characters_per_token(text) or 4.5,
        extra={"temperature": 0.8, "seed": 7},
    )
    pace = Pace(concurrency=at_once, requests=streams, timeout=900)
    load = LoadRun(target, workload, pace, keep=True)
    tally = load.run()
    return tally, {n: text_of(o) for n, o in load.outcomes.items() if o.good}


def planned_mb(log: str) -> float:
    """The total of the memory plan that the server printed."""
    found = re.search(r"^\s+total\s+([\d,.]+) MB", log, re.M)
    return float(found[1].replace(",", "")) if found else 0.0


def prove(given: argparse.Namespace) -> list[Line]:
    """Together, then alone."""
    flags = ("--max-waiting", str(given.streams))
    with rebar_server(given.log, *flags, model=given.model) as server:
        tally, together = texts(server.target, given.streams, given.streams)
        peak = {name: nbytes / 1e6 for name, nbytes in server.peak_bytes().items()}
        rest = server.seconds_until_rest()
        errors = server.errors_logged()
        plan = planned_mb(given.log.read_text())
    note(f"together: {tally.seconds:.0f} s, {tally.output_tokens / tally.seconds:.0f} tokens/s")
    with rebar_server(given.log, *flags, model=given.model) as server:
        after, alone = texts(server.target, given.alone or given.streams, 1)
    note(f"alone: {after.seconds:.0f} s, {after.output_tokens / after.seconds:.0f} tokens/s")
    same = sum(together.get(number) == text for number, text in alone.items())
    count, limit, asked = given.streams, plan + BESIDE_PLAN_MB, after.sent
    front, engine = peak["front"], peak["engine"]
    return [
        holds("streams at once", f"{count}", f"{tally.most_open}", tally.most_open == count),
        holds("complete", f"{count}", f"{tally.completed}", tally.completed == count),
        holds("texts equal to their alone run", f"{asked}", f"{same}", same == asked),
        holds("peak RSS of the front, MB", f"< {FRONT_MB}", f"{front:.0f}", front < FRONT_MB),
        holds("peak RSS of the engine, MB", f"< {limit:.0f}", f"{engine:.0f}", engine < limit),
        holds("errors logged, blocks held after", "0", f"{len(errors)}", not errors and rest < 60),
        holds("output tokens/s", "", f"{tally.output_tokens / tally.seconds:.0f}", None),
    ]


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
