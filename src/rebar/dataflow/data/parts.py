"""Data sets made of others: some samples of one, or several in a row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.dataset import Dataset
from rebar.dataflow.data.order import samples_at

Samples = NDArray[np.int64]


def divided(count: int, held: int, seed: int) -> tuple[Samples, Samples]:
    """Which of `count` samples are learned from and which `held` ones are held out, by the seed
    alone; each part in the order of the data set.
    """
    # No epoch has this number: what is held out is the beginning of no epoch's order.
    order = samples_at(np.arange(count), count, seed, -1)
    return np.sort(order[held:]), np.sort(order[:held])


class Subset:
    """Some samples of a data set, under numbers of their own."""

    def __init__(self, dataset: Dataset, samples: Samples) -> None:
        self._dataset, self._samples = dataset, samples

    @cached_property
    def digest(self) -> str:
        """Of the whole, and which part; found when asked for, since a folder's reads its files."""
        said = self._dataset.digest.encode() + self._samples.astype("<i8").tobytes()
        return hashlib.sha256(said).hexdigest()

    def __len__(self) -> int:
        return len(self._samples)

    def raws(self, samples: Samples) -> Sequence[Any]:
        """As the whole data set has them."""
        return self._dataset.raws(self._samples[samples])

    def where(self, sample: int) -> str:
        """As the whole data set says."""
        return self._dataset.where(int(self._samples[sample]))


class Concat:
    """The samples of several data sets, one after another."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = tuple(datasets)
        self._ends = np.cumsum([len(dataset) for dataset in datasets], dtype=np.int64)
        said = "".join(f"{dataset.digest}\n" for dataset in datasets)
        self.digest = hashlib.sha256(said.encode()).hexdigest()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def raws(self, samples: Samples) -> Sequence[Any]:
        """As each of them has its own; those of one are asked for together."""
        found: list[Any] = [None] * len(samples)
        which = np.searchsorted(self._ends, samples, "right")
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            raws = self._datasets[number].raws(samples[places] - self._begin(number))
            for place, raw in zip(places.tolist(), raws, strict=True):
                found[place] = raw
        return found

    def where(self, sample: int) -> str:
        """As the one that it is from says."""
        number = int(np.searchsorted(self._ends, sample, "right"))
        return self._datasets[number].where(sample - self._begin(number))

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0
