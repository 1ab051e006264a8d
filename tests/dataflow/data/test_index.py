"""The index over JSON lines: any bytes give the records that a plain reader finds."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebar.dataflow.data import MMapDataset, index
from rebar.dataflow.data.files import PACKED
from rebar.dataflow.data.index import CHUNK, COARSE_NS
from rebar.errors import DataError


def plain(data: bytes) -> list[tuple[int, bytes]]:
    """(line, record), the slow and obvious way."""
    lines = data.rstrip(b"\0").removeprefix(b"\xef\xbb\xbf").split(b"\n")
    stripped = [(number, line.strip(b" \t\r")) for number, line in enumerate(lines, 1)]
    return [(number, line) for number, line in stripped if line]


def found(path: Path) -> list[tuple[int, bytes]]:
    data = MMapDataset(path)
    places = [data.where(i) for i in range(len(data))]
    return [(int(p.rsplit(" ")[-1]), bytes(data.record(i))) for i, p in enumerate(places)]


def wide(data: bytes) -> bool:
    first = data.rstrip(b"\0")[:2]
    return first in (b"\xff\xfe", b"\xfe\xff") or (len(first) == 2 and first.count(0) == 1)


def packed(data: bytes) -> bool:
    return data.startswith((*PACKED, b"BZh", b"PAR1"))


QUIET = settings(deadline=None)  # each example writes files
PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b" ", b"\t", b"\0", b"{}", b"a", b"\xef\xbb\xbf", b"\xff", b"\x01"]
)


@QUIET
@given(st.lists(PIECES, max_size=40).map(b"".join) | st.binary(max_size=60))
@example(b"")
@example(b"\n\n\n")
@example(b"\0\0\0")
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\n \r\n{}")
@example(b"{}\n\0\0")
@example(b"  {}  \r\r\n\r\r\n")
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("index") / "d.jsonl"
    path.write_bytes(data)
    if packed(data):
        return  # test_files.py
    if wide(data):
        with pytest.raises(DataError, match=r"line 1: .*UTF-16.*iconv"):
            MMapDataset(path)
    else:
        assert found(path) == plain(data)


@QUIET
@given(st.lists(PIECES, max_size=60).map(b"".join), st.integers(1, 9))
def test_any_bytes_in_any_chunks(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("index") / "d.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "CHUNK", chunk)
        if not wide(data) and not packed(data):
            assert found(path) == plain(data)


@pytest.mark.parametrize("tail", [b"", b"\0" * 4096])
def test_case_j6(tmp_path: Path, tail: bytes) -> None:
    """A-j6: a mark that made records vanish, empty lines, no line end at the end of the file, and
    a tail that was reserved and never written (ragflow 19179, jsonlines 68)."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text":"a"}\r\n\r\n{"text":"b"}\n   \n{"text":"c"}' + tail)
    data = MMapDataset(path)
    assert [data[i] for i in range(len(data))] == [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert (data.lines, data.unwritten) == (5, len(tail))


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 10])
def test_files_without_records(tmp_path: Path, content: bytes) -> None:
    """A-j6: empty, a line end alone, room that was never written."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    assert len(MMapDataset(path)) == 0


def test_long_lines(tmp_path: Path) -> None:
    """A-j6: 64 MB in one record, and as many spaces around another."""
    path, many = tmp_path / "d.jsonl", 64 << 20
    long = b'{"text":"' + b"x" * many + b'"}'
    path.write_bytes(b"{}\n" + long + b"\n" + b" " * many + b"[1]" + b" " * many + b"\n" * 3 + b"2")
    data = MMapDataset(path)
    assert len(data) == 4
    assert len(data[1]["text"]) == many
    assert (data[2], data[3], data.where(3)) == ([1], 2, f"{path}, line 6")


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_characters_are_named(tmp_path: Path, coding: str) -> None:
    """A-j6: a file in UTF-16 is told by name."""
    path = tmp_path / "d.jsonl"
    path.write_bytes('{"text":"a"}\n'.encode(coding))
    with pytest.raises(DataError, match=r"line 1: .*UTF-16"):
        MMapDataset(path)


@pytest.mark.parametrize("broken", [b'{"a":', b"\0", b'{"a": NaN}', b'"\xff"', b"[" * 100_000])
def test_an_error_says_file_and_line(tmp_path: Path, broken: bytes) -> None:
    """A-j6: one broken line leaves the others alone."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\n{}\n\r\n" + broken + b"\n{}")
    data = MMapDataset(path)
    assert (data[0], data[2], data[-1]) == ({}, {}, {})
    with pytest.raises(DataError, match=r"d\.jsonl, line 4: no JSON"):
        data[1]
    with pytest.raises(IndexError, match="3 records"):
        data[3]


