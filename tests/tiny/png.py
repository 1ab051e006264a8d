"""PNG files written by hand, in every way that a reader may meet (W3C, PNG, second edition)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(name: bytes, body: bytes) -> bytes:
    """Length, name, body, checksum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def header(width: int, height: int, depth: int, kind: int, interlace: int = 0) -> bytes:
    """The IHDR chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlace))


def png(
    values: NDArray[np.integer],
    kind: int,
    depth: int = 8,
    rules: tuple[int, ...] = (0, 1, 2, 3, 4),
    extra: bytes = b"",
) -> bytes:
    """values (height, width, channels as stored). rules: filters of the lines, in turns."""
    height, width = values.shape[:2]
    lines = [packed_line(line.ravel(), depth) for line in values]
    unit = max(1, CHANNELS[kind] * depth // 8)
    above = bytes(len(lines[0]))
    raw = b""
    for y, line in enumerate(lines):
        rule = rules[y % len(rules)]
        raw += bytes([rule]) + filtered(line, above, unit, rule)
        above = line
    body = zlib.compress(raw)
    half = len(body) // 2
    data = chunk(b"IDAT", body[:half]) + chunk(b"IDAT", body[half:])
    return SIGNATURE + header(width, height, depth, kind) + extra + data + chunk(b"IEND", b"")


def packed_line(values: NDArray[np.integer], depth: int) -> bytes:
    """Values of `depth` bits as bytes, the first in the highest bits."""
    if depth == 16:
        return values.astype(">u2").tobytes()
    bits = (values[:, None] >> np.arange(depth)[::-1]) & 1
    return np.packbits(bits.astype(np.uint8).ravel()).tobytes()


def filtered(line: bytes, above: bytes, unit: int, rule: int) -> bytes:
    """The line told by one of the five rules."""
    out = bytearray()
    for i, value in enumerate(line):
        left = line[i - unit] if i >= unit else 0
        corner = above[i - unit] if i >= unit else 0
        guess = (0, left, above[i], (left + above[i]) // 2, paeth(left, above[i], corner))[rule]
        out.append((value - guess) & 255)
    return bytes(out)


def paeth(left: int, up: int, corner: int) -> int:
    """Section 9.4."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda v: abs(guess - v))


def gray_png(pixels: NDArray[np.uint8]) -> bytes:
    """(height, width) as an 8-bit gray file."""
    return png(pixels[..., None], 0)
