"""The front's side: packets to the model's worker, and what comes back to whoever waits for it.

Lives in one event loop. Worker threads reach it through `call_soon_threadsafe`, once per step.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

import msgspec

from rebar.errors import EngineError, InputError, OverloadedError
from rebar.service.adapter_book import AdapterBook
from rebar.service.admission import Admission
from rebar.service.engine_process import EngineProcess
from rebar.service.history import RequestHistory
from rebar.service.measures import ChoiceTimes, Measures
from rebar.service.messages import (
    STOPPING,
    TIMED_OUT,
    Delta,
    EngineSpec,
    EngineStats,
    Failure,
    Orders,
    RequestPacket,
    StepReport,
)
from rebar.service.model import ServedModel
from rebar.service.request_stream import RequestStream
from rebar.service.supervisor import EngineSupervisor
from rebar.service.validator import Validator, model_not_found
from rebar.service.worker import Engine, EngineWorker, Worker

log = logging.getLogger("rebar.service")
P = ParamSpec("P")

STALL_SECONDS = 30.0
"""An engine that has not finished a step for so long is not healthy."""


class ModelService:
    """One served model: its validator, its worker and the requests that wait for its steps."""

    def __init__(
        self,
        model: ServedModel,
        hire: Callable[[Callable[[StepReport], None]], Worker],
        stats: EngineStats | None = None,
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterBook | None = None,
    ) -> None:
        """hire: makes the worker, given where it reports. No answer may last longer than
        `request_seconds`, which may be set before the service starts."""
        self.model = model
        self.validator = Validator(model)
        self.adapters = adapters or AdapterBook()
        self.stats = stats or EngineStats()
        self.worker = hire(self._report)
        self.adapters.give = self.worker.give
        self.adapters.taken = frozenset((model.name, *model.aliases))
        self.request_seconds: float | None = None
        self._clock = clock
        self.measures = Measures()
        self._booking_failed = False
        self.history = RequestHistory(model.name)
        limits = model.limits
        self.admission = Admission(limits.max_open, limits.max_open_tokens, clock())
        self._streams: dict[int, RequestStream] = {}
        self._times: dict[int, ChoiceTimes] = {}
        self._tickets = itertools.count(1)
        self._last_report = clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the loop's

    @property
    def open(self) -> int:
        """Choices accepted and not ended."""
        return len(self._streams)

    @property
    def queue_age(self) -> float:
        """Seconds since the oldest of those requests arrived that no token was sampled for."""
        unanswered = [t.arrived for t in self._times.values() if t.first is None]
        return self._clock() - min(unanswered) if unanswered else 0.0

    @property
    def silent_seconds(self) -> float:
        """Time since the engine last said anything; an idle one says something every second."""
        return self._clock() - self._last_report

    @property
    def healthy(self) -> bool:
        """Whether the engine advances."""
        return self.worker.alive and self.silent_seconds < STALL_SECONDS

    @classmethod
    def in_thread(
        cls, model: ServedModel, engine: Engine, adapters: AdapterBook | None = None
    ) -> ModelService:
        """Computed by a thread of this process."""

        def hire(report: Callable[[StepReport], None]) -> Worker:
            return EngineWorker(engine, report)

        return cls(model, hire, engine.stats(), adapters=adapters)

    @classmethod
    def in_process(
        cls,
        model: ServedModel,
        first: EngineProcess,
        spec: EngineSpec,
        adapters: AdapterBook | None = None,
    ) -> ModelService:
        """Computed by a process of its own, which is replaced when it ends."""

        def hire(report: Callable[[StepReport], None]) -> Worker:
            return EngineSupervisor(first, spec, report)

        return cls(model, hire, first.ready.stats, adapters=adapters)

    def start(self) -> None:
        """Starts the worker; deltas arrive in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last_report = self._clock()
        self.worker.give(self.adapters.orders())
        self.worker.start()

    def submit(
        self, packets: list[RequestPacket], arrived: float | None = None, name: str = ""
    ) -> RequestStream:
        """Sends a request's choices, all or none, to the engine. OverloadedError when full.

        arrived: when its first byte was read, by this service's clock; times count from there.
        name: the model or adapter that answers, for its record.
        """
        self._refuse_overload(packets)
        started = self._clock() if arrived is None else arrived
        packets = [
            msgspec.structs.replace(p, ticket=next(self._tickets), arrived=started) for p in packets
        ]
        stream = RequestStream(self._cancel, packets, started)
        adapter = packets[0].adapter
        self.adapters.enter(adapter, len(packets))
        if not self.worker.give(Orders(submit=packets)):
            self.adapters.leave(adapter, len(packets))
            raise EngineError("The engine is not running. Try again when /health says ok.")
        for packet in packets:
            self._streams[packet.ticket] = stream
            self._times[packet.ticket] = ChoiceTimes(
                started, prompt=len(packet.prompt), adapter=adapter
            )
            self.admission.enter(len(packet.prompt))
        self._note(self._note_begin, packets, name)
        if self.request_seconds is not None and self._loop is not None:
            stream.timer = self._loop.call_later(
                self.request_seconds, self._fail, [p.ticket for p in packets], TIMED_OUT
            )
        return stream

    def _note_begin(self, packets: list[RequestPacket], name: str) -> None:
        self.measures.accepted += len(packets)
        for packet in packets:
            self.measures.prompt_tokens.observe(len(packet.prompt))
        self.history.begin(packets, name)

    def _note(self, note: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Numbers and stories about a request never decide what becomes of it: what fails here is
        logged, once, and the answer goes on.
        """
        try:
            note(*args, **kwargs)
        except Exception:
            if not self._booking_failed:
                log.exception("a measurement failed; requests go on, /metrics may be wrong")
            self._booking_failed = True

    def has_room(self, packets: list[RequestPacket]) -> bool:
        """Whether `submit` would take them now."""
        try:
            self._check_room(packets)
        except OverloadedError:
            return False
        return True

    def _check_room(self, packets: list[RequestPacket]) -> None:
        tokens = sum(len(packet.prompt) for packet in packets)
        self.admission.check(len(packets), tokens, packets[0].priority, self._clock())

    def _refuse_overload(self, packets: list[RequestPacket]) -> None:
        try:
            self._check_room(packets)
        except OverloadedError:
            self.measures.refused["queue_full"] += len(packets)
            raise

    def _cancel(self, tickets: list[int]) -> None:
        gone: list[ChoiceTimes] = []
        for ticket in tickets:
            if self._streams.pop(ticket, None) is not None:
                times = self._times.pop(ticket)
                gone.append(times)
                self.admission.leave(times.prompt, self._clock())
                self._note(self._note_left, ticket)
        self.worker.give(Orders(cancel=tickets))
        for times in gone:
            self.adapters.leave(times.adapter)

    def _note_left(self, ticket: int) -> None:
        self.measures.aborted["client_left"] += 1
        self.history.end(ticket, "left")

    def abandon(self) -> None:
        """Ends every open choice with an error: the server stops and will not wait longer."""
        self._fail(list(self._streams), STOPPING)

    def _fail(self, tickets: list[int], failure: Failure) -> None:
        tickets = [ticket for ticket in tickets if ticket in self._streams]
        for ticket in tickets:
            self._book(Delta(ticket=ticket, failure=failure))
        self._cancel(tickets)

    def _report(self, report: StepReport) -> None:
        """In the worker's thread, or in the loop: then without another turn of it."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            self._deliver(report)
            return
        try:
            loop.call_soon_threadsafe(self._deliver, report)
        except RuntimeError:
            return  # the loop closed in between: nobody is left to tell

    def _deliver(self, report: StepReport) -> None:
        """In the loop."""
        self.stats = report.stats
        self._last_report = self._clock()
        if report.adapters:
            self.adapters.news(report.adapters)
        for delta in report.deltas:
            self._book(delta)

    def _book(self, delta: Delta) -> None:
        stream = self._streams.get(delta.ticket)
        if stream is None:
            return
        now, times = self._clock(), self._times[delta.ticket]
        if delta.last:
            del self._streams[delta.ticket]
            del self._times[delta.ticket]
            self.admission.leave(times.prompt, now)
            self.adapters.leave(times.adapter)
        self._note(self._note_delta, times, delta, now)
        stream.put(delta)

    def _note_delta(self, times: ChoiceTimes, delta: Delta, now: float) -> None:
        self.measures.take(times, delta, now)
        self.history.take(delta)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes, and who checks it against what it asked for."""

    service: ModelService
    validator: Validator

    @property
    def model(self) -> ServedModel:
        """The model, whichever adapter."""
        return self.service.model


class ServiceRouter:
    """Finds the service of a model by the name in a request."""

    def __init__(self, services: list[ModelService]) -> None:
        self.services = services
        self._by_name = {
            name: service
            for service in reversed(services)
            for name in (service.model.name, *service.model.aliases)
        }

    def find(self, model: str) -> Route:
        """Where `model` is served, a model's name or an adapter's. Raises ModelNameError."""
        service = self._by_name.get(model)
        if service is not None:
            return Route(service, service.validator)
        for service in self.services:
            adapter = service.adapters.get(model)
            if adapter is not None:
                return Route(service, Validator(service.model, adapter))
        raise model_not_found(model)

    def route(self, model: str | None, *, images: bool = False) -> Route:
        """As `find`; the first of its kind when no model is named. images: an image classifier is
        asked for, else a language model. InputError for a model of the other kind.
        """
        named = [self.find(model)] if model is not None else self._all
        for route in named:
            if (route.service.model.classifier is not None) == images:
                return route
        asked, path = ("images", "/v1/classify") if images else ("text", "/v1/chat/completions")
        who = "No model here takes" if model is None else f"The model {model!r} does not take"
        raise InputError(
            f"{who} {asked}. POST {path} is for those that do; GET /v1/models lists what there is.",
            param="model",
            code="wrong_model_kind",
        )

    @property
    def _all(self) -> list[Route]:
        return [Route(service, service.validator) for service in self.services]

    def start(self) -> None:
        """Starts every worker in the running loop."""
        for service in self.services:
            service.start()

    async def stop(self) -> None:
        """Ends every worker after the step in progress."""
        await asyncio.gather(*(asyncio.to_thread(s.worker.stop) for s in self.services))

    def abandon(self) -> None:
        """Ends every open request with an error."""
        for service in self.services:
            service.abandon()

    def stats(self) -> dict[str, EngineStats]:
        """The latest stats by model name."""
        return {service.model.name: service.stats for service in self.services}
