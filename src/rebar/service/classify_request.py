"""From the body of a classification to packets, one an image, or an InputError that names the
image. Nothing past here can be malformed.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.images.decode import decoded
from rebar.dataflow.images.pixels import check_size, normalized, with_channels
from rebar.errors import InputError
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.sequence import SamplingParams
from rebar.service.messages import NORMAL, RequestPacket
from rebar.service.validator import MAX_PRIORITY, Caller, check_range
from rebar.service.wire import ClassifyBody, PixelRows

MAX_IMAGES = 1024
"""Images of one request, while they are small."""
MAX_VALUES = 1 << 22
"""Values of all images of a request, 16 MB as the network takes them: a few bytes of PNG can stand
for a large picture, and all are unpacked before any is computed."""
DEFAULT_TOP = 5


@dataclass(frozen=True, slots=True)
class ClassifyJob:
    """A validated request. top: labels to tell of each image."""

    model: str
    packets: list[RequestPacket]
    top: int


def classify_job(
    name: str, config: ConvNetConfig, body: ClassifyBody, caller: Caller
) -> ClassifyJob:
    """Checks a body against the model of that name."""
    top = min(DEFAULT_TOP, len(config.labels))
    if body.top_k is not None:
        check_range("top_k", body.top_k, 1, len(config.labels))
        top = body.top_k
    priority = NORMAL if body.priority is None else body.priority
    check_range("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
    most = max(1, min(MAX_IMAGES, MAX_VALUES // config.values))
    if not 0 < len(body.images) <= most:
        raise InputError(
            f"`images` holds {len(body.images)} images. Send 1 to {most} of this model's size.",
            param="images",
        )
    packets = [
        RequestPacket(
            ticket=0,
            request_id=caller.request_id,
            trace_id=caller.trace_id,
            prompt=[],
            sampling=SamplingParams(),
            max_tokens=1,
            index=index,
            priority=priority,
            tenant=caller.tenant,
            image=_pixels(config, image, index).tobytes(),
        )
        for index, image in enumerate(body.images)
    ]
    return ClassifyJob(name, packets, top)


def _pixels(config: ConvNetConfig, image: str | PixelRows, index: int) -> NDArray[np.float32]:
    """Normalized pixels of an image. A fault names the image."""
    try:
        if isinstance(image, str):
            size = config.height, config.width, config.channels
            return normalized(decoded(_bytes(image), *size), config)
        return normalized(_of_rows(config, image), config)
    except InputError as error:
        text = str(error).removeprefix("The image ")
        said = f"`images`[{index}]: {text}" if text == str(error) else f"`images`[{index}] {text}"
        raise InputError(said, param="images", code=error.code or "invalid_image") from error


def _bytes(text: str) -> bytes:
    """The bytes of a base64 text or of a data URL of one."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise InputError("a data URL is `data:image/png;base64,...`. Send it so.")
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"it is no base64 ({error}). Encode the file's bytes.") from error


def _of_rows(config: ConvNetConfig, rows: PixelRows) -> NDArray[np.float32]:
    """Raw pixels, 0 .. 255: rows of numbers, or of lists of 1 or 3 channels."""
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise InputError("its rows are of different lengths. Send height lists of width pixels.")
    check_size(len(rows), widths.pop(), (config.height, config.width))
    depths = {len(pixel) if isinstance(pixel, list) else 0 for row in rows for pixel in row}
    if len(depths) != 1 or not depths <= {0, 1, 3}:
        raise InputError("its pixels are not all numbers, or all lists of 1 or 3 channels.")
    pixels = np.array(rows, np.float64)
    if not ((pixels >= 0) & (pixels <= 255)).all():
        raise InputError("its pixels are not all from 0 to 255. Scale them.")
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return with_channels(pixels.astype(np.float32), config.channels).astype(np.float32)
