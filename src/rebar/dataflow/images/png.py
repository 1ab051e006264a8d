"""A PNG file to pixels (W3C, PNG Specification, second edition), for bytes that nobody vouches for.

The law: sizes are checked before anything is unpacked, and never more is unpacked than they say;
what does not fit to the byte is an InputError. Read are gray, palette and colour images of all
depths, not interlaced; of 16 bits the upper 8. Where an image has transparency it must be opaque
throughout: what lies behind it is not ours to choose.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import InputError

U8 = NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 1 << 20
"""Of an image: some MB unpacked, whatever a few bytes of it claim."""
_HEAD = struct.Struct(">IIBBBBB")
GRAY, COLOUR, PALETTE, GRAY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
_SAMPLES = {GRAY: 1, COLOUR: 3, PALETTE: 1, GRAY_ALPHA: 2, COLOUR_ALPHA: 4}
_DEPTHS = {GRAY: (1, 2, 4, 8, 16), PALETTE: (1, 2, 4, 8)}
_OTHERS = (
    (b"\xff\xd8\xff", "a JPEG"),
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"RIFF", "a WebP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
)


@dataclass(frozen=True, slots=True)
class PngHeader:
    """What the first chunk says. samples: values a pixel, alpha or palette index among them."""

    width: int
    height: int
    depth: int
    kind: int

    @property
    def samples(self) -> int:
        """Values of a pixel as they are stored."""
        return _SAMPLES[self.kind]

    @property
    def channels(self) -> int:
        """Of the picture: 1 gray, 3 colours."""
        return 1 if self.kind in (GRAY, GRAY_ALPHA) else 3

    @property
    def line_nbytes(self) -> int:
        """Bytes of a row of pixels."""
        return (self.width * self.samples * self.depth + 7) // 8

    @property
    def unit(self) -> int:
        """Bytes between a value and the one before it of the same channel, at least 1."""
        return max(1, self.samples * self.depth // 8)


def read_header(data: bytes) -> PngHeader:
    """Width, height and kind. Nothing is unpacked. InputError for what is no PNG that is read."""
    if not data.startswith(SIGNATURE):
        for beginning, name in _OTHERS:
            if data.startswith(beginning):
                raise _wrong(f"is {name}; only PNG is read")
        raise _wrong("is no PNG")
    first, head = next(_chunks(data), (b"", b""))
    if first != b"IHDR" or len(head) != _HEAD.size:
        raise _wrong("does not begin with a header")
    width, height, depth, kind, packing, filters, interlace = _HEAD.unpack(head)
    if kind not in _SAMPLES or depth not in _DEPTHS.get(kind, (8, 16)) or packing or filters:
        raise _wrong(f"has a colour type ({kind}, {depth} bits) that does not exist")
    if interlace:
        raise _wrong("is interlaced; save it without interlacing")
    if not 0 < width * height <= MAX_PIXELS:
        raise _wrong(f"has {width} x {height} pixels; 1 to {MAX_PIXELS:,} in all are read")
    return PngHeader(width, height, depth, kind)


def read_png(data: bytes) -> U8:
    """(height, width, channels), 1 channel for gray and 3 for colours, 0 .. 255. Raises InputError
    saying what is wrong with the bytes.
    """
    header = read_header(data)
    chunks = list(_chunks(data))
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    lines = _unfiltered(_unpacked(packed, header), header)
    pixels = _samples(lines, header).reshape(header.height, header.width, header.samples)
    other = dict(chunks)
    if header.kind == PALETTE:
        return _coloured(pixels[..., 0], other.get(b"PLTE", b""), other.get(b"tRNS", b""))
    if b"tRNS" in other:
        raise _wrong("has a transparent colour; flatten it")
    if header.kind in (GRAY_ALPHA, COLOUR_ALPHA):
        if (pixels[..., -1] != 255).any():
            raise _wrong("has transparent pixels; flatten it")
        pixels = pixels[..., :-1]
    return np.ascontiguousarray(pixels)


def _wrong(what: str) -> InputError:
    return InputError(f"The image {what}. Use another.", code="invalid_image")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and body of each chunk, checked; ends behind IEND."""
    at, name = len(SIGNATURE), b""
    while name != b"IEND":
        if at + 12 > len(data):
            raise _wrong("ends too early")
        nbytes = int.from_bytes(data[at : at + 4])
        end = at + 8 + nbytes
        if end + 4 > len(data):
            raise _wrong("ends too early")
        name, body = data[at + 4 : at + 8], data[at + 8 : end]
        if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4]):
            raise _wrong("is damaged: a checksum does not match")
        yield name, body
        at = end + 4


def _unpacked(packed: bytes, header: PngHeader) -> bytes:
    """Just as many bytes as the header says."""
    nbytes = header.height * (1 + header.line_nbytes)
    opened = zlib.decompressobj()
    try:
        raw = opened.decompress(packed, nbytes + 1)
    except zlib.error as error:
        raise _wrong("is damaged: its pixels cannot be unpacked") from error
    if len(raw) != nbytes or not opened.eof:
        raise _wrong("holds more or fewer pixels than its header says")
    return raw


def _unfiltered(raw: bytes, header: PngHeader) -> U8:
    """(height, bytes of a line): each line is told as differences, by a rule of its own."""
    told = np.frombuffer(raw, np.uint8).reshape(header.height, -1)
    lines = np.empty((header.height, header.line_nbytes), np.uint8)
    if not _native.png_unfiltered(told, lines, header.unit):
        rule = int(told[:, 0].max())
        raise _wrong(f"has a line of kind {rule}, which does not exist")
    return lines


def _samples(lines: U8, header: PngHeader) -> U8:
    """(height, width * samples): values of 8 bits, palette indices as they are."""
    if header.depth == 8:
        return lines
    if header.depth == 16:
        return lines[:, ::2]
    depth = header.depth
    bits = np.unpackbits(lines, axis=1).reshape(header.height, -1, depth)
    values = bits @ (1 << np.arange(depth)[::-1])
    values = values[:, : header.width * header.samples]
    largest = (1 << depth) - 1
    return (values if header.kind == PALETTE else values * 255 // largest).astype(np.uint8)


def _coloured(indices: U8, palette: bytes, alpha: bytes) -> U8:
    if not palette or len(palette) % 3 or int(indices.max()) >= len(palette) // 3:
        raise _wrong("has a palette that does not hold its colours")
    known = np.frombuffer(alpha, np.uint8)[: len(palette) // 3]
    opaque = np.full(256, 255, np.uint8)
    opaque[: known.size] = known
    if (opaque[indices] != 255).any():
        raise _wrong("has transparent pixels; flatten it")
    return np.frombuffer(palette, np.uint8).reshape(-1, 3)[indices]