def test_the_index_is_kept_and_made_anew(tmp_path: Path) -> None:
    path, cache = tmp_path / "d.jsonl", tmp_path / "cache"
    path.write_bytes(b"1\n2\n")
    first = MMapDataset(path, cache=cache)
    kept = next((cache / "indexes").glob("*.rebar-index"))
    made = kept.stat().st_ino
    assert MMapDataset(path, cache=cache).digest == first.digest
    assert kept.stat().st_ino == made
    path.write_bytes(b"1\n2\n3\n")
    assert len(MMapDataset(path, cache=cache)) == 3
    state = path.stat()
    path.write_bytes(b"4\n5\n\n\n")  # other bytes, as many, at another time
    assert [MMapDataset(path, cache=cache)[i] for i in range(2)] == [4, 5]
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 7))
    assert len(MMapDataset(path, cache=cache)) == 2


def test_a_change_faster_than_the_clock_is_seen(tmp_path: Path) -> None:
    """A fuzzer wrote files of one size within one tick of the file system's clock, and got records
    of the file before.
    """
    path = tmp_path / "d.jsonl"
    for n in range(10):
        path.write_bytes(b" %d\n" % n if n % 2 else b"%d \n" % n)
        os.utime(path, ns=(0, time.time_ns() // COARSE_NS * COARSE_NS))
        assert bytes(MMapDataset(path).record(0)) == b"%d" % n


def test_an_old_index_is_believed_without_reading_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"1\n")
    os.utime(path, ns=(0, 10**18))
    MMapDataset(path)
    monkeypatch.setattr(index, "digest_of", lambda data: pytest.fail("it was read"))
    assert MMapDataset(path)[0] == 1
    monkeypatch.undo()
    os.utime(path)
    MMapDataset(path)
    kept = path.with_name("d.jsonl.rebar-index")
    now = path.stat().st_mtime_ns
    monkeypatch.setattr(time, "time_ns", lambda: now + COARSE_NS)
    os.utime(kept, ns=(0, now))
    MMapDataset(path)  # compares once more, and marks the index as late enough
    assert kept.stat().st_mtime_ns != now


@pytest.mark.parametrize("at", [0, 8, 12, 16, 40, 80, 100, -1])
def test_a_damaged_index_is_made_anew(tmp_path: Path, at: int) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"1\n2\n")
    MMapDataset(path)
    kept = path.with_name("d.jsonl.rebar-index")
    raw = bytearray(kept.read_bytes())
    raw[at] ^= 0x55
    kept.write_bytes(raw)
    assert [bytes(MMapDataset(path).record(i)) for i in range(2)] == [b"1", b"2"]
    kept.write_bytes(raw[:50])
    assert len(MMapDataset(path)) == 2


def test_changed_bytes_under_the_same_time_are_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"1\n2\n")
    MMapDataset(path).verify()
    state = path.stat()
    path.write_bytes(b"3\n4\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.utime(path.with_name("d.jsonl.rebar-index"), ns=(0, state.st_mtime_ns + COARSE_NS))
    with pytest.raises(DataError, match="Delete its index"):
        MMapDataset(path).verify()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            MMapDataset(path)
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"1\n")
    with pytest.raises(DataError, match="another one for caches"):
        MMapDataset(path, cache=path)


def test_it_travels_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\n".join(json.dumps({"n": n}).encode() for n in range(2 * CHUNK // 16)))
    data = MMapDataset(path)
    packed = pickle.dumps(data)
    assert len(packed) < 1000
    assert pickle.loads(packed)[-1] == data[len(data) - 1] == {"n": 2 * CHUNK // 16 - 1}
    path.write_bytes(b"{}")
    with pytest.raises(DataError, match="changed on the way"):
        pickle.loads(packed)


def test_several_at_once_are_what_each_is(tmp_path: Path) -> None:
    """A torch loader asks for a batch by __getitems__."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"1\n[2]\n{}\nnull\n[1\n2]\n")
    data = MMapDataset(path)
    for samples in ([], [1], [3, 0, 0, 2], [-3, 0]):
        assert data.__getitems__(samples) == [data[sample] for sample in samples]
    with pytest.raises(DataError, match="line 5: no JSON"):
        data.__getitems__([0, 4, 5, 1])
    with pytest.raises(IndexError, match="6 records"):
        data.__getitems__([0, 6])
