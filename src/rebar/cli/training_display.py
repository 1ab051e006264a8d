"""Progress of a training run: a bar on a terminal, elsewhere a line every two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rebar.cli.options import format_size
from rebar.cli.output import SECONDS_BETWEEN_LINES, note

if TYPE_CHECKING:
    from rebar.graph.trainer import StepRecord

STOPPING = "stopping: saves a checkpoint first (once more: leaves at once)"
NARROW = 100  # columns: below, the rate is left out and the bar short, so that all is on one line
BAR, SHORT_BAR = 30, 10


class Display:
    """speaks False: shows nothing. units: what steps are made of."""

    def __init__(self, speaks: bool, units: str = "tokens") -> None:
        self._units = units
        self._steps: int | None = None
        self._speaks = speaks
        self._bar: Any = None
        self._task: Any = None
        self._said = 0.0
        self._words = "before the first step"
        self._stopping = False

    @contextmanager
    def until(self, steps: int | None) -> Iterator[None]:
        """Shows what happens in the block. steps: the last one, None when unknown."""
        self._steps, self._said = steps, time.monotonic()
        self._open()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def _open(self) -> None:
        if self._speaks and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True)
            width = SHORT_BAR if console.width < NARROW else BAR
            columns = BarColumn(width), TextColumn("{task.description}", markup=False)
            self._bar = Bar(*columns, console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._words, total=self._steps)

    def step(self, record: StepRecord) -> None:
        """Shows a step."""
        narrow = self._bar is not None and self._bar.console.width < NARROW
        if not (self._stopping and self._bar is not None):
            self._words = words(record, self._steps, self._units, narrow=narrow)
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, description=self._words)
        elif self._due() or record.step in (1, self._steps):
            self._say(self._words)

    def evaluating(self, done: int, count: int) -> None:
        """Shows how far an evaluation is."""
        text = f"held out: {done} of {count} batches"
        if self._bar is not None:
            shown = self._words if done == count or self._stopping else text
            self._bar.update(self._task, description=shown)
        elif done < count and self._due():
            self._say(text)

    def evaluation(self, step: int, loss: float) -> None:
        """Shows a loss on held-out data."""
        self._line(f"step {step:<6} held-out loss {loss:.4f}")

    def stopping(self) -> None:
        """Answers the first Ctrl-C, in the bar's place: called from a signal handler."""
        self._stopping = True
        if self._bar is not None:
            self._words = STOPPING
            self._bar.update(self._task, description=STOPPING, refresh=True)
        elif self._speaks:
            note(STOPPING)

    def _due(self) -> bool:
        return time.monotonic() - self._said >= SECONDS_BETWEEN_LINES

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._line(text)

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._speaks:
            note(text)


def words(r: StepRecord, steps: int | None, units: str = "tokens", *, narrow: bool = False) -> str:
    """What a step says of itself."""
    of = f"/{steps}" if steps else ""
    rate = "" if narrow else f"rate {r.rate:.2g}  "
    left = f"  {clock(r.left)} left" if r.left is not None else ""
    return (
        f"step {r.step}{of}  loss {r.loss:.4f}  {rate}"
        f"{r.tokens_per_second:,.0f} {units}/s  {format_size(r.peak_rss)}{left}"
    )


def clock(seconds: float) -> str:
    """Time for people: 0:07, 12:30, 3:02:10."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
