"""Data sets: numbered samples that lie in mapped files. They know no order and no epoch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.files import check_whole, map_data
from rebar.dataflow.data.index import Index, digest_of, line_number, open_index
from rebar.dataflow.data.parse import NO_JSON, Json, Records, parse
from rebar.errors import DataError


class Dataset(Protocol):
    """What a pipeline reads from."""

    @property
    def digest(self) -> str:
        """Names the samples: the same digest, the same samples under the same numbers."""

    def __len__(self) -> int:
        """How many samples."""

    def raws(self, samples: NDArray[np.int64]) -> Sequence[Any]:
        """These samples as they lie, without copies where that can be; stages decode them."""

    def where(self, sample: int) -> str:
        """The place of a sample in words, for errors: file and line."""


class MMapDataset:
    """The records of a JSONL file, found by an index and read where the mapped file has them.

    Processes that open the same file share its pages and the index's; an object is passed between
    them by its path (pickle), never by its bytes. Map-style, as a torch DataLoader expects: len(d),
    d[i]. What counts as a record: index.py.
    """

    def __init__(self, path: str | Path, *, cache: Path | None = None) -> None:
        """cache: the folder for indexes; None: beside the file, NAME.rebar-index.

        Raises DataError: no such file, no text in UTF-8, or no place for the index.
        """
        self.path = Path(path)
        self._cache = cache
        self._file = map_data(self.path)
        self._data = np.empty(0, np.uint8) if self._file is None else self._file.data
        self._index: Index = open_index(self._file, self.path, _index_path(self.path, cache))

    def __len__(self) -> int:
        return len(self._index.spans)

    def __getitem__(self, sample: int) -> Json:
        """The record, decoded. Raises IndexError, and DataError for a line that is no JSON."""
        count = len(self)
        if not -count <= sample < count:
            raise IndexError(f"{self.path} has {count} records, {sample} is none of them")
        sample %= count
        return decoded(self.record(sample), self, sample)

    def __getitems__(self, samples: Sequence[int]) -> list[Json]:
        """Several records, as torch's loader asks for a batch."""
        if not samples or not 0 <= min(samples) <= max(samples) < len(self):
            return [self[sample] for sample in samples]
        values, unread = self.raws(np.asarray(samples, np.int64)).parsed()
        for number in unread:
            values[number] = self[samples[number]]
        return values

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the file."""
        return self._index.digest

    @property
    def lines(self) -> int:
        """Physical lines, blank ones too."""
        return self._index.lines

    @property
    def unwritten(self) -> int:
        """NUL bytes at the end of the file: reserved by its writer and not reached."""
        return self._index.tail

    def record(self, sample: int) -> memoryview:
        """The bytes of one record where they lie."""
        begin, end = self._index.spans[sample].tolist()
        return self._data.data[begin:end]

    def raws(self, samples: NDArray[np.int64]) -> Records:
        """The bytes of these records where they lie. Raises DataError for a file that was cut."""
        check_whole(self._file)
        return Records(self._data, self._index.spans[samples])

    def verify(self) -> None:
        """Reads the whole file. Raises DataError when its bytes are not those the index is of."""
        if digest_of(self._data).hex() != self.digest:
            raise DataError(
                f"{self.path} changed while size and time stayed. Delete its index "
                f"({_index_path(self.path, self._cache)}), then start again."
            )

    def where(self, sample: int) -> str:
        """File and physical line. Raises DataError for a file that was cut, so that what became of
        its records is not taken for a fault in a line.
        """
        check_whole(self._file)
        place = f"{self.path}, line {line_number(self._data, int(self._index.spans[sample][0]))}"
        if self._file is not None and self._file.rewritten():
            return f"{place} (the file was written to since it was opened)"
        return place

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "cache": self._cache, "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MMapDataset.__init__(self, state["path"], cache=state["cache"])
        if self.digest != state["digest"]:
            raise DataError(f"{self.path} changed on the way to another process. Start again.")


def decoded(record: memoryview | bytes, dataset: Dataset, sample: int) -> Json:
    """A record as JSON says it. Raises DataError with file, line and what is wrong."""
    try:
        return parse(record)
    except NO_JSON as error:
        raise DataError(
            f"{dataset.where(sample)}: no JSON: {error}. "
            "Mend the line, or pass over such lines with on_error='skip'."
        ) from error


def _index_path(path: Path, cache: Path | None) -> Path:
    if cache is None:
        return path.with_name(f"{path.name}.rebar-index")
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache / "indexes" / f"{place}.rebar-index"
