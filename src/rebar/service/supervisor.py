"""Keeps an engine process running and every open choice going, whatever happens to the process.

The law: of every open choice the front keeps the packet and what the client was told. An engine
that ends, hangs or is killed is replaced, and the new one gets each packet with what was said; as a
token is a function of weights, prompt, parameters, seed and position, it goes on with the same
bits. A report that did not arrive whole was never told, so nothing is told twice and nothing is
missing.

Lives in one event loop, but for the start of a process, which waits in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from rebar.errors import EngineError, RebarError
from rebar.hal.processes import process_cpu_seconds, process_stopped
from rebar.service.adapter_ledger import AdapterLedger
from rebar.service.engine_process import EngineProcess
from rebar.service.frames import frame
from rebar.service.messages import (
    Beat,
    Delta,
    EngineSpec,
    EngineStats,
    Failure,
    FromEngine,
    Orders,
    RequestPacket,
    StepReport,
)
from rebar.service.succession import Succession

log = logging.getLogger("rebar.service.supervisor")

SILENT_SECONDS = 2.5
"""A process that says nothing for five beats is starved or caught in native code: it is replaced.
Together with the start of the next this keeps the gap of a stream under four seconds."""
STOPPED_SECONDS = 1.0
"""One that is stopped (SIGSTOP) says nothing whatever the machine is busy with: two beats do."""
TURN_SECONDS = 60.0
"""No turn takes so long: 512 rows of a model of 70 billion weights on one core do not."""
WATCH_SECONDS = 0.25
MAX_STRIKES = 8
"""A choice that was alone in doubt at so many deaths, with nothing said in between, is taken for
their cause. Three were too few: on a busy machine kills from outside, three a second, hit one
choice three times before it could say anything. Eight cost a real cause three seconds of restarts,
while the others, who have fewer strikes, are served first."""
MAX_PAUSE_SECONDS = 30.0
NO_STATS = EngineStats()
COUNTERS = (
    "steps",
    "step_seconds",
    "prompt_tokens",
    "sampled_tokens",
    "failures",
    "cached_tokens",
    "preemptions",
    "evictions",
    "expired",
    "draft_tokens",
    "accepted_tokens",
    "adopted_blocks",
    "images",
)


@dataclass(slots=True)
class Told:
    """An open choice: its packet, and what the client was told of it."""

    packet: RequestPacket
    ids: list[int] = field(default_factory=list)
    scored: int = 0
    prompt_scored: int = 0
    strikes: int = 0

    def book(self, delta: Delta) -> None:
        """Adds what a step said."""
        self.ids += delta.ids
        self.scored += len(delta.scores)
        self.prompt_scored += len(delta.prompt_scores)

    def again(self) -> RequestPacket:
        """The packet for an engine that takes over."""
        return msgspec.structs.replace(
            self.packet,
            said=tuple(self.ids),
            scored=self.scored,
            prompt_scored=self.prompt_scored,
        )


class EngineSupervisor:
    """Stands where an EngineWorker stands: takes Orders, reports steps. first: its first process.

    An engine that ends before it has said anything may have been ended by a choice. The next one
    gets the choices one by one, each when the one before has brought something, those that were
    in doubt at a death after all others; one that was at MAX_STRIKES of them fails.
    """

    def __init__(
        self, first: EngineProcess, spec: EngineSpec, report: Callable[[StepReport], None]
    ) -> None:
        self.restarts = 0
        self._spec = spec
        self._report = report
        self._process: EngineProcess | None = first
        self._open: dict[int, Told] = {}
        self._past = NO_STATS  # counters of the processes that ended
        self._past_cpu = 0.0
        self._stats = first.ready.stats
        self._succession = Succession(first.kept)
        self._adapters = AdapterLedger(MAX_STRIKES)
        self._sound = True  # whether nothing is wrong with what this process says
        self._progress = False  # whether this process has brought anything
        self._doubted: deque[int] = deque()  # open choices it has not been given
        self._doubt: int | None = None  # the choice whose turn it is to prove itself
        self._heard = time.monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._changing = threading.Lock()  # holds _stopping and _process together

    @property
    def alive(self) -> bool:
        """Whether an engine process runs and has been heard."""
        return self._writer is not None

    @property
    def pid(self) -> int | None:
        """Of the engine process; None while the next one starts."""
        return self._process.pid if self._process is not None else None

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this engine process and of those before it."""
        return self._past_cpu + (process_cpu_seconds(self.pid) or 0.0 if self.pid else 0.0)

    def start(self) -> None:
        """Begins to listen, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._live(), name="engine supervisor")

    def give(self, orders: Orders) -> bool:
        """Takes orders for the engine, or for the next one while there is none."""
        if self._stopping:
            return False
        for packet in orders.submit:
            self._open[packet.ticket] = Told(packet)
        for ticket in orders.cancel:
            self._open.pop(ticket, None)
        self._succession.left(orders.cancel)
        self._adapters.given(orders.adapters)
        if self._doubt is not None or self._doubted:
            self._doubted += (packet.ticket for packet in orders.submit)
            orders = Orders(cancel=orders.cancel, adapters=orders.adapters)
        self._send(orders)
        self._prove()
        return True

    def stop(self, timeout: float = 10.0) -> bool:
        """Ends the process; open choices get no more. Called in another thread than the loop's."""
        with self._changing:
            self._stopping = True
            process, loop = self._process, self._loop
        if loop is not None and self._task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._task.cancel)
        return process is None or process.end(timeout)

    def _send(self, orders: Orders) -> None:
        """To the engine that is there. What is for one that has ended is not lost: the next gets
        every open choice. A first write after its end closes the connection on our side, before
        the end has been read, and another one would be an error.
        """
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(orders))

    async def _live(self) -> None:
        while not self._stopping:
            if self._process is None:
                await self._start_next()
            if self._process is not None:
                await self._serve(self._process)
            self._strike()

    async def _serve(self, process: EngineProcess) -> None:
        """Until this process ends, by itself or by us."""
        reader, self._writer = await asyncio.open_unix_connection(sock=process.sock)
        self._heard = time.monotonic()
        self._progress, self._sound = False, True
        self._send(self._adapters.again())
        if not self._doubted:
            self._send(Orders(submit=[told.again() for told in self._open.values()]))
        self._prove()
        watch = asyncio.get_running_loop().create_task(self._watch(process))
        try:
            while data := await reader.read(1 << 18):
                for message in process.reader.feed(data):
                    self._take(process, message)
        except OSError as error:
            log.error("the engine's connection failed: %s", error)
        except RebarError as error:
            self._sound = False
            log.error("the engine says what cannot be: %s", error)
        finally:
            watch.cancel()
            writer, self._writer = self._writer, None
            with contextlib.suppress(OSError):
                writer.close()
            if not self._stopping:
                # Before its exit status is taken (Popen.kill does so too): then the kernel forgets.
                self._past_cpu += process_cpu_seconds(process.pid) or 0.0
                self._process = None
                process.kill()
                self._succession.ended(
                    process.process.returncode,
                    sound=self._sound,
                    fruitful=self._progress or not self._open,
                    waiting=self._open,
                )

    def _take(self, process: EngineProcess, message: FromEngine) -> None:
        self._heard = time.monotonic()
        if isinstance(message, StepReport):
            for delta in message.deltas:
                told = self._open.get(delta.ticket)
                if told is None:
                    continue
                told.book(delta)
                self._progress = True
                self._succession.said(delta)
                if delta.last:
                    del self._open[delta.ticket]
                if delta.ticket == self._doubt:
                    self._doubt = None
                    told.strikes = 0
                    self._prove()
            self._adapters.heard(message.adapters)
            self._stats = message.stats
            message.stats = self._total(message.stats)
            self._report(message)
        elif isinstance(message, Beat) and message.turn_seconds > TURN_SECONDS:
            log.error("the engine makes no step for %.0f s: replacing it", message.turn_seconds)
            self._sound = False
            process.process.kill()

    async def _watch(self, process: EngineProcess) -> None:
        """Ends a process that is silent: the reader then sees the end of its connection.

        Where the loop itself was held up, what the engine said may lie unread: it is read first.
        """
        while True:
            before = time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            silent = now - self._heard
            stopped = silent > STOPPED_SECONDS and process_stopped(process.pid)
            patience = STOPPED_SECONDS if stopped else SILENT_SECONDS
            if silent > patience and now - before < 2 * WATCH_SECONDS:
                log.error("the engine says nothing for %.1f s: replacing it", silent)
                process.process.kill()
                return

    def _total(self, stats: EngineStats) -> EngineStats:
        """Counters over all processes: they only grow."""
        if self._past is NO_STATS:
            return stats
        sums = {name: getattr(stats, name) + getattr(self._past, name) for name in COUNTERS}
        return msgspec.structs.replace(stats, **sums)

    def _prove(self) -> None:
        """Gives the engine the next choice in doubt, when none is on trial."""
        if self._doubt in self._open or self._writer is None:
            return
        self._doubt = None
        while self._doubted and self._doubt is None:
            ticket = self._doubted.popleft()
            if ticket in self._open:
                self._doubt = ticket
                self._send(Orders(submit=[self._open[ticket].again()]))

    def _strike(self) -> None:
        """An engine has ended: books it, doubts who was open, lets go of the cause."""
        if self._stopping:
            return
        self._past = self._total(self._stats)
        self._stats = EngineStats()
        log.warning("the engine ended with %d choices open: starting the next", len(self._open))
        if refused := self._adapters.strike():
            self._report(StepReport(stats=self._total(self._stats), adapters=refused))
        suspect, self._doubt = self._doubt, None
        trusted = self._progress and suspect is None
        told = self._open.get(suspect) if suspect is not None else None
        if told is not None:
            told.strikes += 1
        by_strikes = sorted(self._open, key=lambda ticket: self._open[ticket].strikes)
        self._doubted = deque() if trusted else deque(by_strikes)
        if told is not None and suspect is not None and told.strikes >= MAX_STRIKES:
            del self._open[suspect]
            self._succession.left([suspect])
            text = (
                f"The engine ended {MAX_STRIKES} times while it computed this. Do not send it "
                "again as it is."
            )
            delta = Delta(ticket=suspect, failure=Failure(text, code="engine_ended"))
            self._report(StepReport(stats=self._total(self._stats), deltas=[delta]))

    def _start(self) -> EngineProcess:
        """In a thread. Who stops while a process starts cannot end it: it is ended here."""
        process = EngineProcess(self._spec, self._succession.memory)
        with self._changing:
            if not self._stopping:
                self._process = process
                return process
        process.kill()
        raise EngineError("The server is stopping.")

    async def _start_next(self) -> EngineProcess:
        pause = WATCH_SECONDS
        while True:
            self.restarts += 1
            try:
                process = await asyncio.to_thread(self._start)
                stats = process.ready.stats
                self._succession.ready(stats.adopted_blocks, stats.total_blocks)
                return process
            except (RebarError, OSError) as error:
                log.error("the engine does not start: %s Next try in %.1f s.", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
