"""A look at every image before any is learned from: what can be seen without unpacking it (kind and
size) is an error at the start, not after the hours that it takes to come to that image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebar.dataflow.data.faults import Faults, OnError
from rebar.dataflow.data.stage import Tally
from rebar.dataflow.images.dataset import ImageDataset, RawImage
from rebar.dataflow.images.pixels import check_size
from rebar.dataflow.images.png import read_header
from rebar.errors import DataError, InputError

AT_ONCE = 16
Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ImageSurvey:
    """size: (height, width, channels) of the images, as the first sound one has it. remarks: what
    of them is not used, in words.
    """

    size: Size
    remarks: tuple[str, ...]


def survey_images(
    dataset: ImageDataset, on_error: OnError = "raise", size: Size | None = None
) -> ImageSurvey:
    """Looks at all of them. size: the one due, None for that of the first. DataError naming the
    first that is no image of that size, unless such are passed over; and when none is left.
    """
    tally = Tally()
    faults = Faults(on_error, dataset.where, tally)
    for begin in range(0, len(dataset), AT_ONCE):
        samples = np.arange(begin, min(begin + AT_ONCE, len(dataset)))
        for sample, raw in zip(samples.tolist(), dataset.raws(samples), strict=True):
            try:
                found = size_of(raw)
                check_size(*found[:2], (size or found)[:2])
                size = size or found
            except InputError as error:
                faults.meet(sample, error)
    if size is None or tally.counts.get("invalid", 0) == len(dataset):
        raise DataError(f"{dataset.where(0)} and all others are no images. Look at the first.")
    return ImageSurvey(size, (*dataset.remarks, *_passed_over(tally)))


def size_of(raw: RawImage) -> Size:
    """(height, width, channels), from the header of a file. Raises InputError."""
    if isinstance(raw.image, bytes):
        header = read_header(raw.image)
        return header.height, header.width, header.channels
    height, width, channels = raw.image.shape
    return height, width, channels


def _passed_over(tally: Tally) -> tuple[str, ...]:
    count = tally.counts.get("invalid", 0)
    if not count:
        return ()
    return (f"files that are no such images, passed over: {count:,}; {tally.first('invalid')[0]}",)
