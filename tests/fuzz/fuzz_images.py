"""Fuzzes the reader of labelled images in a .npz file: any bytes give some or a DataError.

python -m tests.fuzz.fuzz_images CORPUS -max_total_time=600
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from rebar.dataflow.images import ArrayImages
from rebar.errors import DataError
from tests.fuzz.harness import Target, fuzz


def seeds(folder: Path) -> list[bytes]:
    """Packed and not, with names and without."""
    images, labels = np.zeros((5, 4, 4), np.uint8), np.array([0, 1, 0, 1, 1])
    found = []
    for save in (np.savez, np.savez_compressed):
        for more in ({}, {"names": np.array(["a", "b"])}):
            file = io.BytesIO()
            save(file, images=images, labels=labels, **more)  # type: ignore[arg-type]
            found.append(file.getvalue())
    return found


def read(path: Path) -> None:
    """All of its images."""
    found = ArrayImages(path)
    assert len(found.raws(np.arange(len(found)))) == len(found)


TARGET = Target("images.npz", seeds, read, refusal=DataError)

if __name__ == "__main__":
    fuzz(TARGET)
