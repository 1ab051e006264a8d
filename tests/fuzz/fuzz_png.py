"""Fuzzes the PNG reader: any bytes give pixels of the size that their header says or an InputError.

The checksums of all chunks are made right again after each change: with them wrong, nothing behind
them would ever be read.

    python -m tests.fuzz.fuzz_png CORPUS -max_total_time=600
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from rebar.dataflow.images.png import SIGNATURE, read_header, read_png
from rebar.errors import InputError
from tests.fuzz.harness import Target, fuzz
from tests.tiny.png import CHANNELS, chunk, png


def seeds(folder: Path) -> list[bytes]:
    """A file of each kind and depth."""
    random, found = np.random.default_rng(0), []
    for kind, depth in ((0, 1), (0, 8), (0, 16), (2, 8), (3, 4), (4, 8), (6, 8)):
        values = random.integers(0, 1 << depth, (6, 5, CHANNELS[kind]))
        values[..., -1] = (1 << depth) - 1 if kind in (4, 6) else values[..., -1]
        colours = chunk(b"PLTE", random.bytes(48)) if kind == 3 else b""
        found.append(png(values, kind, depth, extra=colours))
    return found


def mended(data: bytes) -> bytes:
    """The same chunks with their checksums."""
    out, at = bytearray(data[: len(SIGNATURE)]), len(SIGNATURE)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4])
        body = data[at : min(end, len(data))]
        out += body + zlib.crc32(body[4:]).to_bytes(4)
        at = end + 4
    return bytes(out)


def read(path: Path) -> None:
    """Its pixels."""
    data = path.read_bytes()
    pixels, header = read_png(data), read_header(data)
    assert pixels.shape[:2] == (header.height, header.width)
    assert pixels.dtype == np.uint8


TARGET = Target("image.png", seeds, read, mended, refusal=InputError)

if __name__ == "__main__":
    fuzz(TARGET)
