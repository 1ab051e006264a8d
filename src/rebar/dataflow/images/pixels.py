"""Pixels as a network reads them: the one way for training and for serving."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.models.image_config import ConvNetConfig

F32 = NDArray[np.float32]
Pixels = NDArray[np.uint8] | NDArray[np.float32]
P = TypeVar("P", NDArray[np.uint8], NDArray[np.float32])


def with_channels(pixels: P, channels: int) -> P:
    """(height, width, channels). Colours become gray by ITU-R 601's weights, rounded, and gray
    stands in all three colours.
    """
    if pixels.shape[-1] == channels:
        return pixels
    if channels == 3:
        same: P = np.repeat(pixels, 3, axis=-1)
        return same
    luma = pixels.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    gray: P = np.rint(luma).astype(pixels.dtype)[..., None]
    return gray


def normalized(pixels: Pixels, config: ConvNetConfig) -> F32:
    """0 .. 255 to config.low .. config.high: one float32 product and sum an element."""
    step = np.float32((config.high - config.low) / 255)
    return pixels.astype(np.float32) * step + np.float32(config.low)


def check_size(height: int, width: int, due: tuple[int, int]) -> None:
    """InputError for an image of another size than the model takes."""
    if (height, width) != due:
        raise InputError(
            f"The image has {height} rows of {width} pixels, the model takes {due[0]} of {due[1]}. "
            "Scale it first.",
            code="invalid_image",
        )
