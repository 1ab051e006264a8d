"""DataPipeline: the same items whatever works on them, in bounded memory."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rebar.dataflow.data import BatchSizer, DataPipeline, Item, Stage, generator
from rebar.dataflow.data.footprint import array_bytes, items_bytes
from rebar.errors import DataError


class Numbers:
    """A data set of numbers. nbytes: what each is said to weigh."""

    digest = "numbers"

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def raws(self, samples: NDArray[np.int64]) -> list[bytes]:
        return [b"%d" % n for n in samples]

    def where(self, sample: int) -> str:
        return f"number {sample}"


class Blow(Stage[bytes, NDArray[np.uint8]]):
    """Makes `nbytes` of each sample; notes how many it was given at once, and draws a number."""

    def __init__(self, nbytes: int = 10, drops: int = 0) -> None:
        super().__init__()
        self.nbytes, self.drops, self.calls = nbytes, drops, list[int]()
        self.threads = set[str]()

    def process_batch(self, batch: Sequence[Item[bytes]]) -> list[Item[NDArray[np.uint8]]]:
        self.calls.append(len(batch))
        self.threads.add(threading.current_thread().name)
        done = []
        for item in batch:
            made = np.zeros(self.nbytes, np.uint8)
            made[:8] = generator(3, item.epoch, item.sample, "blow").integers(0, 256, 8)
            if not self.drops or item.sample % self.drops:
                done.append(item.having(made))
        return done

    def get_memory_footprint(self, batch: Sequence[Item[bytes]]) -> int:
        return items_bytes(len(batch)) + len(batch) * array_bytes(self.nbytes, np.uint8)


def numbers(pipeline: DataPipeline, epoch: int = 0, place: int = 0) -> list[tuple[Any, ...]]:
    return [(i.epoch, i.place, i.sample, i.value[:8].tobytes()) for i in pipeline.run(epoch, place)]


def test_case_j7() -> None:
    """A-j7: workers share one random stream: forked ones repeat each other's numbers, every epoch
    (torch 5059, 41329). 4 workers, a draw a sample, 2 epochs.
    """
    found = {
        (workers, epoch): numbers(DataPipeline(Numbers(100), [Blow()], workers=workers), epoch)
        for workers in (0, 1, 4)
        for epoch in (0, 1)
    }
    for epoch in (0, 1):
        assert found[0, epoch] == found[1, epoch] == found[4, epoch]
        assert sorted(n for _, _, n, _ in found[4, epoch]) == list(range(100))
    draws = {(sample, drawn) for e in (0, 1) for _, _, sample, drawn in found[4, e]}
    assert len({drawn for _, drawn in draws}) == 200


@settings(deadline=None)
@given(st.lists(st.integers(0, 400_000), min_size=1), st.integers(0, 3), st.integers(0, 60))
def test_chunks_follow_free_memory_and_lose_nothing(
    free: list[int], workers: int, place: int
) -> None:
    """Whatever the memory does, each sample comes once, in its place."""
    readings = iter(free * 1000)
    sizer = BatchSizer(most=16, share=1.0, free=lambda: next(readings))
    sizer.LOOK_S = -1.0
    pipeline = DataPipeline(
        Numbers(60), [Blow(1000, drops=7)], workers=workers, prefetch_bytes=100_000, sizer=sizer
    )
    plain = DataPipeline(Numbers(60), [Blow(1000, drops=7)], workers=0)
    assert numbers(pipeline, 5, place) == numbers(plain, 5, place)


def test_chunks_shrink_at_once_and_grow_by_doubling() -> None:
    now = [10**9]
    sizer = BatchSizer(most=64, share=0.5, free=lambda: now[0], clock=lambda: 0.0)
    sizer.LOOK_S = 0.0
    assert [sizer.next(1000, 1e12) for _ in range(7)] == [2, 4, 8, 16, 32, 64, 64]
    now[0] = 10_000
    assert sizer.next(1000, 1e12) == 5
    now[0] = 0
    assert sizer.next(1000, 1e12) == 1
    now[0] = 10**9
    assert [sizer.next(1000, 1e12) for _ in range(3)] == [2, 4, 8]
    assert sizer.next(1000, 3000) == 3


def test_free_memory_is_not_read_for_every_chunk() -> None:
    reads = []
    sizer = BatchSizer(free=lambda: reads.append(1) or 10**9, clock=lambda: 1.0)  # type: ignore[func-returns-value]
    for _ in range(100):
        sizer.next(1.0, 1e9)
    assert len(reads) == 1


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_is_read_ahead_is_bounded(workers: int) -> None:
    """A slow reader, samples of 100 KB, a budget of 2 MB: no more than that is alive, and what one
    stage call has in hands.
    """
    budget, each = 2 << 20, 100_000
    pipeline = DataPipeline(
        Numbers(300), [Blow(each)], workers=workers, prefetch_bytes=budget, shuffle=False
    )
    numbers(DataPipeline(Numbers(300), [Blow(10)], workers=workers))
    tracemalloc.start()
    try:
        for item in pipeline.run():
            if item.place % 50 == 0:
                time.sleep(0.02)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budget + 2 * each
    if workers:
        assert peak > 4 * each  # it does read ahead


def test_a_long_sample_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    """One record of a megabyte among short ones: chunks end before it."""

    class Uneven(Numbers):
        def raws(self, samples: NDArray[np.int64]) -> list[bytes]:
            return [b"x" * (10**6 if n % 50 == 49 else 100) for n in samples]

    class Copy(Blow):
        def process_batch(self, batch: Sequence[Item[bytes]]) -> list[Item[Any]]:
            self.calls.append(sum(len(item.value) for item in batch))
            return [item.having(bytes(item.value) + b"!") for item in batch]

        def get_memory_footprint(self, batch: Sequence[Item[bytes]]) -> int:
            return items_bytes(len(batch)) + sum(len(item.value) + 34 for item in batch)

    stage = Copy()
    pipeline = DataPipeline(
        Uneven(400), [stage], workers=0, prefetch_bytes=2_500_000, shuffle=False
    )
    assert sum(1 for _ in pipeline.run()) == 400
    assert max(stage.calls) < 2_500_000


def test_threads_work_and_are_gone_afterwards() -> None:
    stage = Blow()
    pipeline = DataPipeline(Numbers(2000), [stage], workers=2, sizer=BatchSizer(most=4))
    items = pipeline.run()
    next(items)
    items.close()
    assert stage.threads <= {"rebar-data_0", "rebar-data_1"}
    assert not [t for t in threading.enumerate() if t.name.startswith("rebar-data")]


def test_a_fault_comes_in_its_place() -> None:
    class Trip(Blow):
        def process_batch(self, batch: Sequence[Item[bytes]]) -> list[Item[Any]]:
            if any(item.place == 50 for item in batch):
                raise DataError("number 50: here.")
            return super().process_batch(batch)

    pipeline = DataPipeline(Numbers(100), [Trip()], workers=3, sizer=BatchSizer(most=1))
    seen = []
    with pytest.raises(DataError, match="number 50"):
        seen += [item.place for item in pipeline.run()]
    assert not [t for t in threading.enumerate() if t.name.startswith("rebar-data")]


def test_footprints_are_told() -> None:
    pipeline = DataPipeline(Numbers(100), [Blow(1000)], workers=1)
    assert pipeline.footprints == {}
    list(pipeline.run())
    assert 1000 < pipeline.footprints["blow"] < 1300


def test_sizes_that_are_none() -> None:
    with pytest.raises(DataError, match="1 or more"):
        BatchSizer(least=0)
