"""A training run at the terminal: progress, log, picture, and an end by Ctrl-C that loses nothing.

The first Ctrl-C (or SIGTERM) ends the run before its next change of the parameters and saves; the
second leaves at once, with the last checkpoint.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rebar.cli.options import format_size
from rebar.cli.output import SECONDS_BETWEEN_LINES, note
from rebar.cli.run_log import RunLog, draw

if TYPE_CHECKING:
    from rebar.graph.trainer import StepRecord, Trainer


def train(
    trainer: Trainer[Any], folder: Path, title: str, start: Mapping[str, Any], *, again: str
) -> dict[str, Any]:
    """Runs a trainer to its end, or until somebody stops it, and gives the facts of the run.

    start: facts for the log's first line. again: the command that goes on after a stop. Only the
    first rank speaks and writes.
    """
    speaks = trainer.ranks.rank == 0
    log = RunLog(folder) if speaks else None
    begun, first = time.perf_counter(), trainer.progress.step
    last = None
    try:
        with _stopping(trainer), _Shown(trainer.last, speaks) as shown:
            if log is not None:
                log.write("start", {"step": first} | dict(start))
            _evaluated(log, first, _before(trainer))
            for last in trainer.run():
                shown(last)
                if log is not None:
                    log.write("step", _facts(last))
                _evaluated(log, last.step, last.evaluation)
        facts = _summary(trainer, first, last, time.perf_counter() - begun)
        if log is not None:
            log.write("end", facts)
            facts["plot"] = str(draw(folder, title))
    finally:
        if log is not None:
            log.close()
    if trainer.stopped and speaks:
        note(f"stopped at step {trainer.progress.step}, saved. Go on with:\n  {again}")
    return facts


def _before(trainer: Trainer[Any]) -> float | None:
    """The held-out loss before the first step."""
    return trainer.evaluate() if trainer.held_out and not trainer.progress.step else None


def _evaluated(log: RunLog | None, step: int, loss: float | None) -> None:
    if log is not None and loss is not None:
        log.write("evaluation", {"step": step, "loss": loss})
        note(f"step {step:>6}  held-out loss {loss:.4f}")


def _facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(record)
    del facts["evaluation"]
    return facts


def _summary(
    trainer: Trainer[Any], first: int, last: StepRecord | None, seconds: float
) -> dict[str, Any]:
    progress = trainer.progress
    made = progress.step - first
    return {
        "step": progress.step,
        "loss": last.loss if last is not None else None,
        "best_held_out_loss": progress.best,
        "best_step": progress.best_step if progress.best is not None else None,
        "tokens": progress.tokens,
        "skipped_samples": progress.skipped,
        "seconds": round(seconds, 3),
        "seconds_a_step": round(seconds / made, 4) if made else None,
        "peak_rss": format_size(last.peak_rss) if last is not None else None,
        "stopped": trainer.stopped,
    }


@contextmanager
def _stopping(trainer: Trainer[Any]) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the trainer to end; the second of them is what it always was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        trainer.stop()
        note("stopping: saves a checkpoint first (once more: leaves at once)")

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Shown:
    """A bar on a terminal, a line every two seconds elsewhere; nothing on ranks that are silent."""

    def __init__(self, steps: int | None, speaks: bool) -> None:
        self._steps = steps
        self._speaks = speaks
        self._bar: Any = None
        self._said = 0.0

    def __enter__(self) -> _Shown:
        if self._speaks and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(bar_width=None)
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("step 0", total=self._steps)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: StepRecord) -> None:
        """Shows a step."""
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, description=self._words(record))
            return
        now = time.monotonic()
        if self._speaks and (now - self._said >= SECONDS_BETWEEN_LINES or record.left == 0):
            self._said = now
            note(self._words(record))

    def _words(self, r: StepRecord) -> str:
        of = f"/{self._steps}" if self._steps else ""
        left = f", {clock(r.left)} left" if r.left is not None else ""
        return (
            f"step {r.step}{of}  loss {r.loss:.4f}  {r.tokens_per_second:,.0f} tokens/s  "
            f"{format_size(r.peak_rss)}{left}"
        )


def clock(seconds: float) -> str:
    """Time for people: 0:07, 12:30, 3:02:10."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
