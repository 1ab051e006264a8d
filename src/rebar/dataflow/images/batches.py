"""ImageBatches: windows of images for a trainer (graph/window.py), from any place again.

A window is `samples` consecutive places of an epoch's order, the last one what is left; it is cut
into micro-batches of at most `rows` images. Its number among all windows of the run is the address
of its dropout, so a run that goes on from a place computes what it would have.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

import numpy as np

from rebar.dataflow.data.faults import OnError
from rebar.dataflow.data.footprint import array_bytes, items_bytes
from rebar.dataflow.data.pipeline import DataPipeline
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.images.dataset import ImageDataset
from rebar.dataflow.images.decode import DecodeImages, Picture
from rebar.dataflow.images.pixels import normalized
from rebar.errors import DataError
from rebar.graph.image_batch import ImageBatch
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.window import Position, Window

Group = tuple[Picture, ...]


class BatchImages(Stage[Group, ImageBatch]):
    """Groups of pictures to what the learner takes, normalized. key: of their window."""

    def __init__(self, config: ConvNetConfig, key: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self._config, self._key = config, key

    def process_batch(self, batch: Sequence[Item[Group]]) -> list[Item[ImageBatch]]:
        """A batch for each group; the groups are those of one window, in order."""
        done, first = [], 0
        for item in batch:
            images = np.stack([normalized(p.pixels, self._config).reshape(-1) for p in item.value])
            labels = np.array([p.label for p in item.value], np.int32)
            done.append(item.having(ImageBatch(images, labels, self._key, first)))
            first += len(labels)
        return done

    def get_memory_footprint(self, batch: Sequence[Item[Group]]) -> int:
        """An array of pixels and one of labels each."""
        total = items_bytes(len(batch))
        for item in batch:
            shape = (len(item.value), item.value[0].pixels.size)
            total += array_bytes(shape, np.float32) + array_bytes(len(item.value), np.int32)
        return total + len(batch) * sys.getsizeof(ImageBatch(*_ONE))


_ONE = np.zeros((1, 1), np.float32), np.zeros(1, np.int32)


class ImageBatches:
    """A BatchSource over a pipeline whose last stage makes Pictures."""

    def __init__(
        self,
        pipeline: DataPipeline,
        config: ConvNetConfig,
        *,
        samples: int,
        rows: int,
        epochs: int = 1,
    ) -> None:
        """samples: images of a window; rows: of a micro-batch. DataError for an empty set."""
        if min(samples, rows, epochs) < 1 or not len(pipeline.dataset):
            raise DataError("a run needs images, and 1 or more in a window. Give more.")
        self.pipeline, self._config = pipeline, config
        self._samples, self._rows, self._epochs = samples, rows, epochs
        self._epoch = self._place = 0
        self._stream: Generator[Item[Picture]] | None = None
        self._head: Item[Picture] | None = None

    @property
    def digest(self) -> str:
        """Of the data, the order and every setting that decides what a window holds."""
        return self.pipeline.digest(self._samples)

    @property
    def windows(self) -> int:
        """Of all epochs."""
        return self._epochs * self._an_epoch

    @property
    def _an_epoch(self) -> int:
        return -(-len(self.pipeline.dataset) // self._samples)

    @property
    def position(self) -> Position:
        """Where the next window begins."""
        return {"epoch": self._epoch, "place": self._place}

    def restore(self, position: Position) -> None:
        """Goes there. Raises DataError for what is no position."""
        try:
            epoch, place = int(position["epoch"]), int(position["place"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{dict(position)} is no position. Take one that was told.") from error
        if epoch < 0 or not 0 <= place < len(self.pipeline.dataset) or place % self._samples:
            raise DataError(f"no window begins at {dict(position)}. Take the one of this run.")
        self.close()
        self._epoch, self._place = epoch, place

    def close(self) -> None:
        """Stops what is being read ahead."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._head = None, None

    def next_window(self) -> Window[ImageBatch] | None:
        """The next one; None after the last epoch."""
        if self._epoch >= self._epochs:
            return None
        count = min(self._samples, len(self.pipeline.dataset) - self._place)
        number = self._epoch * self._an_epoch + self._place // self._samples
        items = self._take(self._place + count)
        self._place += count
        if self._place == len(self.pipeline.dataset):
            self.close()
            self._epoch, self._place = self._epoch + 1, 0
        batches = grouped(items, self._config, self._rows, (self.pipeline.seed, number))
        return Window(
            tuple(batches),
            supervised=len(items),
            samples=tuple(item.sample for item in items),
            skipped=count - len(items),
            tokens=len(items),
        )

    def _take(self, end: int) -> list[Item[Picture]]:
        """The pictures before that place."""
        if self._stream is None:
            self._stream = self.pipeline.run(self._epoch, self._place)
            self._head = next(self._stream, None)
        items: list[Item[Picture]] = []
        while self._head is not None and self._head.place < end:
            items.append(self._head)
            self._head = next(self._stream, None)
        return items


def grouped(
    items: Sequence[Item[Picture]],
    config: ConvNetConfig,
    rows: int,
    key: tuple[int, int] = (0, 0),
) -> list[ImageBatch]:
    """The items in batches of at most `rows`."""
    groups = [
        items[begin].having(tuple(item.value for item in items[begin : begin + rows]))
        for begin in range(0, len(items), rows)
    ]
    return [item.value for item in BatchImages(config, key).process_batch(groups)]


def held_out(
    dataset: ImageDataset, config: ConvNetConfig, rows: int, on_error: OnError = "raise"
) -> list[ImageBatch]:
    """All images as they are, in batches, for evaluation."""
    size = config.height, config.width, config.channels
    decode = DecodeImages(*size, dataset.where, on_error)
    raws = dataset.raws(np.arange(len(dataset)))
    items = decode.process_batch([Item(0, i, i, raw) for i, raw in enumerate(raws)])
    return grouped(items, config, rows)
