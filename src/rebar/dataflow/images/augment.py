"""Augment: pictures moved and turned a little, so that a network learns what does not depend on it.

What is drawn is addressed by (seed, epoch, sample): the same picture is moved alike however the
data were cut and wherever a run went on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.footprint import array_bytes, items_bytes
from rebar.dataflow.data.order import generator
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.images.decode import PICTURE, Picture
from rebar.dataflow.images.pixels import Pixels
from rebar.errors import DataError

F32 = NDArray[np.float32]


class Augment(Stage[Picture, Picture]):
    """Shifts by up to `shift` pixels along both axes, turns by up to `degrees` about the middle."""

    def __init__(self, seed: int, shift: float = 1.0, degrees: float = 10.0) -> None:
        super().__init__()
        if not (0 <= shift < 1000 and 0 <= degrees <= 180):
            raise DataError(
                f"a shift of {shift:g} pixels and a turn of {degrees:g} degrees are none. Give 0 "
                "or more."
            )
        self._seed, self._shift, self._degrees = seed, shift, degrees

    @property
    def settings(self) -> Mapping[str, str | int]:
        """How far."""
        return {"seed": self._seed, "shift": f"{self._shift:g}", "degrees": f"{self._degrees:g}"}

    def process_batch(self, batch: Sequence[Item[Picture]]) -> list[Item[Picture]]:
        """A float32 picture for each."""
        return [item.having(Picture(self._moved(item), item.value.label)) for item in batch]

    def _moved(self, item: Item[Picture]) -> F32:
        draws = generator(self._seed, item.epoch, item.sample, self.name).uniform(-1.0, 1.0, 3)
        down, right, turn = draws.tolist()
        angle = math.radians(turn * self._degrees)
        return moved(item.value.pixels, down * self._shift, right * self._shift, angle)

    def get_memory_footprint(self, batch: Sequence[Item[Picture]]) -> int:
        """As many pixels as came in, as float32."""
        arrays = sum(array_bytes(item.value.pixels.shape, np.float32) for item in batch)
        return items_bytes(len(batch)) + arrays + len(batch) * PICTURE


def moved(pixels: Pixels, down: float, right: float, angle: float) -> F32:
    """The picture turned by `angle` (radians, counter-clockwise) about its middle, then shifted by
    pixels: each pixel is the bilinear mean of the four around the place that it came from. What
    comes from outside is 0.
    """
    height, width, channels = pixels.shape
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y = np.arange(height)[:, None] - middle_y - down
    x = np.arange(width)[None, :] - middle_x - right
    cos, sin = math.cos(angle), math.sin(angle)
    from_y, from_x = cos * y + sin * x + middle_y, cos * x - sin * y + middle_x
    top, left = np.floor(from_y), np.floor(from_x)
    part_y, part_x = (from_y - top)[..., None], (from_x - left)[..., None]
    framed = np.zeros((height + 2, width + 2, channels))
    framed[1:-1, 1:-1] = pixels

    def at(dy: int, dx: int) -> NDArray[np.float64]:
        rows = np.clip(top + dy + 1, 0, height + 1).astype(np.intp)
        columns = np.clip(left + dx + 1, 0, width + 1).astype(np.intp)
        met: NDArray[np.float64] = framed[rows, columns]
        return met

    upper = at(0, 0) * (1 - part_x) + at(0, 1) * part_x
    lower = at(1, 0) * (1 - part_x) + at(1, 1) * part_x
    mixed: F32 = (upper * (1 - part_y) + lower * part_y).astype(np.float32)
    return mixed
