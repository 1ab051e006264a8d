"""GGUF containers (versions 2 and 3, little-endian): keys, tensor table, bounds. No meaning is
given to anything here.

Every count, length, offset and alignment is checked against the file before it is used and before
anything is allocated; arrays stay in the mapping until someone asks for their values. Source: the
GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.types import BY_GGML, FORMATS, stored_nbytes
from rebar.hal.files import MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Far above any real file, low enough that walking a hostile one takes a fraction of a second.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 256
MAX_TEXT_BYTES = 1 << 24
MAX_STRINGS = 1 << 22
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL, _UINT32 = 8, 9, 7, 4
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: _U32, 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<B"),
    10: _U64, 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_DTYPES = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
# ggml's names of types that are not supported, for the error's sake.
_FOREIGN = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NumberArray:
    """A one-dimensional array of numbers in the mapping."""

    values: NDArray[np.generic]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings, each a u64 length and that many bytes, from `offset` on; walked once,
    so known to be whole.
    """

    file: MappedFile
    key: str
    offset: int
    count: int

    def __len__(self) -> int:
        return self.count

    def decode(self) -> list[str]:
        """The strings. Raises CorruptFileError when one is not UTF-8."""
        buffer, unpack, at = self.file.buffer(), _U64.unpack_from, self.offset
        found: list[str] = []
        for _ in range(self.count):
            begin = at + 8
            at = begin + unpack(buffer, at)[0]
            try:
                found.append(str(buffer[begin:at], "utf-8"))
            except UnicodeDecodeError as error:
                raise CorruptFileError(
                    f"{self.file.path}: entry {len(found)} of {self.key} is not UTF-8. "
                    "Convert the model again from its source."
                ) from error
        return found


Value = int | float | bool | str | NumberArray | StringArray


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table: shape is row-major (outputs first), offset counts from the
    file's beginning.
    """

    name: str
    shape: tuple[int, ...]
    type: WeightType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A checked container: `values` by key, `tensors` by name in the order of the table."""

    file: MappedFile
    version: int
    values: Mapping[str, Value]
    tensors: Mapping[str, GGUFTensor]


def read_gguf(file: MappedFile) -> GGUFFile:
    """Checks and indexes a mapped GGUF file. Raises CorruptFileError or UnsupportedModelError,
    nothing else.
    """
    cursor = _Cursor(file)
    version = _version(cursor)
    tensor_count = cursor.count("tensors", least=33, most=MAX_TENSORS)
    key_count = cursor.count("keys", least=14, most=MAX_KEYS)
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.text(MAX_KEY_BYTES, "a key")
        if key in values:
            raise cursor.corrupt(f"key {key!r} stands in the file twice")
        values[key] = _value(cursor, key)
    infos = [_info(cursor) for _ in range(tensor_count)]
    return GGUFFile(file, version, values, _placed(cursor, infos, values))


