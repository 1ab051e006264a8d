"""Data files that are none, are packed, or change while they are read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.data import (
    DataOptions,
    DataPipeline,
    Decode,
    MMapDataset,
    Shift,
    TokenDataset,
    open_training,
    write_tokens,
)
from rebar.errors import DataError
from tests.dataflow.data.making import write
from tests.dataflow.vocabularies import bpe

LINES = b'{"text": "a"}\n' * 50


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("d.jsonl", data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("said", "data"),
    [
        ("gzip. Unpack it first: gunzip", gzip.compress(LINES)),
        ("xz. Unpack it first: unxz", lzma.compress(LINES)),
        ("bzip2. Unpack it first: bunzip2", bz2.compress(LINES)),
        ("zip. Unpack it first: unzip", zipped(LINES)),
        ("zstd. Unpack it first: unzstd", b"\x28\xb5\x2f\xfd" + LINES),
        ("Parquet table. Write its rows as JSON lines", b"PAR1" + LINES + b"PAR1"),
    ],
)
@pytest.mark.parametrize("name", ["d.jsonl", "d.txt"])
def test_a_packed_file_is_told_by_name(tmp_path: Path, name: str, said: str, data: bytes) -> None:
    """It was "line 1: no JSON. Mend the line"; by the rule 'skip' a run of no records at all."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        open_training(path, bpe(), None, DataOptions(on_error="skip"))


def test_letters_that_packers_begin_with_are_letters(tmp_path: Path) -> None:
    for number, text in enumerate(("BZh9 is a mark", "PAR1 is another", "PK too", "(", "B", "")):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(text)
        assert len(MMapDataset(path)) == bool(text)


def test_what_stands_there_instead_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("gone")
    for name, said in {
        "pipe": "a pipe or a device",
        "round": "symbolic links. Give",
        "nowhere": "no such file",
        "gone": "no such file",
        ".": "a folder",
        "x" * 300: "too long. Give",
        "nul\0": "null byte. Give",
    }.items():
        for opened in (MMapDataset, lambda path: TokenDataset(path, 8)):
            with pytest.raises(DataError, match=f"cannot be read: .*{said}"):
                opened(tmp_path / name)
    with pytest.raises(DataError, match="a pipe or a device"):
        MMapDataset("/dev/zero")


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", [1, 2])
    (tmp_path / "link.jsonl").symlink_to("d.jsonl")
    assert MMapDataset(tmp_path / "link.jsonl")[1] == 2


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("records", [[{"text": "a"}, {"text": "b"}], {"data": [1]}])
def test_one_json_value_is_not_json_lines(
    tmp_path: Path, indent: int | None, records: object
) -> None:
    """.json files are taken too, and many hold one array."""
    path = tmp_path / "d.json"
    path.write_text(json.dumps(records, indent=indent))
    said = "one JSON value" if indent or isinstance(records, list) else "line 1: .*holds data"
    with pytest.raises(DataError, match=said):
        open_training(path, bpe(), None, DataOptions())[0].survey()


def test_empty_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        open_training(tmp_path / "d.txt", bpe(), None, DataOptions())


CUT = """
import os, sys
from rebar.dataflow.data import DataPipeline, Decode, MMapDataset
from rebar.errors import DataError
data = MMapDataset(sys.argv[1])
stages = [Decode(data.where, sys.argv[2])]
items = DataPipeline(data, stages, workers=int(sys.argv[3]), prefetch_bytes=300_000).run()
for _ in range(300):
    next(items)
os.truncate(sys.argv[1], 10_000)
try:
    print(sum(1 for _ in items))
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_cut_while_it_is_read(tmp_path: Path, on_error: str, workers: str) -> None:
    """`cp new.jsonl d.jsonl` during a run ended it by SIGBUS, without a word; and what is not there
    any more must not pass for lines to be skipped.
    """
    path = tmp_path / "d.jsonl"
    write(path, [{"n": n, "text": "x" * 1000} for n in range(3000)])
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(path), on_error, workers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "was cut short while it is read" in done.stdout


def test_a_file_that_grows_or_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    data = write(path, list(range(1000)))
    items = DataPipeline(data, [Decode(data.where)], shuffle=False).run()
    begun = [next(items).value for _ in range(10)]
    with path.open("a") as file:
        file.write("1000\n" * 1000)
    begun += [next(items).value for _ in range(500)]
    os.replace(write(tmp_path / "other.jsonl", [5]).path, path)
    assert begun + [item.value for item in items] == list(range(1000))


def test_a_file_written_anew_is_told_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    data = write(path, ["1234567"] * 10)
    path.write_text('{"long":1}\n' * 100)
    with pytest.raises(DataError, match=r"line \d+ \(the file was written to since"):
        list(DataPipeline(data, [Decode(data.where)]).run())


def test_a_shard_that_was_cut_is_told(tmp_path: Path) -> None:
    """Zeros would be ids like others."""
    path = tmp_path / "d.ids"
    write_tokens(path, bpe(), ["one two three " * 5000])
    data = TokenDataset(path, 16)
    assert data.raws(np.array([3]))[0].any()
    os.truncate(path, 200)
    with pytest.raises(DataError, match="cut short"):
        list(DataPipeline(data, [Shift()]).run())


def test_text_that_changes_while_it_is_encoded_makes_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "d.txt", tmp_path / "cache"
    tokenizer = bpe()
    encode = type(tokenizer).encode_arrays

    def changed_meanwhile(*given: object, **named: object) -> object:
        os.utime(path, ns=(0, 5))
        return encode(*given, **named)  # type: ignore[arg-type]

    path.write_text("one two three")
    monkeypatch.setattr(type(tokenizer), "encode_arrays", changed_meanwhile)
    with pytest.raises(DataError, match="changes while it is read"):
        open_training(path, tokenizer, None, DataOptions(cache=cache))
    assert not list(cache.rglob("*.ids"))
