"""What a run of load says: facts for machines, a table for people, and the formulas of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rebar.insight.load import LoadRun, Pace, Progress, Slo, Tally
from rebar.insight.load_target import CpuReading, LoadTarget
from rebar.insight.workload import Workload

Facts = dict[str, Any]

FORMULAS = (
    "TTFT  first arrival of text - moment the user came; connecting and waiting are in it",
    "ITL   an arrival of text - the one before it; what one read brings is one arrival",
    "TPOT  (last arrival of text - first) / (output tokens - 1)",
    "E2E   end of the answer - moment the user came",
    "Percentiles are nearest-rank over answers that came whole; output tokens are the server's.",
    "Goodput: answers a second that keep every limit of --slo (itl: the longest gap).",
)
BUSY_CLIENT = 0.8
"""Share of a core from which on the client's own work may be what is measured."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Of the server during a run. share: of all cores it may use; source: who said so."""

    share: float
    cores: int
    source: str

    @classmethod
    def between(
        cls, before: CpuReading | None, after: CpuReading | None, seconds: float
    ) -> CpuUse | None:
        """None where one end is not known."""
        if before is None or after is None or before.source != after.source or seconds <= 0:
            return None
        used = (after.seconds - before.seconds) / (seconds * after.cores)
        return cls(max(0.0, used), after.cores, after.source)


def measure_load(
    target: LoadTarget,
    workload: Workload,
    pace: Pace,
    slo: Slo,
    *,
    warm_up: int = 0,
    progress: Progress | None = None,
) -> Facts:
    """One run, after `warm_up` requests that do not count, and what it used of the server."""
    if warm_up:
        few = Pace(concurrency=1, requests=warm_up, timeout=pace.timeout)
        # Negative numbers: no prompt of the run is known to the server before it begins.
        if LoadRun(target, workload, few, first=-warm_up).run().interrupted:
            raise KeyboardInterrupt
    before = target.cpu()
    tally = LoadRun(target, workload, pace, slo=slo, progress=progress).run()
    use = CpuUse.between(before, target.cpu(), tally.seconds)
    return facts_of(tally, workload, pace, use) | {"url": target.base}


def facts_of(tally: Tally, workload: Workload, pace: Pace, use: CpuUse | None = None) -> Facts:
    """Facts about a run. Rates are a second of the whole run, its last answers included."""
    seconds = max(tally.seconds, 1e-9)
    facts: Facts = {
        "model": workload.model,
        "load": {
            "prompt_tokens": str(workload.prompt),
            "output_tokens": str(workload.output),
            "rate": pace.rate or None,
            "concurrency": pace.concurrency or None,
            "seed": workload.seed,
        },
        "interrupted": tally.interrupted,
        "seconds": round(tally.seconds, 3),
        "requests": tally.sent,
        "completed": tally.completed,
        "failed": tally.failed,
        "errors": dict(tally.errors),
        "error_rate": round(tally.error_rate, 5),
        "refused": tally.refused,
        "retry_after_s": _spread(tally.retry_after),
        "refused_without_retry_after": tally.refused - len(tally.retry_after),
        "left": tally.left,
        "broken_off": tally.aborted,
        "finish": dict(tally.finishes),
        "most_open": tally.most_open,
        "requests_s": round(tally.completed / seconds, 3),
        "goodput_s": round(tally.good / seconds, 3),
        "good_share": round(tally.good / tally.sent, 4) if tally.sent else 0.0,
        "prompt_tokens": tally.prompt_tokens,
        "cached_tokens": tally.cached_tokens,
        "output_tokens": tally.output_tokens,
        "output_tokens_s": round(tally.output_tokens / seconds, 2),
        "total_tokens_s": round((tally.prompt_tokens + tally.output_tokens) / seconds, 2),
        "events_s": round(tally.texts / seconds, 1),
        "client_core": round(tally.client_cpu / seconds, 3),
        "server_cpu": use and {
            "share": round(use.share, 3), "cores": use.cores, "source": use.source
        },
    }  # fmt: skip
    for name in ("ttft", "itl", "tpot", "e2e", "late"):
        facts[f"{name}_ms"] = getattr(tally, name).facts()
    return facts


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return {"least": min(values), "most": max(values)} if values else None


def table(facts: Facts) -> list[str]:
    """The facts for people."""
    load, cpu = facts["load"], facts["server_cpu"]
    pace = f"{load['rate']:g} requests/s, Poisson" if load["rate"] else "one after another"
    at_once = f", at most {load['concurrency']} at a time" if load["concurrency"] else ""
    lines = [
        f"{facts['url']}, {facts['model']}",
        f"prompts of {load['prompt_tokens']} tokens, answers of {load['output_tokens']}; "
        f"{pace}{at_once}; seed {load['seed']}",
        "",
        *_counts(facts),
        "",
        f"{'ms':<6}" + "".join(f"{name:>10}" for name in facts["ttft_ms"]),
    ]
    for name in ("ttft", "itl", "tpot", "e2e"):
        times = facts[f"{name}_ms"].values()
        lines.append(f"{name.upper():<6}" + "".join(f"{value:>10,.1f}" for value in times))
    busy = f"{cpu['share']:.0%} of {cpu['cores']} cores ({cpu['source']})" if cpu else "not known"
    lines += ["", f"server     {busy}", f"client     {facts['client_core']:.0%} of a core"]
    if facts["client_core"] > BUSY_CLIENT or facts["late_ms"]["p99"] > 50:
        lines.append(
            "           The client was short of processor time: the server may be faster than this."
        )
    return [*lines, "", *FORMULAS]


def _counts(facts: Facts) -> list[str]:
    lines = [
        f"requests   {facts['requests']:,} in {facts['seconds']:,.1f} s: {facts['completed']:,} "
        f"answered, {facts['failed']:,} failed ({facts['error_rate']:.2%}), {facts['left']:,} left"
        + (f", {facts['broken_off']:,} broken off by Ctrl-C" if facts["interrupted"] else ""),
    ]
    lines += [f"           {count:,} x {cause}" for cause, count in sorted(facts["errors"].items())]
    if wait := facts["retry_after_s"]:
        lines.append(f"           Retry-After {wait['least']:g} to {wait['most']:g} s")
    if missing := facts["refused_without_retry_after"]:
        lines.append(f"           {missing:,} refusals without Retry-After")
    ends = ", ".join(f"{count:,} {reason}" for reason, count in sorted(facts["finish"].items()))
    return [
        *lines,
        f"answers    {facts['requests_s']:,.2f}/s, good {facts['goodput_s']:,.2f}/s "
        f"({facts['good_share']:.1%} of all); ended by: {ends or '-'}; "
        f"at most {facts['most_open']:,} open",
        f"tokens     {facts['output_tokens_s']:,.1f}/s out, {facts['total_tokens_s']:,.1f}/s with "
        f"prompts, {facts['cached_tokens']:,} of {facts['prompt_tokens']:,} prompt tokens cached; "
        f"{facts['events_s']:,.0f} events/s",
    ]
