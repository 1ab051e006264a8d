"""Notices that the event loop was held up: for how long, and where.

Everything the front does shares one loop; a call that does not return holds up every client. The
loop beats; a thread sees a beat that is overdue and takes down what the loop's thread is doing.
Whether the thread computed or only waited for a core is told by its processor time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from traceback import extract_stack
from types import FrameType

log = logging.getLogger("rebar.service.loop")

BEAT_SECONDS = 0.1
"""Twenty wake-ups a second of both sides cost about 0.1 % of a core."""
SHOWN_FRAMES = 6


class LoopGuard:
    """Watches the loop it is started in. blocks, blocked_seconds and longest_seconds: what it
    saw since then. limit: shorter hold-ups are none."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.blocks = 0
        self.blocked_seconds = 0.0
        self.longest_seconds = 0.0
        self._due = time.monotonic() + BEAT_SECONDS
        self._cpu = 0.0
        self._where = ""
        self._ended = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins, in the running loop."""
        self._ended.clear()
        self._schedule(asyncio.get_running_loop())
        thread = threading.get_ident()
        threading.Thread(
            target=self._watch, args=(thread,), name="rebar-loop-guard", daemon=True
        ).start()

    def stop(self) -> None:
        """Ends."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cpu = time.thread_time()
        self._where = ""
        self._due = time.monotonic() + BEAT_SECONDS
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late = time.monotonic() - self._due
        if late > self.limit:
            self._book(late, time.thread_time() - self._cpu)
        self._schedule(loop)

    def _book(self, late: float, computed: float) -> None:
        self.blocks += 1
        self.blocked_seconds += late
        self.longest_seconds = max(self.longest_seconds, late)
        log.warning(
            "the event loop was held up for %.2f s, %.2f s of it computing; it was at %s",
            late,
            computed,
            self._where or "an unknown place",
        )

    def _watch(self, thread: int) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            if time.monotonic() - self._due > self.limit and not self._where:
                self._where = place_of(sys._current_frames().get(thread))


def place_of(frame: FrameType | None) -> str:
    """The innermost calls of a thread: "sleepy (app.py:12) < handler (routes.py:88)"."""
    calls = [
        f"{call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})"
        for call in reversed(extract_stack(frame))
    ]
    return " < ".join(calls[:SHOWN_FRAMES])
