"""What a training run leaves to read: a line of JSON an event, and a picture of the losses.

Events: start, step, evaluation, saved, end. A run that was killed between two checkpoints makes
some steps again when it goes on; the later line of a step counts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rebar.errors import InputError
from rebar.hal.files import lock_now

LOG, PLOT = "log.jsonl", "loss.svg"


class RunLog:
    """Appends to DIR/log.jsonl; each line is there when `write` returns. While it is open, nobody
    else can open it. begun: whether an earlier process wrote to it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+", encoding="utf-8")
            alone = lock_now(self._file.fileno())
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written to: {error.strerror}. Give --out another folder.",
                param="out",
            ) from error
        if not alone:
            self._file.close()
            raise InputError(
                f"a run is writing to {folder} right now. Wait for its end, or give another --out.",
                param="out",
            )
        size = os.fstat(self._file.fileno()).st_size
        self.begun = size > 0
        if self.begun and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            # A process that was killed left half a line, which would swallow the next.
            self._file.write("\n")

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """One line. What is no number (a loss that exploded) is written as null."""
        line = json.dumps({"event": event} | _sound(facts), ensure_ascii=False, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()
        self.begun = True

    def close(self) -> None:
        """No more lines. A log without any is taken away: the folder holds no run."""
        with contextlib.suppress(OSError):  # a full disk was told of when a line was written
            self._file.close()
        if not self.begun:
            with contextlib.suppress(OSError):
                self.path.unlink()


def _sound(facts: Mapping[str, Any]) -> dict[str, Any]:
    finite = float("-inf"), float("inf")
    return {
        name: None if isinstance(v, float) and not finite[0] < v < finite[1] else v
        for name, v in facts.items()
    }


def read_curves(path: Path) -> tuple[dict[int, float], dict[int, float]]:
    """(loss by step, held-out loss by step) of a log; a last line that was cut short is no line."""
    losses: dict[int, float] = {}
    held_out: dict[int, float] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        into = {"step": losses, "evaluation": held_out}.get(event["event"])
        if into is not None and event["loss"] is not None:
            into[event["step"]] = event["loss"]
    return losses, held_out


def draw(folder: Path, title: str) -> Path:
    """Draws DIR/loss.svg from DIR/log.jsonl."""
    from rebar.hal.files import write_whole
    from rebar.insight.plot import Series, line_plot, smoothed

    losses, held_out = read_curves(folder / LOG)
    steps = sorted(losses.items())
    picture = line_plot(
        [
            Series("step", steps, "#1f77b4", faint=True),
            Series("training", smoothed(steps), "#1f77b4"),
            Series("held out", sorted(held_out.items()), "#d62728", dots=True),
        ],
        title,
        "step",
        "loss, nats a token",
    )
    with write_whole(folder / PLOT) as file:
        file.write(picture.encode())
    return folder / PLOT
