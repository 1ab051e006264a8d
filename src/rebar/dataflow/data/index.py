"""Where the records of a JSONL file lie: found once, kept in a file of its own, mapped.

A line ends with LF; white space at both ends of it (CR, so CRLF too) does not count, and a line of
nothing else is no record. A UTF-8 byte order mark at the very beginning is passed over. NULs at the
end of the file are what a writer had reserved and not reached: no records. Nothing is decoded here;
a line that is no JSON is found by who reads it, under its number.

The index file: HEADER, then a pair of uint64 (begin, end in bytes) for each record. It is believed
while size and time of change of the data file are those it was made with; what does not fit, or is
damaged, is made anew. Clocks of file systems are coarse: where the index is hardly younger than the
data, which may have been written to since, the digest is compared too, until time has passed (git's
rule for its own index). The digest also names the data for whoever goes on with them later.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.files import BOM, check_text
from rebar.errors import CorruptFileError, DataError, ModelFileError
from rebar.hal.files import MappedFile, locked, write_whole

# magic, version, CRC-32 of the pairs; size, time of change (ns); records, lines, tail; SHA-256
HEADER = struct.Struct("<8sII QQ QQQ 32s")
MAGIC = b"RBINDEX\0"
VERSION = 1
CHUNK = 1 << 20  # bytes looked at together: a few arrays of this many positions at most
COARSE_NS = 2_000_000_000  # the coarsest clock of a file system
LF = 10
WHITE = b" \t\r"
BLANK = np.array([byte in WHITE for byte in range(256)])
Spans = NDArray[np.uint64]  # (records, 2): begin and end


@dataclass(frozen=True, slots=True)
class Index:
    """spans: (records, 2). lines: physical lines, blank ones too. tail: NULs at the end, in bytes.
    digest: SHA-256 (hex) of the data file.
    """

    spans: Spans
    lines: int
    tail: int
    digest: str


def open_index(data: MappedFile | None, path: Path, index: Path) -> Index:
    """The index of the file at `path`, mapped from `index`; made first where it is missing or not
    of these bytes. data: the mapped file, None for an empty one.

    Raises DataError: no text in UTF-8, or a folder that cannot hold the index.
    """
    try:
        found = _read(index, data, path)
        if found is None:
            with locked(index.with_name(index.name + ".lock")):
                found = _read(index, data, path)
                if found is None:
                    _build(data, path, index)
                    found = _read(index, data, path)
    except CorruptFileError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(
            f"{path}: its index cannot be kept in {index.parent}: {error.strerror or error}. "
            "Make the folder writable, or give another one for caches."
        ) from error
    if found is None:
        raise DataError(f"{path} changes while it is read. Wait until its writer is done.")
    return found


def spans_of(data: NDArray[np.uint8]) -> Iterator[Spans]:
    """Pairs (begin, end) of the records in `data`, a CHUNK of bytes at a time, in order."""
    begin = len(BOM) if bytes(data[: len(BOM)]) == BOM else 0
    for at in range(begin, len(data), CHUNK):
        chunk = data[at : at + CHUNK]
        ends = np.flatnonzero(chunk == LF) + at
        if at + CHUNK >= len(data) and data[-1] != LF:
            ends = np.append(ends, len(data))
        if ends.size:
            begins = np.concatenate(([begin], ends[:-1] + 1))
            begin = int(ends[-1]) + 1
            yield _trimmed(data, begins, ends)


def _trimmed(data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    """The lines without white space around them, without the blank ones."""
    ends = ends - ((ends > begins) & (data[ends - 1] == 13))
    some = ends > begins
    begins, ends = begins[some], ends[some]
    for i in np.flatnonzero(BLANK[data[begins]] | BLANK[data[ends - 1]]):
        begins[i], ends[i] = _stripped(data, int(begins[i]), int(ends[i]))
    some = ends > begins
    return np.stack((begins[some], ends[some]), axis=1).astype(np.uint64)


def _stripped(data: NDArray[np.uint8], begin: int, end: int) -> tuple[int, int]:
    """One line without white space around it; in pieces, for there may be megabytes of it."""
    while begin < end:
        solid = np.flatnonzero(~BLANK[data[begin : min(begin + CHUNK, end)]])
        if solid.size:
            begin += int(solid[0])
            break
        begin = min(begin + CHUNK, end)
    while begin < end:
        solid = np.flatnonzero(~BLANK[data[max(end - CHUNK, begin) : end]])
        if solid.size:
            return begin, max(end - CHUNK, begin) + int(solid[-1]) + 1
        end = max(end - CHUNK, begin)
    return begin, begin


def written(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`data` up to the NULs at its end."""
    end = len(data)
    while end:
        solid = np.flatnonzero(data[max(end - CHUNK, 0) : end])
        if solid.size:
            return data[: max(end - CHUNK, 0) + int(solid[-1]) + 1]
        end = max(end - CHUNK, 0)
    return data[:0]


