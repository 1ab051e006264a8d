"""What flows through a pipeline, and what a stage is.

The law: a stage is a function of its items. What comes out for one item depends on that item and
on the stage's settings, not on the other items of the call, on how the data were cut into calls, on
the worker or on what came before; randomness is drawn from `order.generator`, addressed by seed,
epoch and sample. So a pipeline gives the same items with any number of workers and any batch size,
and a run that was stopped goes on as if it had not been. (Pack and Batch make one thing out of many
items; there the whole call is the unit.)
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
U = TypeVar("U")
In = TypeVar("In")
Out = TypeVar("Out")


class Item(msgspec.Struct, Generic[T], frozen=True):
    """One sample on its way, or a piece of one.

    epoch: from 0. place: where it stands in the order of that epoch. sample: its number in the data
    set. piece: from 0, where a stage makes several items of one. value: what the stage before made.
    """

    epoch: int
    place: int
    sample: int
    value: T
    piece: int = 0

    def having(self, value: U, piece: int | None = None) -> Item[U]:
        """The same sample with another value."""
        number = self.piece if piece is None else piece
        return Item(self.epoch, self.place, self.sample, value, number)


class RawItems(Sequence[Item[T]]):
    """Consecutive places of an epoch as a data set has them. Their items are made when they are
    looked at: a stage that reads `raws` together needs none.
    """

    def __init__(self, epoch: int, place: int, samples: list[int], raws: Sequence[T]) -> None:
        """place: of the first; raws: as many as samples."""
        self._epoch, self._place, self._samples, self.raws = epoch, place, samples, raws

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, number: int) -> Item[T]: ...
    @overload
    def __getitem__(self, number: slice) -> RawItems[T]: ...
    def __getitem__(self, number: int | slice) -> Item[T] | RawItems[T]:
        if isinstance(number, slice):
            begin, end, step = number.indices(len(self))
            if step != 1:
                raise ValueError("places are consecutive: slices have a step of 1")
            samples, raws = self._samples[begin:end], self.raws[begin:end]
            return RawItems(self._epoch, self._place + begin, samples, raws)
        at = range(len(self))[number]
        return Item(self._epoch, self._place + at, self._samples[at], self.raws[at])

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self.having(self.raws))

    def having(self, values: Iterable[U]) -> list[Item[U]]:
        """The same samples with other values, one each."""
        places = range(self._place, self._place + len(self))
        return list(map(Item, repeat(self._epoch), places, self._samples, values))


class Tally:
    """What a stage counts: named numbers, and for some the first places where it happened. Any
    thread may count.
    """

    FIRST = 8  # places kept for each name: enough to look at, no memory to speak of

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[str]] = {}

    def add(self, name: str, count: int = 1, where: str | None = None) -> None:
        """Counts `count` more of `name`; `where` says where the first ones were."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count
            places = self._first.setdefault(name, [])
            if where is not None and len(places) < self.FIRST:
                places.append(where)

    def clear(self) -> None:
        """Begins anew."""
        with self._lock:
            self._counts.clear()
            self._first.clear()

    @property
    def counts(self) -> Mapping[str, int]:
        """What was counted so far."""
        with self._lock:
            return dict(self._counts)

    def first(self, name: str) -> Sequence[str]:
        """Where the first ones of `name` were."""
        with self._lock:
            return tuple(self._first.get(name, ()))


class Stage(ABC, Generic[In, Out]):
    """One step from raw records to batches. May be called from several threads at once."""

    def __init__(self) -> None:
        self.tally = Tally()

    @property
    def name(self) -> str:
        """As it is told in plans and errors."""
        return type(self).__name__.lower()

    @property
    def settings(self) -> Mapping[str, str | int]:
        """What decides its results besides the items: named in the digest of a source, so that a
        run does not go on with other settings than it began with.
        """
        return {}

    @abstractmethod
    def process_batch(self, batch: Sequence[Item[In]]) -> list[Item[Out]]:
        """The items made of `batch`, in its order. One that the stage's policy leaves out is
        missing and counted in `tally`.
        """

    @abstractmethod
    def get_memory_footprint(self, batch: Sequence[Item[In]]) -> int:
        """Bytes that process_batch(batch) will have allocated when it returns: the list, its items
        and values, without what they share with `batch`. An estimate made without doing the work,
        within 5 % of what tracemalloc counts.
        """


AnyStage = Stage[Any, Any]
