"""A beginning that was computed before: python -m bench.load_prefix

Pairs of requests that share a prefix of 1,000 tokens and differ after it, one after another on an
idle server. The second one's TTFT against the first one's; and the second one's text against a
server that has never seen the prefix.
"""

from __future__ import annotations

import argparse
import statistics

from bench.harness import Line, note
from bench.serving import Default, Server, corpus, holds, rebar_server, run, text_of

from rebar.insight.load import LoadRun, Pace, times_of
from rebar.insight.workload import Lengths, Workload

PREFIX, TAIL = 1000, 30
SHARE = 0.15
DEFAULTS: dict[str, Default] = {"pairs": 5}


def ask(server: Server, pair: int, number: int) -> tuple[float, str, int]:
    """TTFT, text and cached tokens of one request of a pair."""
    text = corpus()
    start = 4000 * pair  # another prefix for each pair
    workload = Workload(
        prompt=Lengths("constant", PREFIX + TAIL), output=Lengths("constant", 32), seed=pair,
        text=text[start:] + " " + text[:start], shared=PREFIX, route="completions",
        per_token=server.target.characters_per_token(text) or 4.2,
        extra={"temperature": 0.7, "seed": pair},
    )  # fmt: skip
    load = LoadRun(
        server.target, workload, Pace(concurrency=1, requests=1), keep=True, first=number
    )
    load.run()
    outcome = load.outcomes[number]
    return times_of(outcome).ttft or 0.0, text_of(outcome), outcome.cached_tokens


def prove(given: argparse.Namespace) -> list[Line]:
    """All pairs; then the second ones alone."""
    firsts, seconds, texts, cached = [], [], [], []
    with rebar_server(given.log, model=given.model) as server:
        ask(server, 7, 5)  # the first request of a process pays for pages
        for pair in range(given.pairs):
            first, _, _ = ask(server, pair, 0)
            second, text, known = ask(server, pair, 1)
            firsts.append(first)
            seconds.append(second)
            texts.append(text)
            cached.append(known)
    with rebar_server(given.log, model=given.model) as server:
        alone = [ask(server, pair, 1)[1:] for pair in range(given.pairs)]
    note(f"cached tokens {cached}; alone {[known for _, known in alone]}")
    same = sum(text == other for text, (other, _) in zip(texts, alone, strict=True))
    a, b = statistics.median(firsts), statistics.median(seconds)
    return [
        Line("TTFT with a prefix of 1,000 known, ms", f"<= {SHARE:.0%} of the first one's",
             f"{b * 1e3:.0f}", f"{a * 1e3:.0f}", f"{b / a:.1%}", b / a <= SHARE),
        holds("texts as on a server that never saw it", f"{given.pairs}", f"{same}",
              same == given.pairs),
    ]  # fmt: skip


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
