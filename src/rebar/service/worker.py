"""The thread an engine runs in, and the border around it: Orders go in, one StepReport comes out
per step.

In a process of its own (engine_process.py) `report` writes to a socket.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rebar.service.engine import failure_of
from rebar.service.messages import (
    STOPPING,
    AdapterNews,
    Delta,
    EngineStats,
    Failure,
    Orders,
    StepReport,
)

log = logging.getLogger("rebar.service.engine")

HEARTBEAT_SECONDS = 1.0
"""An idle engine still reports this often, so that silence means trouble."""


class Engine(Protocol):
    """What a worker drives: InferenceEngine, ClassifierEngine."""

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""

    def obey(self, orders: Orders, /) -> list[Delta]:
        """Takes in new choices and lets go of cancelled ones; says which were refused."""

    def step(self) -> list[Delta]:
        """One step; what it said."""

    def fail_all(self, failure: Failure, /) -> list[Delta]:
        """Ends every open choice."""

    def stats(self) -> EngineStats:
        """Counters and gauges."""

    def news(self) -> list[AdapterNews]:
        """What became of adapters since it was last asked."""

    def close(self) -> None:
        """Frees the model."""


class Worker(Protocol):
    """Who computes: an EngineWorker in a thread, an EngineSupervisor over processes."""

    @property
    def alive(self) -> bool:
        """Whether somebody computes now."""

    @property
    def restarts(self) -> int:
        """How often the engine was replaced."""

    @property
    def pid(self) -> int | None:
        """The process that computes; None while the next one starts."""

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes that computed, this one left out."""

    def start(self) -> None:
        """Begins, called in the loop."""

    def give(self, orders: Orders, /) -> bool:
        """Takes orders; False when nobody would ever answer."""

    def stop(self) -> bool:
        """Ends; called in a thread of its own. Whether it ended in time."""


class EngineWorker:
    """Owns `engine` and the only thread that touches it once started.

    `report` is called in that thread, once per step; it must not block and must not raise.
    """

    def __init__(self, engine: Engine, report: Callable[[StepReport], None]) -> None:
        self.engine = engine
        self._report = report
        self._orders = Orders()
        self._wake = threading.Condition()
        self._stopping = self._ended = False
        self._turn_began: float | None = None
        self.restarts = 0  # a thread cannot be replaced
        self._thread = threading.Thread(target=self._main, name="rebar-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread. It ends before the interpreter does: a thread inside native code must
        not be cut off.
        """
        atexit.register(self.stop)
        self._thread.start()

    def give(self, orders: Orders) -> bool:
        """Adds to what the engine takes in before its next step. Safe from any thread.

        False when the engine has ended: nobody would ever answer.
        """
        with self._wake:
            if self._ended:
                return False
            self._orders.submit.extend(orders.submit)
            self._orders.cancel.extend(orders.cancel)
            self._orders.adapters.extend(orders.adapters)
            self._wake.notify()
            return True

    def stop(self, timeout: float = 10.0) -> bool:
        """Ends after the step in progress; open choices fail. Says whether the thread has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        atexit.unregister(self.stop)
        # The garbage collector may let go of a model in any thread, this one included.
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    @property
    def cpu_seconds(self) -> float:
        """It is this process's own time."""
        return 0.0

    def _main(self) -> None:
        engine = self.engine
        while not self._stopping:
            orders = self._take(wait=engine.idle)
            deltas = self._turn(orders)
            told = StepReport(stats=engine.stats(), deltas=deltas, adapters=engine.news())
            self._report(told)
        with self._wake:
            self._ended = True
        deltas = engine.obey(self._orders) + engine.fail_all(STOPPING)
        self._report(StepReport(stats=engine.stats(), deltas=deltas))
        engine.close()

    @property
    def turn_seconds(self) -> float:
        """How long the turn in progress lasts, 0 between turns. From any thread."""
        began = self._turn_began
        return 0.0 if began is None else time.monotonic() - began

    def _turn(self, orders: Orders) -> list[Delta]:
        engine = self.engine
        self._turn_began = time.monotonic()
        try:
            return engine.obey(orders) + engine.step()
        except Exception as error:
            log.error("a step could not be planned or committed; the engine goes on without it")
            return engine.fail_all(failure_of(error))
        finally:
            self._turn_began = None

    def _take(self, *, wait: bool) -> Orders:
        with self._wake:
            orders = self._orders
            given = orders.submit or orders.cancel or orders.adapters
            if wait and not (given or self._stopping):
                self._wake.wait(HEARTBEAT_SECONDS)
            orders, self._orders = self._orders, Orders()
            return orders
