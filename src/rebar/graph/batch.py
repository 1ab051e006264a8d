"""Batch: whole sequences of ids with what should follow each, as one training step takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError

NOT_ASKED = -100  # a target that stands for "any id is right here"
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """sequences: (ids, targets), each int32 (n,); targets[i] is the id that follows ids[i], or
    NOT_ASKED.

    Errors: InputError for a sequence without ids, other types, or lengths that differ.
    """

    sequences: tuple[tuple[Ids, Ids], ...]

    def __post_init__(self) -> None:
        for i, (ids, targets) in enumerate(self.sequences):
            if ids.dtype != np.int32 or targets.dtype != np.int32:
                raise InputError(
                    f"sequence {i}: ids are {ids.dtype}, targets {targets.dtype}. Give int32."
                )
            if ids.ndim != 1 or ids.shape != targets.shape or not ids.size:
                raise InputError(
                    f"sequence {i}: {ids.shape} ids and {targets.shape} targets. Give as many "
                    f"targets as ids, {NOT_ASKED} where none is asked, and at least one."
                )

    @classmethod
    def of(cls, *texts: list[int] | Ids) -> Batch:
        """Every id but the first is the target of the one before it."""
        pairs = []
        for text in texts:
            ids = np.asarray(text, dtype=np.int32)
            pairs.append((ids, np.append(ids[1:], np.int32(NOT_ASKED))))
        return cls(tuple(pairs))

    @property
    def rows(self) -> int:
        """Ids in all sequences."""
        return sum(ids.size for ids, _ in self.sequences)

    @property
    def tokens(self) -> int:
        """Supervised targets."""
        return sum(int((targets >= 0).sum()) for _, targets in self.sequences)
