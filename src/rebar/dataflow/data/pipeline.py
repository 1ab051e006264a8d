"""DataPipeline: a data set in its order, through stages, with bounded memory.

Chunks of consecutive places go through all stages, several at once on threads (text is encoded
without the GIL; threads share everything, so that more of them cost no memory), and come out in
order. How many samples a chunk has follows the memory that is free; what is being worked on or
waits to be taken has a budget in bytes. Neither changes what comes out: stages are functions of
their items (stage.py).
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.dataset import Dataset
from rebar.dataflow.data.order import samples_at
from rebar.dataflow.data.parse import Records
from rebar.dataflow.data.stage import AnyStage, Item, RawItems
from rebar.errors import DataError
from rebar.hal import read_machine

AnyItem = Item[Any]
PROBED_EVERY, PROBED = 64, 32  # one chunk of so many, and so many of its items, are estimated
ORDERED = 4096  # places whose samples are found at once


def free_memory() -> int:
    """Bytes that this process could still take."""
    return read_machine().memory_available


class BatchSizer:
    """How many samples go through the stages together: as many as fit into a share of the memory
    that is free now. Less at once when memory goes, twice as many at most when it comes back.
    """

    LOOK_S = 0.05  # how long a reading of the free memory counts

    def __init__(
        self,
        least: int = 1,
        most: int = 256,
        share: float = 1 / 16,
        free: Callable[[], int] = free_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """least, most: samples. share: of the free memory, for one chunk."""
        if not 1 <= least <= most:
            raise DataError(f"chunks of {least} to {most} samples are none. Give 1 or more.")
        self.least, self.most, self.size = least, most, least
        self._share, self._free, self._clock = share, free, clock
        self._read_at, self._room = float("-inf"), 0.0

    def room(self) -> float:
        """Bytes that one chunk may take now."""
        if self._clock() - self._read_at >= self.LOOK_S:
            self._read_at, self._room = self._clock(), self._share * self._free()
        return self._room

    def next(self, bytes_per_sample: float, limit: float) -> int:
        """Samples of the next chunk, which may take `limit` bytes at most."""
        fitting = int(min(self.room(), limit) / max(bytes_per_sample, 1.0))
        self.size = max(self.least, min(fitting, 2 * self.size, self.most))
        return self.size


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk that went through. footprints: stage name to estimated bytes, for a probed one."""

    items: Sequence[AnyItem]
    footprints: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What goes through the stages together. weight: bytes of its raw samples."""

    items: Sequence[AnyItem]
    weight: int


@dataclass(frozen=True, slots=True)
class Flight:
    """A chunk on its way."""

    result: Future[Done]
    chunk: Chunk


class DataPipeline:
    """Reads `dataset` through `stages`."""

    def __init__(
        self,
        dataset: Dataset,
        stages: Sequence[AnyStage],
        *,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 1,
        prefetch_bytes: int = 16 << 20,
        sizer: BatchSizer | None = None,
    ) -> None:
        """workers: threads; 0: the caller's. prefetch_bytes: of chunks worked on and waiting, which
        is what any number of threads adds to memory, but for some 10 MB of heaps of their own.
        """
        self.dataset, self.stages = dataset, tuple(stages)
        self.seed, self.shuffle = seed, shuffle
        self.sizer = sizer or BatchSizer()
        self._workers, self._budget = workers, prefetch_bytes
        self._per_byte = 0.0  # bytes at the widest place between stages, for a byte of raw sample
        self._per_sample = 0.0  # the same, for a sample
        self.footprints: Mapping[str, float] = {}  # estimated bytes a sample, by stage

    def digest(self, samples: int, *packing: AnyStage) -> str:
        """Of the data, the order and every setting that decides what a window of `samples` samples
        holds. packing: stages that make it out of what comes out here.
        """
        stages = [(stage.name, dict(stage.settings)) for stage in (*self.stages, *packing)]
        said = (self.dataset.digest, (self.seed, self.shuffle, samples), stages)
        return hashlib.sha256(msgspec.json.encode(said)).hexdigest()

    def run(self, epoch: int = 0, place: int = 0) -> Generator[AnyItem]:
        """What comes out, from that place of the epoch's order to its end. Close it to stop."""
        if self._workers == 0:
            return self._alone(epoch, place)
        return self._ahead(epoch, place)

    def _alone(self, epoch: int, place: int) -> Generator[AnyItem]:
        for number, chunk in enumerate(self._chunks(epoch, place)):
            done = self._through(chunk.items, number % PROBED_EVERY == 0)
            self._learn(done, chunk)
            yield from done.items
            # The next chunk is made in the memory of this one, which is in the caches still.
            del done, chunk

    def _ahead(self, epoch: int, place: int) -> Generator[AnyItem]:
        """Chunks are begun while the budget allows; one is always allowed."""
        flights: deque[Flight] = deque()
        chunks, number = self._chunks(epoch, place), 0
        waiting = next(chunks, None)
        with ThreadPoolExecutor(self._workers, "rebar-data") as pool:
            try:
                while waiting or flights:
                    while waiting and self._may_begin(flights, waiting):
                        probed = number % PROBED_EVERY == 0
                        result = pool.submit(self._through, waiting.items, probed)
                        flights.append(Flight(result, waiting))
                        waiting, number = next(chunks, None), number + 1
                    yield from self._landed(flights[0])
                    flights.popleft()
            finally:
                for flight in flights:
                    flight.result.cancel()

    def _landed(self, flight: Flight) -> Iterator[AnyItem]:
        done = flight.result.result()
        self._learn(done, flight.chunk)
        yield from done.items

    def _may_begin(self, flights: deque[Flight], chunk: Chunk) -> bool:
        """The first chunk goes alone: it tells what the others will cost."""
        if not flights:
            return True
        weight = chunk.weight + sum(flight.chunk.weight for flight in flights)
        return 0 < weight * self._per_byte <= self._budget

    def _chunks(self, epoch: int, place: int) -> Iterator[Chunk]:
        """Consecutive places, as many together as the sizer says and memory allows."""
        count = len(self.dataset)
        known, order = place, np.empty(0, np.int64)
        while place < count:
            limit = self._budget / (self._workers + 1)
            size = self.sizer.next(self._per_sample, limit)
            if place + size > known + len(order):
                known, order = place, self._order(epoch, place)
            samples = order[place - known : place - known + size]
            raws = self.dataset.raws(samples)
            sums = np.cumsum(_weights(raws))
            # A long sample may stand among short ones: the chunk ends before it.
            room = min(self.sizer.room(), limit)
            fitting = int(np.searchsorted(sums * self._per_byte, room, "right"))
            taken = min(max(fitting, self.sizer.least), len(samples))
            items = RawItems(epoch, place, samples[:taken].tolist(), raws[:taken])
            yield Chunk(items, int(sums[taken - 1]))
            place += taken

    def _order(self, epoch: int, place: int) -> NDArray[np.int64]:
        """The samples from there on, some chunks' worth."""
        count = len(self.dataset)
        places = np.arange(place, min(place + max(ORDERED, self.sizer.most), count))
        return samples_at(places, count, self.seed, epoch) if self.shuffle else places

    def _through(self, items: Sequence[AnyItem], probed: bool) -> Done:
        found: dict[str, int] = {}
        for stage in self.stages:
            if probed and items:
                some = items[:PROBED]
                found[stage.name] = stage.get_memory_footprint(some) * len(items) // len(some)
            items = stage.process_batch(items)
        return Done(items, found if probed else None)

    def _learn(self, done: Done, chunk: Chunk) -> None:
        """The widest place: what one stage reads and what it makes are there together."""
        if done.footprints is None:
            return
        made = list(done.footprints.values())
        widest = max((a + b for a, b in zip([0, *made], made, strict=False)), default=0)
        count = len(chunk.items)
        self._per_byte = max(widest, 1) / max(chunk.weight, 1)
        self._per_sample = max(widest, 1) / count
        self.footprints = {name: nbytes / count for name, nbytes in done.footprints.items()}


def _weights(raws: Sequence[Any]) -> Sequence[int] | NDArray[np.uint64]:
    """Bytes of each raw sample; 1 for what does not tell."""
    if isinstance(raws, Records):
        return raws.nbytes
    with suppress(AttributeError):
        return [raw.nbytes for raw in raws]
    return [len(raw) if isinstance(raw, bytes | str) else 1 for raw in raws]