def line_number(data: NDArray[np.uint8], offset: int) -> int:
    """The physical line, from 1, that the byte at `offset` is part of."""
    pieces = (data[at : min(at + CHUNK, offset)] for at in range(0, offset, CHUNK))
    return 1 + sum(int(np.count_nonzero(piece == LF)) for piece in pieces)


def _build(mapped: MappedFile | None, path: Path, index: Path) -> None:
    data = np.empty(0, np.uint8) if mapped is None else mapped.data
    text = written(data)
    check_text(text, path)
    changed = path.stat().st_mtime_ns
    if mapped is not None:
        mapped.check_unchanged()  # so that the time is that of the bytes mapped
    # The digest takes longer than the search: it has a thread of its own.
    with ThreadPoolExecutor(1) as helper, write_whole(index) as file:
        digest = helper.submit(digest_of, data)
        file.write(bytes(HEADER.size))
        records, checksum = 0, 0
        for spans in spans_of(text):
            pairs = spans.tobytes()
            file.write(pairs)
            records, checksum = records + len(spans), zlib.crc32(pairs, checksum)
        lines = line_number(text, len(text)) - (len(text) == 0 or int(text[-1]) == LF)
        tail = len(data) - len(text)
        _write_header(file, (checksum, len(data), changed, records, lines, tail, digest.result()))


def _write_header(file: IO[bytes], fields: tuple[int, int, int, int, int, int, bytes]) -> None:
    file.seek(0)
    file.write(HEADER.pack(MAGIC, VERSION, *fields))


def digest_of(data: NDArray[np.uint8]) -> bytes:
    """SHA-256."""
    digest = hashlib.sha256()
    for at in range(0, len(data), CHUNK):
        digest.update(data[at : at + CHUNK].data)
    return digest.digest()


def _read(index: Path, mapped: MappedFile | None, path: Path) -> Index | None:
    """The index if it is sound and of this file; None otherwise."""
    try:
        file = MappedFile(index)
    except ModelFileError:
        return None
    if file.nbytes < HEADER.size:
        return None
    magic, version, checksum, size, changed, records, lines, tail, digest = HEADER.unpack_from(
        file.buffer()
    )
    nbytes = 0 if mapped is None else mapped.nbytes
    if (magic, version, size) != (MAGIC, VERSION, nbytes):
        return None
    pairs = file.data[HEADER.size :]
    if len(pairs) != records * 16 or zlib.crc32(pairs.data) != checksum:
        return None
    if path.stat().st_mtime_ns != changed:
        return None
    if index.stat().st_mtime_ns - changed < COARSE_NS:
        if digest_of(np.empty(0, np.uint8) if mapped is None else mapped.data) != digest:
            return None
        if time.time_ns() - changed >= COARSE_NS:
            with suppress(OSError):  # only a saving: the next one compares again
                os.utime(index)
    return Index(pairs.view("<u8").reshape(-1, 2), lines, tail, digest.hex())
