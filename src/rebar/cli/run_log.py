"""What a training run leaves to read: a line of JSON an event, and a picture of the losses.

Events: start, step, evaluation, saved, end. A run that was killed between two checkpoints makes
some steps again when it goes on; the later line of a step counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rebar.errors import InputError

LOG, PLOT = "log.jsonl", "loss.svg"


class RunLog:
    """Appends to DIR/log.jsonl; each line is there when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written to: {error.strerror}. Give --out another folder.",
                param="out",
            ) from error

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """One line. What is no number (a loss that exploded) is written as null."""
        line = json.dumps({"event": event} | _sound(facts), ensure_ascii=False, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()


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
    for line in path.read_text(encoding="utf-8").splitlines():
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
