"""From one engine to the next: what it leaves behind, and how long nobody computed.

The law: keys and values of an engine that ended are taken over only when its end cannot mean that
it had written where it should not. Being killed cannot, nor can leaving by itself; a process that
the processor or the C library stopped (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT), that said what is
no message, or that was caught in one step for ever, may have been out of its mind before: the next
begins empty. So it does after two in a row that brought nothing, for something may be in there that
ends engines, and where the machine has no memory left: what is kept is held by the front, so the
system gets nothing back by killing the engine.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable

from rebar.hal import SharedMemory, read_machine
from rebar.service.memory_budget import SPARE_BYTES
from rebar.service.messages import Delta

log = logging.getLogger("rebar.service.supervisor")

SOUND_ENDS = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
"""Exit codes as subprocess gives them: left by itself, or was ended from outside."""
MOST_FRUITLESS = 2
NAME = "rebar-kv"


def new_memory() -> SharedMemory | None:
    """Memory for the keys and values of all engines to come; None where the system has none to
    share: they use their own then.
    """
    try:
        return SharedMemory.create(NAME)
    except OSError as error:
        log.warning("keys and values will not outlive an engine: %s", error)
        return None


class Succession:
    """memory: given to each engine. Times are counted from the end of the one before."""

    def __init__(self, memory: SharedMemory | None) -> None:
        self.memory = memory
        self._fruitless = 0
        self._began = 0.0
        self._times: dict[str, float] = {}
        self._waiting: set[int] = set()  # choices that have said nothing since
        self._taken = ""

    def ended(
        self, code: int | None, *, sound: bool, fruitful: bool, waiting: Iterable[int]
    ) -> None:
        """An engine is dead for certain. sound: nothing was wrong with what it said. fruitful: it
        brought something. waiting: the tickets of open choices.
        """
        self._began, self._times, self._waiting = time.monotonic(), {}, set(waiting)
        self._fruitless = 0 if fruitful else self._fruitless + 1
        if self.memory is None:
            return
        if code not in SOUND_ENDS or not sound:
            self._empty(f"an engine that ended with code {code} is not trusted")
        elif self._fruitless >= MOST_FRUITLESS:
            self._empty(f"{self._fruitless} engines in a row brought nothing")
        elif read_machine().memory_available < SPARE_BYTES:
            self._empty("the machine has no memory left")

    def _empty(self, why: str) -> None:
        if self.memory is not None and self.memory.resident_bytes:
            log.warning("%s: keys and values are computed anew", why)
            self.memory.close()
            self.memory = new_memory()

    def reached(self, moment: str) -> None:
        """The next engine has come so far."""
        self._times.setdefault(moment, time.monotonic() - self._began)

    def ready(self, adopted: int, total: int) -> None:
        """It has loaded the model and taken over so many blocks."""
        self.reached("ready")
        self._taken = f"{adopted} of {total} blocks taken over"

    def said(self, delta: Delta) -> None:
        """A choice got something; when all have that were open, it is told how long it took."""
        if not self._waiting:
            return
        if delta.ids or delta.last:
            self.reached("first ids")
            self._waiting.discard(delta.ticket)
        if not self._waiting:
            self.reached("all streams")
            times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self._times.items())
            log.info("the next engine goes on: %s; %s", self._taken, times)

    def left(self, tickets: Iterable[int]) -> None:
        """They are not waited for any more."""
        self._waiting.difference_update(tickets)
