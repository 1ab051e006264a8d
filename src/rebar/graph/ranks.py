"""Processes that train one model together, each on data of its own: what they tell each other.

The law: every rank makes the same calls in the same order, and what comes back is the same on all,
to the bit: lists stand in the order of ranks, sums are made in it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Plain = TypeVar("Plain")  # what JSON can say


class Ranks(Protocol):
    """A group of `count` processes, of which this is `rank`."""

    @property
    def rank(self) -> int:
        """This process, from 0. Rank 0 writes files and speaks."""

    @property
    def count(self) -> int:
        """Processes."""

    def gather(self, value: Plain) -> list[Plain]:
        """The values of all ranks."""

    def add(self, values: NDArray[np.float32]) -> None:
        """Each element becomes its sum over the ranks, added in ascending order."""


class Alone:
    """One process: nothing to tell."""

    rank = 0
    count = 1

    def gather(self, value: Plain) -> list[Plain]:
        """Itself."""
        return [value]

    def add(self, values: NDArray[np.float32]) -> None:
        """As they are."""
