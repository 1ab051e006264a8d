"""Events a second through HTTP, over a model that costs nothing: python -m bench.load_front

1,000 streams at a time over the real scheduler, messages, front and sockets; only the model is
scripted. Each stream is 200 tokens; a step comes every 40 ms, so 25,000 tokens a second are said
and what the front cannot pass on in time is joined: the events that arrive are what it managed.
Every text must be whole. Load, engine and front share the machine's cores.
"""

from __future__ import annotations

import argparse

from bench.harness import Line, note
from bench.serving import Default, Server, holds, run, scripted_server, text_of

from rebar.insight.load import LoadRun, Pace, Tally
from rebar.insight.workload import Lengths, Workload

TARGET = 20_000.0
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
DEFAULTS: dict[str, Default] = {"streams": 1000, "tokens": 200, "runs": 10, "step_ms": 40.0}


def expected(first: int, count: int) -> str:
    """What the scripted model says from a position on."""
    return "".join(ALPHABET[(first + i) % 26] for i in range(count))


def one_run(server: Server, streams: int, tokens: int, seed: int) -> tuple[Tally, int, float]:
    """The tally, texts that are not whole, and events a second in the middle half of the time in
    which events came: without the thousand requests' own reading, without the last ones' end.
    """
    workload = Workload(
        prompt=Lengths("uniform", 20, 200),
        output=Lengths("constant", tokens),
        seed=seed,
        model="scripted",
        per_token=1.0,
        extra={"temperature": 0},
    )
    pace = Pace(concurrency=streams, requests=streams, timeout=120)
    load = LoadRun(server.target, workload, pace, keep=True)
    tally = load.run()
    lost = 0
    for outcome in load.outcomes.values():
        whole = expected(outcome.prompt_tokens - 1, tokens)
        lost += not outcome.good or text_of(outcome) != whole
    moments = sorted(m for outcome in load.outcomes.values() for m in outcome.moments)
    begin, end = moments[0], moments[-1]
    quarter = (end - begin) / 4
    arrived = sum(begin + quarter <= moment <= end - quarter for moment in moments)
    return tally, lost, arrived / (2 * quarter)


def prove(given: argparse.Namespace) -> list[Line]:
    """The runs, one after another on one server."""
    rates, lost, cpu, events = [], 0, 0.0, 0
    with scripted_server(given.log, given.streams, given.streams, given.step_ms / 1e3) as server:
        for number in range(given.runs):
            before = server.metric("rebar_process_cpu_seconds_total", process="front")
            tally, missing, rate = one_run(server, given.streams, given.tokens, number)
            cpu += server.metric("rebar_process_cpu_seconds_total", process="front") - before
            events += tally.texts
            lost += missing
            rates.append(rate)
            note(f"run {number + 1}: {rate:,.0f} events/s, {missing} lost, {dict(tally.errors)}")
        errors = server.errors_logged()
    best, least = max(rates), min(rates)
    return [
        holds("events/s through HTTP, best run", f"{TARGET:,.0f}", f"{best:,.0f}", best >= TARGET),
        holds("events/s, worst run", "", f"{least:,.0f}", None),
        holds("front's processor time, us an event", "", f"{cpu / events * 1e6:.1f}", None),
        holds(f"streams lost of {given.streams * given.runs:,}", "0", f"{lost}", lost == 0),
        holds("errors logged", "0", f"{len(errors)}", not errors),
    ]


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
