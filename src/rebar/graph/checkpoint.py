"""A folder of checkpoints: saved under names that never meet, found again whatever was killed.

A name carries step and time (UTC, microseconds): checkpoint-00000120-20261130T112233.123456Z. Of
what lies there the newest sound one counts, by step and then by time; broken ones are named in a
warning, passed over, and take no place of a sound one. A save is whole or absent (temporary name,
fsync of file and folder, rename), and holds a lock of the folder, so that two runs cannot take one
name and what a killed save left behind can be told from a living one's and is swept away.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from rebar.errors import InputError, ModelFileError, TrainingError
from rebar.graph.checkpoint_file import F32, Saved, State, read_checkpoint, write_checkpoint
from rebar.hal.files import locked

Kind = Literal["checkpoint", "best"]

_NAME = re.compile(r"(checkpoint|best)-(\d{8,})-(\d{8}T\d{6}\.\d{6}Z)\.safetensors")
_LOCK = ".checkpoints.lock"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """folder: made when first written to. keep: newest checkpoints that stay (and the one best).
    warn: told of each file passed over.
    """

    folder: Path
    keep: int = 3
    warn: Callable[[str], None] = lambda _: None
    now: Callable[[], datetime] = _now

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InputError(f"{self.keep} checkpoints to keep; at least one must stay.")

    def save(
        self, step: int, state: State, arrays: Mapping[str, F32], kind: Kind = "checkpoint"
    ) -> Path:
        """Writes a checkpoint, then takes those away that are too many. TrainingError when the disk
        refuses; what was there before stays.
        """
        try:
            with locked(self.folder / _LOCK):
                self._sweep()
                path = self._free_name(step, kind)
                write_checkpoint(path, state, arrays)
                for old in self._too_many(step, kind):
                    if old != path:
                        old.unlink(missing_ok=True)
        except OSError as error:
            what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
            raise TrainingError(
                f"no checkpoint could be written to {self.folder}: {what}. Older ones are as they "
                "were; make room or name another --out."
            ) from error
        return path

    def _too_many(self, step: int, kind: Kind) -> list[Path]:
        """What is older than those that stay. A later step than the one just saved is none of this
        run's: it went on from the newest sound one, so what has a later name is broken.
        """
        kept = self.keep if kind == "checkpoint" else 1
        return [path for path in self.paths(kind) if _step(path) <= step][kept:]

    def _sweep(self) -> None:
        """Nobody else saves while the lock is held: what has a temporary name is of the dead."""
        for left in self.folder.glob(".*.safetensors.*.part"):
            if _NAME.match(left.name[1:]):
                left.unlink(missing_ok=True)

    def _free_name(self, step: int, kind: Kind) -> Path:
        at = self.now().astimezone(UTC)
        while True:
            name = f"{kind}-{step:08d}-{at:%Y%m%dT%H%M%S.%fZ}.safetensors"
            if not (self.folder / name).exists():
                return self.folder / name
            at += timedelta(microseconds=1)

    def paths(self, kind: Kind = "checkpoint") -> list[Path]:
        """Names of that kind, the newest first; nothing is opened."""
        if not self.folder.is_dir():
            return []
        named = [(m, p) for p in self.folder.iterdir() if (m := _NAME.fullmatch(p.name))]
        found = [(int(m[2]), m[3], p) for m, p in named if m[1] == kind]
        return [path for _, _, path in sorted(found, reverse=True)]

    def newest(self, kind: Kind = "checkpoint") -> Saved | None:
        """The newest sound one; None when there is none."""
        for path in self.paths(kind):
            try:
                return read_checkpoint(path)
            except ModelFileError as error:
                self.warn(f"{error} Passed over.")
        return None


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])
