"""Load as users make it: they come when they come (open loop), read what streams, and some leave.

The law: a time begins when a user comes, not when this program got round to sending; a server
that answers late cannot slow the arrivals down (no coordinated omission). What the client itself
used of its core is part of the result: a client at its limit measures itself.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import uvloop

from rebar.errors import InputError
from rebar.hal.processes import allow_connections
from rebar.insight.exchange import Exchange, Outcome
from rebar.insight.latency import Latencies
from rebar.insight.load_target import LoadTarget
from rebar.insight.workload import PATHS, Ask, Workload, arrivals

Progress = Callable[[float, "Tally"], None]
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Slo:
    """What a user calls good, in seconds; None: whatever. itl: the longest gap of the answer."""

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """ "ttft=350ms,itl=0.1s"; "" for none. InputError for what is no limit."""
        limits: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            match = re.fullmatch(r"\s*(ttft|itl|tpot|e2e)=([0-9]+(?:\.[0-9]+)?)(ms|s)\s*", part)
            if not match:
                raise InputError(
                    f"{part!r} is no limit. Write ttft=350ms,itl=100ms (also tpot, e2e; ms or s).",
                    param="slo",
                )
            limits[match[1]] = float(match[2]) / (1000 if match[3] == "ms" else 1)
        return cls(**limits)

    def met(self, outcome: Outcome) -> bool:
        """Whether a good answer came so."""
        times = times_of(outcome)
        return all(
            getattr(self, name) is None or value is None or value <= getattr(self, name)
            for name, value in (
                ("ttft", times.ttft),
                ("itl", max(times.gaps, default=None)),
                ("tpot", times.tpot),
                ("e2e", times.e2e),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How requests come. rate: a second, Poisson; 0: the next when one ends. concurrency: most at
    a time (0: no bound; with a rate, who comes then waits, and the wait counts). requests,
    duration: where it ends, whichever is first. timeout: seconds that a user waits for an end.
    """

    rate: float = 0.0
    concurrency: int = 0
    requests: int | None = None
    duration: float | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.rate < 0 or self.concurrency < 0 or self.timeout <= 0:
            raise InputError("Rates, concurrency and time-outs are no negative numbers.")
        if not self.rate and not self.concurrency:
            raise InputError("Give --rate (open loop) or --concurrency (closed loop).")
        if not self.requests and not self.duration:
            raise InputError("Give --requests or --duration: a run needs an end.")


@dataclass(slots=True)
class Times:
    """Of one answer, in seconds; see load_report.FORMULAS. None: it had no such time."""

    ttft: float | None
    gaps: list[float]
    tpot: float | None
    e2e: float


def times_of(outcome: Outcome) -> Times:
    """The times of an answer that came whole."""
    moments, tokens = outcome.moments, outcome.tokens
    gaps = [b - a for a, b in itertools.pairwise(moments)]
    tpot = (moments[-1] - moments[0]) / (tokens - 1) if moments and tokens > 1 else None
    ttft = moments[0] - outcome.due if moments else None
    return Times(ttft, gaps, tpot, outcome.ended - outcome.due)


