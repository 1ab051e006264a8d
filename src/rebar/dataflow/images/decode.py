"""Decode: PNG bytes or raw pixels to pixels of the size and channels that the network takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.faults import Faults, OnError, Where
from rebar.dataflow.data.footprint import array_bytes, items_bytes
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.images.dataset import RawImage
from rebar.dataflow.images.pixels import check_size, with_channels
from rebar.dataflow.images.png import read_header, read_png
from rebar.errors import InputError


class Picture(msgspec.Struct, frozen=True):
    """pixels (height, width, channels), 0 .. 255: uint8 as decoded, float32 once moved."""

    pixels: NDArray[np.uint8] | NDArray[np.float32]
    label: int


PICTURE = sys.getsizeof(Picture(np.zeros((1, 1, 1), np.uint8), 0))


class DecodeImages(Stage[RawImage, Picture]):
    """One picture for each image. One that cannot be read, or of another size, meets `on_error`."""

    def __init__(
        self, height: int, width: int, channels: int, where: Where, on_error: OnError = "raise"
    ) -> None:
        """where: names a sample's place in errors."""
        super().__init__()
        self._size = height, width, channels
        self._faults = Faults(on_error, where, self.tally)
        self._on_error = on_error

    @property
    def settings(self) -> Mapping[str, str | int]:
        """The size, and the rule for faults."""
        return {"size": "x".join(map(str, self._size)), "on_error": self._on_error}

    def process_batch(self, batch: Sequence[Item[RawImage]]) -> list[Item[Picture]]:
        """Pictures own their pixels."""
        done: list[Item[Picture]] = []
        for item in batch:
            try:
                pixels = decoded(item.value.image, *self._size)
                done.append(item.having(Picture(pixels, item.value.label)))
            except InputError as error:
                self._faults.meet(item.sample, error)
        return done

    def get_memory_footprint(self, batch: Sequence[Item[RawImage]]) -> int:
        """All pictures are of one size."""
        each = array_bytes(self._size, np.uint8) + PICTURE
        return items_bytes(len(batch)) + len(batch) * each


def decoded(
    image: bytes | NDArray[np.uint8], height: int, width: int, channels: int
) -> NDArray[np.uint8]:
    """Pixels uint8 of that size. A PNG of another size is refused before it is unpacked. Raises
    InputError.
    """
    if isinstance(image, bytes):
        header = read_header(image)
        check_size(header.height, header.width, (height, width))
        image = read_png(image)
    check_size(image.shape[0], image.shape[1], (height, width))
    return np.array(with_channels(image, channels), dtype=np.uint8)
