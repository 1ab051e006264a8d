"""Part of a data set, and a data set cut in two: what is trained on, and what is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.dataset import Dataset
from rebar.dataflow.data.order import samples_at
from rebar.errors import DataError

HELD_OUT = -1  # the "epoch" whose order decides what is held out; real ones count from 0


class Subset:
    """The samples of `whole` with these numbers, in this order."""

    def __init__(self, whole: Dataset, numbers: NDArray[np.int64]) -> None:
        self.whole = whole
        self.numbers = numbers

    @property
    def digest(self) -> str:
        """Of the whole and of the choice."""
        said = hashlib.sha256(self.whole.digest.encode())
        said.update(self.numbers.astype("<i8").tobytes())
        return said.hexdigest()

    def __len__(self) -> int:
        return len(self.numbers)

    def raws(self, samples: NDArray[np.int64]) -> Sequence[Any]:
        """These samples as they lie."""
        return self.whole.raws(self.numbers[samples])

    def where(self, sample: int) -> str:
        """Its place in the whole."""
        return self.whole.where(int(self.numbers[sample]))


def split(whole: Dataset, share: float, seed: int) -> tuple[Subset, Subset]:
    """(to train on, held out): `share` of the samples, at least one, drawn by seed; both parts keep
    the order of the whole. Raises DataError where one of them would be empty.
    """
    count = len(whole)
    held = max(1, round(share * count))
    if not 0 < share < 1 or held >= count:
        raise DataError(
            f"{share:g} of {count} samples held out leaves nothing on one side. Give --eval-split "
            "a share between 0 and 1, like 0.05, and more data than that."
        )
    chosen = samples_at(np.arange(count), count, seed, HELD_OUT)
    return Subset(whole, np.sort(chosen[held:])), Subset(whole, np.sort(chosen[:held]))
