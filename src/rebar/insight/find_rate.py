"""The highest rate of requests that a server takes within a service level, found by halving.

A rate is good when the P99 of TTFT and the share of errors stay below their limits over one run of
Poisson arrivals. The search first asks how much gets through when the server is always busy (closed
loop), which no rate in keeping with a limit on waiting can exceed, and then halves the interval
between the best good rate and the least bad one. The best is run once more with other arrivals:
only what holds twice is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rebar.insight.load import Pace, Slo
from rebar.insight.load_report import Facts, measure_load
from rebar.insight.load_target import LoadTarget
from rebar.insight.workload import Workload

SATURATING = 32
"""Requests at a time that keep a server busy."""
LEAST_REQUESTS = 150
"""In a run: the P99 is then below the worst of at least one other."""
STEPS = 6
"""Halvings: within a 64th of the interval."""
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """ttft: seconds, P99. errors: share of requests. busy: least share of the cores."""

    ttft: float = 0.350
    errors: float = 0.003
    busy: float = 0.65

    def kept(self, facts: Facts) -> bool:
        """Whether users were served within it."""
        slow = facts["ttft_ms"]["p99"] / 1e3
        return bool(facts["completed"]) and slow < self.ttft and facts["error_rate"] < self.errors


@dataclass(frozen=True, slots=True)
class RateSearch:
    """What is searched. seconds: the length of a run, at least."""

    target: LoadTarget
    workload: Workload
    level: ServiceLevel
    seconds: float
    timeout: float
    report: Report

    def find(self) -> Facts:
        """Facts: rate (0: none is good), the facts of its run, and whether the cores were busy
        (None: not known). runs: every rate that was tried.
        """
        most = self._capacity()
        tried: dict[float, Facts] = {}
        good, bad = 0.0, most
        for _ in range(STEPS):
            rate = (good + bad) / 2
            tried[rate] = self._run(rate, len(tried) + 1)
            good, bad = (rate, bad) if self.level.kept(tried[rate]) else (good, rate)
        good, found = self._confirmed(good, tried)
        return self._facts(good, found, most, tried)

    def _confirmed(self, good: float, tried: dict[float, Facts]) -> tuple[float, Facts | None]:
        """The best rate that is good twice."""
        for rate in sorted((r for r in tried if r <= good), reverse=True):
            if not self.level.kept(tried[rate]):
                continue
            again = self._run(rate, 100 + len(tried))
            if self.level.kept(again):
                return rate, again
        return 0.0, None

    def _capacity(self) -> float:
        """Requests a second when there is always one waiting."""
        pace = Pace(concurrency=SATURATING, requests=4 * SATURATING, timeout=self.timeout)
        facts = measure_load(self.target, self.workload, pace, Slo(ttft=self.level.ttft), warm_up=2)
        if facts["interrupted"]:
            raise KeyboardInterrupt
        self.report(f"always busy: {facts['requests_s']:.2f} requests/s get through")
        return float(facts["requests_s"]) or 1.0

    def _run(self, rate: float, number: int) -> Facts:
        seconds = max(self.seconds, LEAST_REQUESTS / rate)
        # Other arrivals and other prompts: what the server has cached of the run before is no help.
        workload = replace(self.workload, seed=self.workload.seed + 1000 * number)
        pace = Pace(rate=rate, duration=seconds, timeout=self.timeout)
        facts = measure_load(self.target, workload, pace, Slo(ttft=self.level.ttft))
        if facts["interrupted"]:
            raise KeyboardInterrupt
        cpu = facts["server_cpu"]
        self.report(
            f"{rate:.2f} requests/s: P99 TTFT {facts['ttft_ms']['p99']:.0f} ms, errors "
            f"{facts['error_rate']:.2%}, cores {cpu['share']:.0%} busy"
            if cpu
            else f"{rate:.2f} requests/s: P99 TTFT {facts['ttft_ms']['p99']:.0f} ms, errors "
            f"{facts['error_rate']:.2%}"
        )
        return facts

    def _facts(
        self, rate: float, found: Facts | None, most: float, tried: dict[float, Facts]
    ) -> Facts:
        cpu = found["server_cpu"] if found else None
        return {
            "rate": round(rate, 3),
            "capacity": round(most, 3),
            "level": {
                "ttft_p99_ms": self.level.ttft * 1e3,
                "errors": self.level.errors,
                "busy": self.level.busy,
            },
            "busy_enough": None if cpu is None else cpu["share"] > self.level.busy,
            "run": found,
            "runs": [
                {"rate": round(rate, 3), "kept": self.level.kept(run), "ttft_ms": run["ttft_ms"]}
                for rate, run in sorted(tried.items())
            ],
        }  # fmt: skip


def rate_table(facts: dict[str, Any]) -> list[str]:
    """The verdict for people."""
    level, run = facts["level"], facts["run"]
    asked = f"P99 TTFT < {level['ttft_p99_ms']:.0f} ms, errors < {level['errors']:.1%}"
    if not run:
        return [f"no rate keeps {asked}; always busy it answers {facts['capacity']:.2f} requests/s"]
    cpu = run["server_cpu"]
    busy = f"{cpu['share']:.0%} of {cpu['cores']} cores busy" if cpu else "busy cores: not known"
    verdict = {True: "yes", False: "no", None: "not known"}[facts["busy_enough"]]
    return [
        f"{facts['rate']:.2f} requests/s keep {asked}",
        f"  P99 TTFT {run['ttft_ms']['p99']:.0f} ms, errors {run['error_rate']:.2%}, "
        f"{run['output_tokens_s']:,.0f} tokens/s out, {busy}",
        f"  more than {level['busy']:.0%} of the cores busy: {verdict}; always busy it answers "
        f"{facts['capacity']:.2f} requests/s",
    ]
