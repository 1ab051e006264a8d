"""The engine of an image classifier: the images of whoever asked, as many in a step as fit.

It stands where the engine of a language model stands, in the same process and behind the same
messages. An image is one step, so nothing is kept between steps: an engine that takes over computes
what was open anew, with the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.errors import EngineError
from rebar.service.engine import class_of, expired, failure_of
from rebar.service.generation import rank_for
from rebar.service.journal import Journal
from rebar.service.messages import AdapterNews, Delta, EngineStats, Failure, Orders, RequestPacket

log = logging.getLogger("rebar.service.engine")
F32 = NDArray[np.float32]


class ImageRunner(Protocol):
    """What the engine needs of a classifier (rebar.graph.classifier)."""

    @property
    def max_rows(self) -> int:
        """Most images of a step."""

    @property
    def free_bytes(self) -> int:
        """Bytes of the memory budget that nothing holds."""

    @property
    def node_count(self) -> int:
        """Nodes of the graph."""

    def classify(self, images: F32, /) -> F32:
        """Logits of images, a row each."""

    def close(self) -> None:
        """Frees everything."""


class Waiting:
    """An image that was not yet computed. The lower rank comes first."""

    __slots__ = ("image", "journal", "packet", "rank")

    def __init__(self, packet: RequestPacket, now: float) -> None:
        arrived = now if packet.arrived is None else min(packet.arrived, now)
        self.packet = packet
        self.journal = Journal(arrived)
        self.rank = rank_for(arrived, packet)
        self.image = np.frombuffer(packet.image, np.float32)

    def expires(self, now: float) -> bool:
        """Whether its answer is of no use any more."""
        return self.packet.deadline is not None and now >= self.packet.deadline


class ClassifierEngine:
    """Not safe for threads: one owner calls it. A step that fails is made again image by image, and
    those that fail again fail alone. values: numbers of an image. clock: as InferenceEngine's.
    """

    def __init__(
        self, runner: ImageRunner, values: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.runner = runner
        self.clock = clock
        self._values = values
        self._open: dict[int, Waiting] = {}
        self._stats = EngineStats()

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._open

    def obey(self, orders: Orders) -> list[Delta]:
        """Takes in new images and lets go of cancelled ones; says which were refused."""
        refused = [delta for delta in map(self._begin, orders.submit) if delta is not None]
        for ticket in orders.cancel:
            self._open.pop(ticket, None)
        return refused

    def _begin(self, packet: RequestPacket) -> Delta | None:
        if len(packet.image) != 4 * self._values:
            text = f"an image of {len(packet.image)} bytes; the network takes {4 * self._values}."
            return Delta(ticket=packet.ticket, failure=failure_of(EngineError(text)))
        self._open[packet.ticket] = Waiting(packet, self.clock())
        return None

    def step(self) -> list[Delta]:
        """One step: those that come first by rank."""
        if not self._open:
            return []
        started = self.clock()
        late = [w for w in self._open.values() if w.expires(started)]
        for waiting in late:
            del self._open[waiting.packet.ticket]
        chosen = sorted(self._open.values(), key=lambda w: w.rank)[: self.runner.max_rows]
        for waiting in chosen:
            waiting.journal.admit(started)
        answers = self._answers([w.image for w in chosen])
        now = self.clock()
        deltas = [self._done(w, a, now) for w, a in zip(chosen, answers, strict=True)]
        self._count(deltas, len(late), now - started)
        return [expired(w.packet, w.journal, started) for w in late] + deltas

    def _answers(self, images: list[F32]) -> list[F32 | Exception]:
        if not images:
            return []
        try:
            return list(self.runner.classify(np.stack(images)))
        except Exception as error:
            if len(images) == 1:
                return [error]
            log.warning("a step of %d images failed (%r); one by one now", len(images), error)
        return [self._answers([image])[0] for image in images]

    def _done(self, waiting: Waiting, answer: F32 | Exception, now: float) -> Delta:
        packet = waiting.packet
        del self._open[packet.ticket]
        delta = Delta(ticket=packet.ticket)
        if not isinstance(answer, Exception) and not np.isfinite(answer).all():
            answer = EngineError("the network gave what is no number. Send another image.")
        if isinstance(answer, Exception):
            delta.failure = failure_of(answer)
        else:
            delta.vector, delta.finish = answer.tobytes(), "stop"
        waiting.journal.step(now, True)
        delta.record = waiting.journal.record(packet.priority, now)
        return delta

    def _count(self, deltas: list[Delta], expired: int, seconds: float) -> None:
        was = self._stats
        self._stats = msgspec.structs.replace(
            was,
            steps=was.steps + bool(deltas),
            step_seconds=was.step_seconds + (seconds if deltas else 0.0),
            rows=len(deltas),
            images=was.images + len(deltas),
            failures=was.failures + sum(delta.failure is not None for delta in deltas),
            expired=was.expired + expired,
        )

    def fail_all(self, failure: Failure) -> list[Delta]:
        """Ends every open image with `failure`."""
        tickets = list(self._open)
        self._open.clear()
        return [Delta(ticket=ticket, failure=failure) for ticket in tickets]

    def stats(self) -> EngineStats:
        """Counters, with the gauges of this moment."""
        classes = [0, 0, 0]
        for waiting in self._open.values():
            classes[class_of(waiting.packet.priority)] += 1
        oldest = min((w.journal.arrived for w in self._open.values()), default=None)
        return msgspec.structs.replace(
            self._stats,
            waiting=len(self._open),
            free_bytes=self.runner.free_bytes,
            nodes=self.runner.node_count,
            row_limit=self.runner.max_rows,
            open_high=classes[0],
            open_normal=classes[1],
            open_low=classes[2],
            oldest_wait=0.0 if oldest is None else max(0.0, self.clock() - oldest),
        )

    def news(self) -> list[AdapterNews]:
        """There are no adapters of a network over images."""
        return []

    def close(self) -> None:
        """Frees the model."""
        self.runner.close()
