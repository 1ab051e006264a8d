from __future__ import annotations

import struct
import zlib

import pytest
from bench.novels import chunks, lines


def vector(*texts: str, version: int = 3) -> bytes:
    """A character vector as R serializes it."""
    found = b"X\n" + struct.pack(">III", version, 0x00040201, 0x00030500)
    if version == 3:
        found += struct.pack(">I", 5) + b"UTF-8"
    found += struct.pack(">II", 16, len(texts))
    for text in texts:
        raw = text.encode()
        found += struct.pack(">Ii", 0x00040009, len(raw)) + raw
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_a_data_file_gives_the_lines_of_its_vectors(version: int) -> None:
    texts = [["EMMA", "", "Emma Woodhouse, handsome"], ["naïve"], []]
    objects = [vector(*some, version=version) for some in texts]
    data = b"".join(struct.pack(">I", len(o)) + zlib.compress(o) for o in objects)
    assert [lines(chunk) for chunk in chunks(data)] == texts


def test_a_length_that_is_wrong_is_told() -> None:
    raw = vector("a")
    with pytest.raises(SystemExit):
        list(chunks(struct.pack(">I", len(raw) + 1) + zlib.compress(raw)))
