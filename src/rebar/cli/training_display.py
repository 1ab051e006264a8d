"""Progress of a training run: a bar on a terminal, elsewhere a line every two seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rebar.cli.options import format_size
from rebar.cli.output import SECONDS_BETWEEN_LINES, note

if TYPE_CHECKING:
    from rebar.graph.trainer import StepRecord


class Display:
    """steps: the last one, None when unknown. speaks False: shows nothing."""

    def __init__(self, steps: int | None, speaks: bool) -> None:
        self._steps = steps
        self._speaks = speaks
        self._bar: Any = None
        self._task: Any = None
        self._said = float("-inf")

    def __enter__(self) -> Display:
        if self._speaks and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = BarColumn(), TextColumn("{task.description}")
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, record: StepRecord) -> None:
        """Shows a step."""
        if self._bar is not None:
            words = self._words(record)
            self._bar.update(self._task, completed=record.step, description=words)
            return
        now = time.monotonic()
        if now - self._said >= SECONDS_BETWEEN_LINES or record.step in (1, self._steps):
            self._said = now
            self._line(self._words(record))

    def evaluation(self, step: int, loss: float | None) -> None:
        """Shows a loss on held-out data, when there is one."""
        if loss is not None:
            self._line(f"step {step:<6} held-out loss {loss:.4f}")

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        elif self._speaks:
            note(text)

    def _words(self, r: StepRecord) -> str:
        of = f"/{self._steps}" if self._steps else ""
        left = f"  {clock(r.left)} left" if r.left is not None else ""
        return (
            f"step {r.step}{of}  loss {r.loss:.4f}  rate {r.rate:.2g}  "
            f"{r.tokens_per_second:,.0f} tokens/s  {format_size(r.peak_rss)}{left}"
        )


def clock(seconds: float) -> str:
    """Time for people: 0:07, 12:30, 3:02:10."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
