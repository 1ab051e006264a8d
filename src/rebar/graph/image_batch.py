"""ImageBatch: images and their labels, as one training step takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class ImageBatch:
    """images: float32 (n, height * width * channels), near -1 .. 1; labels: int32 (n,).

    key, first: where dropout's draws are: the seed and number of the window, and the batch's first
    row in it. Rows drop the same however a window is cut into batches.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    key: tuple[int, int] = (0, 0)
    first: int = 0

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != np.float32 or labels.dtype != np.int32:
            raise InputError(
                f"images are {images.dtype}, labels {labels.dtype}. Give float32 and int32."
            )
        if images.ndim != 2 or labels.shape != images.shape[:1] or not labels.size:
            raise InputError(
                f"{images.shape} images and {labels.shape} labels. Give a row and a label for "
                "each image, and at least one."
            )

    @property
    def rows(self) -> int:
        """Images."""
        return len(self.labels)