@dataclass(slots=True)
class Tally:
    """What a run has brought so far. Latencies are those of answers that came whole; late: of
    sending, behind the moment a user came.
    """

    slo: Slo = field(default_factory=Slo)
    sent: int = 0
    open: int = 0
    most_open: int = 0
    completed: int = 0
    left: int = 0
    good: int = 0
    aborted: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    retry_after: list[float] = field(default_factory=list)
    refused: int = 0
    texts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft: Latencies = field(default_factory=Latencies)
    itl: Latencies = field(default_factory=Latencies)
    tpot: Latencies = field(default_factory=Latencies)
    e2e: Latencies = field(default_factory=Latencies)
    late: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    client_cpu: float = 0.0
    interrupted: bool = False

    def take(self, outcome: Outcome) -> None:
        """Books a request that is over."""
        self.texts += outcome.texts
        if outcome.sent:
            self.late.add(outcome.sent - outcome.due)
        if outcome.error == "interrupted":
            self.aborted += 1
        elif outcome.error:
            self._failed(outcome)
        elif outcome.left:
            self.left += 1
        else:
            self._answered(outcome)

    def _failed(self, outcome: Outcome) -> None:
        self.errors[outcome.error] += 1
        if outcome.status in (429, 503):
            self.refused += 1
            if outcome.retry_after is not None:
                self.retry_after.append(outcome.retry_after)

    def _answered(self, outcome: Outcome) -> None:
        self.completed += 1
        self.finishes[outcome.finish or "none"] += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.output_tokens += outcome.tokens
        times = times_of(outcome)
        if times.ttft is not None:
            self.ttft.add(times.ttft)
        for gap in times.gaps:
            self.itl.add(gap)
        if times.tpot is not None:
            self.tpot.add(times.tpot)
        self.e2e.add(times.e2e)
        self.good += self.slo.met(outcome)

    @property
    def failed(self) -> int:
        """Requests that got an error instead of an answer, refusals among them."""
        return sum(self.errors.values())

    @property
    def error_rate(self) -> float:
        """Of those that neither left nor were broken off."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else 0.0


class LoadRun:
    """One run against one server. keep: outcomes stay in `outcomes`, with the data of all events
    (number of the request to outcome); for proofs, not for long runs.
    """

    def __init__(
        self,
        target: LoadTarget,
        workload: Workload,
        pace: Pace,
        *,
        slo: Slo | None = None,
        keep: bool = False,
        first: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """first: number of the first request."""
        self.target = target
        self.workload = workload
        self.pace = pace
        self.tally = Tally(slo or Slo())
        self.outcomes: dict[int, Outcome] = {}
        self._keep = keep
        self._first = first
        self._progress = progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0.0
        self._address = ""

    def run(self) -> Tally:
        """Runs it in a loop of its own. Ctrl-C ends it early, with what there is."""
        allow_connections()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self.drive())

    async def drive(self) -> Tally:
        """Runs it in the running loop."""
        tally = self.tally
        self._begun = time.monotonic()
        cpu = time.process_time()
        watcher = asyncio.create_task(self._watch())
        try:
            await self._send_all()
        except asyncio.CancelledError:
            tally.interrupted = True
            await self._break_off()
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
        tally.seconds = time.monotonic() - self._begun
        tally.client_cpu = time.process_time() - cpu
        return tally

    async def _send_all(self) -> None:
        places = asyncio.Semaphore(self.pace.concurrency) if self.pace.concurrency else None
        for number, due in enumerate(self._dues(), start=self._first):
            if due is not None:
                await asyncio.sleep(max(0.0, self._begun + due - time.monotonic()))
            if places is not None:
                await places.acquire()
            if self._late_to_begin():
                break
            moment = time.monotonic() if due is None else self._begun + due
            task = asyncio.create_task(self._ask(self.workload.ask(number), moment, places))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _dues(self) -> Iterator[float | None]:
        """When users come, seconds after the start; None: as soon as there is a place."""
        pace = self.pace
        moments: Iterator[float | None] = (
            arrivals(pace.rate, self.workload.seed) if pace.rate else itertools.repeat(None)
        )
        for moment in itertools.islice(moments, pace.requests):
            if moment is not None and pace.duration is not None and moment >= pace.duration:
                return
            yield moment

    def _late_to_begin(self) -> bool:
        """Whether a closed loop is over."""
        pace = self.pace
        if pace.rate or pace.duration is None:
            return False
        return time.monotonic() - self._begun >= pace.duration

    async def _ask(self, ask: Ask, due: float, places: asyncio.Semaphore | None) -> None:
        tally = self.tally
        tally.sent += 1
        tally.open += 1
        tally.most_open = max(tally.most_open, tally.open)
        outcome = Outcome(due, payloads=[] if self._keep else None)
        try:
            await self._exchange(ask, outcome)
        finally:
            tally.open -= 1
            tally.take(outcome)
            if self._keep:
                self.outcomes[ask.number] = outcome
            if places is not None:
                places.release()

    async def _exchange(self, ask: Ask, outcome: Outcome) -> None:
        path = PATHS[self.workload.route]
        raw = self.target.request(path, ask.body, f"load-{self.workload.seed}-{ask.number}")
        loop = asyncio.get_running_loop()
        exchange = Exchange(raw, outcome, ask.leaves_after)
        try:
            async with asyncio.timeout(self.pace.timeout):
                await self._connect(exchange)
                if ask.leaves_at is not None:
                    loop.call_later(ask.leaves_at, exchange.leave)
                await asyncio.shield(exchange.closed)
        except TimeoutError:
            exchange.give_up("timeout")
        except OSError as error:
            exchange.give_up(f"connect: {type(error).__name__}")
        except asyncio.CancelledError:
            exchange.give_up("interrupted")
        outcome.ended = outcome.ended or time.monotonic()
        if exchange.connected:
            await exchange.closed

    async def _connect(self, exchange: Exchange) -> None:
        """A connection of its own, as users have."""
        target, loop = self.target, asyncio.get_running_loop()
        if not self._address:  # once: a look-up takes a thread
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            self._address = str(found[0][4][0])
        name = target.host if target.tls else None
        await loop.create_connection(
            lambda: exchange, self._address, target.port, ssl=target.tls, server_hostname=name
        )

    async def _break_off(self) -> None:
        """Ends everything that is open, and waits until it is closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._progress is not None:
                self._progress(time.monotonic() - self._begun, self.tally)
