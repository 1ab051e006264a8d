"""What verbs print: facts (text or one line of JSON) on standard output, progress on the other."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def emit(facts: Mapping[str, Any], *, json: bool) -> None:
    """Prints facts: one line of JSON for machines, a line per fact for people."""
    if json:
        sys.stdout.write(jsonlib.dumps(facts, ensure_ascii=False) + "\n")
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        sys.stdout.write(f"{name.replace('_', ' '):<{width}}  {value}\n")


def note(line: str) -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """Progress of long work: a bar on a terminal, elsewhere a line every two seconds."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._what = ""
        self._said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` units of `what` are behind us; total 0: not known."""
        if what != self._what:
            self._begin(what, total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None)
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            note(f"{what}: {done * 100 // total} %" if total else f"{what}: {done:,}")

    def _begin(self, what: str, total: int) -> None:
        self.close()
        self._what = what
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(what, total=total or None)

    def close(self) -> None:
        """Takes the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None
        self._what = ""


@contextmanager
def progress() -> Iterator[Progress]:
    """A Progress that leaves the terminal clean, whatever happens."""
    shown = Progress()
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Says how long a phase took."""
    begin = time.perf_counter()
    yield
    note(f"{what:<10} {time.perf_counter() - begin:.2f} s")
