"""PNG files in every form that is read, and what is refused."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.images.png import MAX_PIXELS, SIGNATURE, read_header, read_png
from rebar.errors import InputError
from tests.tiny.png import CHANNELS, chunk, gray_png, header, png

RANDOM = np.random.default_rng(3)


def stored(height: int, width: int, kind: int, depth: int) -> np.ndarray:
    values = RANDOM.integers(0, 1 << depth, (height, width, CHANNELS[kind]), dtype=np.int64)
    if kind in (4, 6):
        values[..., -1] = (1 << depth) - 1
    return values


@pytest.mark.parametrize("rule", range(5))
@pytest.mark.parametrize(("kind", "depth"), [(0, 8), (2, 8), (4, 8), (6, 8), (0, 16), (2, 16)])
def test_every_filter_of_every_kind(kind: int, depth: int, rule: int) -> None:
    values = stored(7, 5, kind, depth)
    colours = values[..., : 3 if kind in (2, 6) else 1]
    expected = colours >> (depth - 8)
    got = read_png(png(values, kind, depth, rules=(rule,)))
    assert got.dtype == np.uint8
    assert (got == expected).all()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_small_depths_are_spread_over_the_whole_range(depth: int) -> None:
    values = stored(5, 11, 0, depth)
    assert (read_png(png(values, 0, depth)) == values * 255 // ((1 << depth) - 1)).all()


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_palettes(depth: int) -> None:
    colours = RANDOM.integers(0, 256, (1 << depth, 3), dtype=np.uint8)
    values = stored(6, 9, 3, depth)
    data = png(values, 3, depth, extra=chunk(b"PLTE", colours.tobytes()))
    assert (read_png(data) == colours[values[..., 0]]).all()


@given(st.integers(1, 9), st.integers(1, 9), st.permutations(range(5)))
@settings(max_examples=40, deadline=None)
def test_any_size_and_order_of_filters(height: int, width: int, rules: list[int]) -> None:
    values = stored(height, width, 2, 8)
    assert (read_png(png(values, 2, rules=tuple(rules))) == values).all()


GOOD = gray_png(np.arange(64, dtype=np.uint8).reshape(8, 8))


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_file_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(InputError, match=r"image (ends too early|is no PNG)"):
        read_png(GOOD[:cut])


def test_any_byte_changed_is_noticed_or_harmless() -> None:
    """The checksum of its chunk no longer fits; there is no byte that nobody checks."""
    for at in range(len(GOOD)):
        changed = bytearray(GOOD)
        changed[at] ^= 0x41
        with pytest.raises(InputError):
            read_png(bytes(changed))


def packed(raw: bytes, width: int = 2, height: int = 2, depth: int = 8, kind: int = 0) -> bytes:
    data = chunk(b"IDAT", zlib.compress(raw))
    return SIGNATURE + header(width, height, depth, kind) + data + chunk(b"IEND", b"")


FAULTS = {
    "only PNG is read": b"\xff\xd8\xff\xe0 a jpeg",
    "is a GIF": b"GIF89a",
    "is no PNG": b"hello",
    "does not begin with a header": SIGNATURE + chunk(b"IDAT", b""),
    "more or fewer pixels": packed(b"\0" * 5),
    "holds more": packed(b"\0" * 7),
    "cannot be unpacked": SIGNATURE
    + header(2, 2, 8, 0)
    + chunk(b"IDAT", b"no")
    + chunk(b"IEND", b""),
    "a line of kind 9": packed(b"\x09\0\0\0\0\0"),
    "does not exist": packed(b"", depth=3),
    r"\(5, 8 bits\)": packed(b"", kind=5),
    "interlaced": SIGNATURE + header(2, 2, 8, 0, 1) + chunk(b"IEND", b""),
    "0 x 2 pixels": packed(b"", width=0),
    "4000000000 x 4000000000": packed(b"", width=4_000_000_000, height=4_000_000_000),
    "palette": packed(b"\0\0\0\0\0\0", kind=3),
    "flatten it": png(np.full((2, 2, 2), 7), 4),
    "transparent colour": png(np.full((2, 2, 1), 7), 0, extra=chunk(b"tRNS", b"\0\7")),
}


@pytest.mark.parametrize("message", FAULTS)
def test_what_is_refused_and_why(message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_png(FAULTS[message])
    assert caught.value.code == "invalid_image"


def test_a_bomb_is_not_unpacked() -> None:
    """A megabyte of zeros that unpacks to a gigabyte: no more is unpacked than the header says."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    data = SIGNATURE + header(8, 8, 8, 0) + chunk(b"IDAT", bomb) + chunk(b"IEND", b"")
    tracemalloc.start()
    with pytest.raises(InputError, match="more or fewer pixels"):
        read_png(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_sizes_are_bounded_before_anything_is_unpacked() -> None:
    side = int(MAX_PIXELS**0.5)
    assert read_header(packed(b"", width=side, height=side)).width == side
    with pytest.raises(InputError, match="in all are read"):
        read_header(packed(b"", width=side + 1, height=side))
