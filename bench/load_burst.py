"""Ten times what it can take, and who is urgent does not notice: python -m bench.load_burst

Quiet: urgent requests alone, a tenth of what it can take. Burst: the same ones while low requests
come at ten times the rate at which a busy server gets them through. The queue stays bounded,
refusals say when to come back, urgent answers begin nearly as soon as before, and every low request
that was let in is answered.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop
from bench.harness import Line, note
from bench.serving import Default, Running, Server, holds, rebar_server, run, scripted_server

from rebar.hal.processes import allow_connections
from rebar.insight.load import LoadRun, Pace, Tally
from rebar.insight.workload import Lengths, Workload

TIMES = 10
SLOWER = 1.5
PROMPT, OUTPUT = Lengths("uniform", 20, 200), Lengths("uniform", 16, 64)
DEFAULTS: dict[str, Default] = {
    "seconds": 30.0, "share": 0.1, "running": 64, "waiting": 256, "step_ms": 0.0,
}  # fmt: skip


def load(server: Server, priority: int, seed: int, **pace: float) -> LoadRun:
    """Requests of one priority (-1 high, 1 low)."""
    work = Workload(
        prompt=PROMPT, output=OUTPUT, seed=seed, extra={"priority": priority, "temperature": 0.7}
    )
    return LoadRun(server.target, work, Pace(**pace))  # type: ignore[arg-type]


async def together(*runs: LoadRun) -> list[Tally]:
    """Several runs at the same time."""
    return await asyncio.gather(*(run.drive() for run in runs))


def open_choices(server: Server) -> float:
    """As /metrics has them."""
    names = ("rebar_num_requests_running", "rebar_num_requests_waiting")
    return sum(server.metric(name) for name in names)


async def watch(server: Server, depths: list[float]) -> None:
    """Notes the number of open choices, again and again."""
    while True:
        depths.append(await asyncio.to_thread(open_choices, server))
        await asyncio.sleep(0.25)


def served(given: argparse.Namespace) -> Running:
    """The model; with --step-ms one that does nothing for so long a step, whatever the machine."""
    if given.step_ms:
        return scripted_server(given.log, given.running, given.waiting, given.step_ms / 1e3)
    bounds = ("--max-running", str(given.running), "--max-waiting", str(given.waiting))
    return rebar_server(given.log, *bounds, model=given.model)


def prove(given: argparse.Namespace) -> list[Line]:
    """Capacity, quiet, burst."""
    allow_connections()
    with (
        served(given) as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop,
    ):
        (busy,) = loop.run(together(load(server, 0, 1, concurrency=32, requests=96)))
        capacity = busy.completed / busy.seconds
        quiet_pace = {"rate": given.share * capacity, "duration": given.seconds}
        (quiet,) = loop.run(together(load(server, -1, 2, **quiet_pace)))
        note(f"capacity {capacity:.1f} requests/s; quiet P99 TTFT {quiet.ttft.percentile(99):.3f}")

        async def burst() -> list[Tally]:
            watcher = asyncio.create_task(watch(server, depths))
            try:
                return await together(
                    load(server, -1, 3, **quiet_pace),
                    load(server, 1, 4, rate=TIMES * capacity, duration=given.seconds),
                )
            finally:
                watcher.cancel()

        depths = [open_choices(server)]
        high, low = loop.run(burst())
        seconds = server.seconds_until_rest()
        errors = server.errors_logged()
    ratio = high.ttft.percentile(99) / max(quiet.ttft.percentile(99), 1e-9)
    middle = high.ttft.percentile(50) / max(quiet.ttft.percentile(50), 1e-9)
    bound, deepest = (given.running + given.waiting) * 9 // 8, max(depths)
    missing = low.refused - len(low.retry_after)
    other = {k: v for k, v in low.errors.items() if not k.startswith("http_429")}
    return [
        holds("choices open, at most", f"<= {bound}", f"{deepest:.0f}", deepest <= bound),
        holds(f"429s of {low.sent} low requests", "> 0", f"{low.refused}", low.refused > 0),
        holds("429s without Retry-After", "0", f"{missing}", missing == 0),
        holds("low: accepted and not answered", "0", f"{other or 0}", not other),
        holds("high: P99 TTFT, ms (quiet)", "", f"{high.ttft.percentile(99) * 1e3:.0f}", None,
              f"{quiet.ttft.percentile(99) * 1e3:.0f}"),
        holds("high: P99 TTFT over quiet", f"<= {SLOWER}", f"{ratio:.2f}", ratio <= SLOWER),
        holds("high: P50 TTFT over quiet", "", f"{middle:.2f}", None),
        holds("high: refused or failed", "0", f"{high.failed}", high.failed == 0),
        holds("at rest afterwards; errors logged", "0", f"{len(errors)}",
              not errors and seconds < 60),
    ]  # fmt: skip


if __name__ == "__main__":
    run(__doc__, prove, **DEFAULTS)