class _Cursor:
    """A position in the file; reading moves it on and never leaves the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.buffer = file.buffer()
        self.at = 0
        self.end = file.nbytes

    def corrupt(self, what: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self.file.path}: {what}. The file is damaged or was cut short: fetch it again."
        )

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.end - self.at:
            raise self.corrupt(
                f"{what} needs {nbytes} bytes at offset {self.at}, {self.end - self.at} are left"
            )

    def number(self, form: struct.Struct, what: str) -> int | float:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.buffer, self.at)
        self.at += form.size
        return value  # type: ignore[no-any-return]

    def u32(self, what: str) -> int:
        return int(self.number(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def count(self, what: str, *, least: int, most: int) -> int:
        """A u64 count of things of at least `least` bytes each."""
        count = self.u64(f"the number of {what}")
        if count > most or count * least > self.end - self.at:
            raise self.corrupt(f"it claims {count} {what}, which cannot be in {self.end} bytes")
        return count

    def text(self, most: int, what: str) -> str:
        length = self.u64(f"the length of {what}")
        if length > most:
            raise self.corrupt(f"{what} claims {length} bytes, at most {most} are allowed")
        self.need(length, what)
        begin, self.at = self.at, self.at + length
        try:
            return str(self.buffer[begin : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} at offset {begin} is not UTF-8") from error


def _version(cursor: _Cursor) -> int:
    cursor.need(8, "the beginning")
    if cursor.buffer[:4] != MAGIC:
        raise cursor.corrupt("it does not begin with GGUF")
    cursor.at = 4
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version != 0:
        raise UnsupportedModelError(
            f"{cursor.file.path} is a big-endian GGUF file, which is not supported. "
            "Convert it to little-endian (gguf-convert-endian) or fetch the little-endian one."
        )
    if version not in VERSIONS:
        raise UnsupportedModelError(
            f"{cursor.file.path} is GGUF version {version}; versions 2 and 3 are supported. "
            "Fetch a newer file of this model."
        )
    return version


def _value(cursor: _Cursor, key: str) -> Value:
    kind = cursor.u32(f"the type of key {key!r}")
    if kind == _STRING:
        return cursor.text(MAX_TEXT_BYTES, f"key {key!r}")
    if kind == _ARRAY:
        return _array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.corrupt(f"key {key!r} has the unknown type {kind}")
    value = cursor.number(_SCALARS[kind], f"key {key!r}")
    if kind == _BOOL:
        return bool(value)
    if key == "general.alignment" and kind != _UINT32:
        raise cursor.corrupt("general.alignment is not of type uint32")
    return value


def _array(cursor: _Cursor, key: str) -> NumberArray | StringArray:
    kind = cursor.u32(f"the element type of {key!r}")
    if kind == _ARRAY:
        raise UnsupportedModelError(
            f"{cursor.file.path}: key {key!r} is an array of arrays, which no known model uses. "
            "Convert the model again without that key."
        )
    if kind == _STRING:
        count = cursor.count(f"strings in {key!r}", least=8, most=MAX_STRINGS)
        begin = cursor.at
        _skip_strings(cursor, key, count)
        return StringArray(cursor.file, key, begin, count)
    if kind not in _DTYPES:
        raise cursor.corrupt(f"key {key!r} is an array of the unknown type {kind}")
    dtype = np.dtype(_DTYPES[kind])
    count = cursor.count(f"values in {key!r}", least=dtype.itemsize, most=1 << 62)
    data = cursor.file.span(cursor.at, count * dtype.itemsize)
    cursor.at += count * dtype.itemsize
    return NumberArray(data.view(dtype))


def _skip_strings(cursor: _Cursor, key: str, count: int) -> None:
    """Walks `count` strings. Lengths are added unchecked: one that leaves the file makes the next
    read fail, or the last test.
    """
    buffer, unpack, at = cursor.buffer, _U64.unpack_from, cursor.at
    try:
        for _ in range(count):
            at += 8 + unpack(buffer, at)[0]
    except (struct.error, OverflowError) as error:
        raise cursor.corrupt(f"a string of {key!r} leaves the file") from error
    if at > cursor.end:
        raise cursor.corrupt(f"a string of {key!r} leaves the file")
    cursor.at = at


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _info(cursor: _Cursor) -> _Info:
    name = cursor.text(MAX_NAME_BYTES, "a tensor's name")
    dims = cursor.u32(f"the dimensions of tensor {name!r}")
    if not 1 <= dims <= 4:
        raise cursor.corrupt(f"tensor {name!r} has {dims} dimensions, 1 to 4 are possible")
    shape = tuple(cursor.u64(f"a dimension of tensor {name!r}") for _ in range(dims))
    if 0 in shape:
        raise cursor.corrupt(f"tensor {name!r} has a dimension of 0")
    kind = cursor.u32(f"the type of tensor {name!r}")
    return _Info(name, shape[::-1], kind, cursor.u64(f"the offset of tensor {name!r}"))


def _alignment(cursor: _Cursor, values: Mapping[str, Value]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool):
        raise cursor.corrupt("general.alignment is not of type uint32")
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.corrupt(
            f"general.alignment is {alignment}, not a power of two from 8 to {MAX_ALIGNMENT}"
        )
    return alignment


def _placed(
    cursor: _Cursor, infos: list[_Info], values: Mapping[str, Value]
) -> dict[str, GGUFTensor]:
    """The tensors with their places in the file, which are inside it, aligned and apart from each
    other.
    """
    alignment = _alignment(cursor, values)
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.corrupt(f"tensor {info.name!r} stands in the file twice")
        tensors[info.name] = _place(cursor, info, base, alignment)
    _check_apart(tensors.values(), cursor.corrupt)
    return tensors


def _place(cursor: _Cursor, info: _Info, base: int, alignment: int) -> GGUFTensor:
    name, kind = info.name, BY_GGML.get(info.kind)
    if kind is None:
        foreign = _FOREIGN.get(info.kind, f"number {info.kind}")
        raise UnsupportedModelError(
            f"{cursor.file.path}: tensor {name!r} is of type {foreign}; supported are "
            f"{', '.join(FORMATS)}. Fetch the model in one of these."
        )
    nbytes = stored_nbytes(kind, info.shape)
    if nbytes is None:
        block = FORMATS[kind].block
        raise cursor.corrupt(
            f"tensor {name!r}: rows of {info.shape[-1]} are not whole {kind} blocks of {block}"
        )
    if info.offset % alignment:
        raise cursor.corrupt(f"tensor {name!r}: offset {info.offset} breaks alignment {alignment}")
    if base + info.offset + nbytes > cursor.end:
        raise cursor.corrupt(
            f"tensor {name!r}: {nbytes} bytes at offset {base + info.offset} leave the file of "
            f"{cursor.end} bytes"
        )
    return GGUFTensor(name, info.shape, kind, base + info.offset, nbytes)


def _check_apart(tensors: Iterable[GGUFTensor], corrupt: Callable[[str], CorruptFileError]) -> None:
    """Raises when two tensors share bytes."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if after.offset < before.offset + before.nbytes:
            raise corrupt(f"tensors {before.name!r} and {after.name!r} overlap")
