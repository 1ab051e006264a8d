"""The bytes of records to what their JSON says.

Most records are read by native code (native/text/json_record.h), which goes through texts 16 bytes
at a time and through many records in a call. Whatever is not quite ordinary is read by msgspec,
errors among it; both read the same from the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar._native import parse_records, parse_spans

__all__ = ["NO_JSON", "Json", "Raw", "Records", "parse", "parse_records"]

Json: TypeAlias = Any  # what a record says: dict, list, str, int, float, bool or None
Raw = bytes | memoryview
NO_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
parse = msgspec.json.Decoder().decode
"""What one record says. Raises one of NO_JSON."""


class Records(Sequence[memoryview]):
    """Records where they lie. A view of one is made when it is asked for, none to parse them."""

    def __init__(self, data: NDArray[np.uint8], spans: NDArray[np.uint64]) -> None:
        """spans (n, 2): begin and end of each in data."""
        self._data, self._spans = data, spans

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, number: int) -> memoryview: ...
    @overload
    def __getitem__(self, number: slice) -> Records: ...
    def __getitem__(self, number: int | slice) -> memoryview | Records:
        if isinstance(number, slice):
            return Records(self._data, self._spans[number])
        begin, end = self._spans[number].tolist()
        return self._data.data[begin:end]

    def __iter__(self) -> Iterator[memoryview]:
        data = self._data.data
        return (data[begin:end] for begin, end in self._spans.tolist())

    @property
    def nbytes(self) -> NDArray[np.uint64]:
        """Of each."""
        return self._spans[:, 1] - self._spans[:, 0]

    def parsed(self) -> tuple[list[Json], list[int]]:
        """What each says, and the numbers of those that `parse` must read."""
        return parse_spans(self._data, self._spans)
