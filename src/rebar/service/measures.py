"""What the front measures of every choice, per model. Plain integers; nothing is formatted here.

Times are the client's: they begin when the request arrived, so waiting, restarts of the engine and
everything else is in them. count(first token) <= count(accepted) always holds: a choice is booked
when it is accepted, once when its first token comes, once when it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rebar.service.messages import DEADLINE, ChoiceRecord, Delta, Failure

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.35, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of whole times; 0.35 s is the service level of the reports (P99)."""
TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
"""Bounds of times between tokens; 0.05 s is as fast as anybody reads."""
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)

CODES = frozenset({"stopping", "timeout", "engine_ended", DEADLINE})
"""Causes of failures that have a series of their own; a label is never what a client sent."""


def counted(*causes: str) -> Callable[[], Counter[str]]:
    """Makes counters that begin at 0: a series that first appears with its first event shows
    Prometheus no increase, and the alert on it sleeps through just that event.
    """
    return lambda: Counter(dict.fromkeys(causes, 0))


class Histogram:
    """Counts by upper bound, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Adds one measurement."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Measurements so far."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them."""
        out, sum_so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            out.append((bound, float(sum_so_far)))
        return out


def cause_of(failure: Failure) -> str:
    """A failure as a label."""
    if failure.code in CODES:
        return failure.code
    return "caller" if failure.caller else "engine"


@dataclass(slots=True)
class ChoiceTimes:
    """An open choice: when its request arrived, when it last said something (None: not yet), and
    how many ids it has sampled. prompt: tokens of its prompt. adapter: its digest, "" for none.
    Seconds of the service's clock."""

    arrived: float
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    prompt: int = 0
    adapter: str = ""


@dataclass(slots=True)
class Measures:
    """Of one model. accepted: choices given to the engine; finished, failed, refused and aborted
    by cause: choices that ended."""

    first_token: Histogram = field(default_factory=Histogram)
    inter_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    per_output_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    whole: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    accepted: int = 0
    finished: Counter[str] = field(default_factory=counted("stop", "length"))
    failed: Counter[str] = field(default_factory=counted("caller", "engine", *sorted(CODES)))
    refused: Counter[str] = field(default_factory=counted("queue_full"))
    aborted: Counter[str] = field(default_factory=counted("client_left"))

    def take(self, times: ChoiceTimes, delta: Delta, now: float) -> None:
        """Books what a choice said."""
        if delta.ids:
            if times.first is None:
                times.first = now
                self.first_token.observe(now - times.arrived)
                self._begin(delta.record)
            else:
                self.inter_token.observe(now - times.last)
            times.last = now
            times.tokens += len(delta.ids)
        if delta.failure is not None:
            self.failed[cause_of(delta.failure)] += 1
        elif delta.finish is not None:
            self._finish(times, "embedding" if delta.vector else delta.finish, now)

    def _begin(self, record: ChoiceRecord | None) -> None:
        if record is not None and record.admitted is not None and record.first_token is not None:
            self.queue.observe(record.admitted)
            self.prefill.observe(record.first_token - record.admitted)

    def _finish(self, times: ChoiceTimes, reason: str, now: float) -> None:
        self.finished[reason] += 1
        self.whole.observe(now - times.arrived)
        if reason != "embedding":
            self.output_tokens.observe(times.tokens)
        if times.first is not None and times.tokens > 1:
            self.per_output_token.observe((now - times.first) / (times.tokens - 1))
