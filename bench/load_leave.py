"""500 users leave at random moments: python -m bench.load_leave

Within a second of the last one's leaving every KV block is free, gauges are at 0 and no error is
in the log.
"""

from __future__ import annotations

import argparse

from bench.harness import Line
from bench.serving import Default, holds, rebar_server, run

from rebar.insight.load import LoadRun, Pace
from rebar.insight.workload import Lengths, Workload

WITHIN = 1.0
DEFAULTS: dict[str, Default] = {"users": 500, "seconds": 5.0}


def prove(given: argparse.Namespace) -> list[Line]:
    """One storm; they wait, are in their prompts, in their answers."""
    with rebar_server(given.log, "--max-waiting", str(given.users), model=given.model) as server:
        workload = Workload(
            prompt=Lengths("uniform", 20, 400),
            output=Lengths("uniform", 100, 400),
            leave=1.0,
            hurry=given.seconds,
            extra={"ignore_eos": True},
        )
        pace = Pace(concurrency=given.users, requests=given.users, timeout=120)
        tally = LoadRun(server.target, workload, pace).run()
        seconds = server.seconds_until_rest()
        aborted = server.metric("rebar_request_aborts_total")
        errors = server.errors_logged()
    return [
        holds(f"failed of {given.users} users", "0", f"{tally.failed}", tally.failed == 0),
        holds("left before their answer was whole", "", f"{tally.left}", None),
        holds("s until all blocks free, gauges 0", f"< {WITHIN}", f"{seconds:.2f}",
              seconds < WITHIN),
        holds("aborts counted", "", f"{aborted:.0f}", None),
        holds("errors logged", "0", f"{len(errors)}", not errors),
    ]  # fmt: skip


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
