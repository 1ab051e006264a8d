"""safetensors files: header and bounds, one file or a sharded set. Format:
huggingface/safetensors, README "Format".

The header's length is compared with the file before anything of that size is read, and the tensors
must cover the data part without holes or overlaps, as the reference library asks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, MissingFileError, UnsupportedModelError
from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.types import FORMATS
from rebar.hal.files import MappedFile, read_bounded

MAX_HEADER_BYTES = 100_000_000  # the reference library's limit
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 1 << 24
MAX_DIMENSIONS = 8

_TYPES: dict[str, WeightType] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_LENGTH = struct.Struct("<Q")
_SHARD = re.compile(r"[\w+-][\w.+-]*\.safetensors", re.ASCII)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class FloatTensor:
    """A tensor of floats in a mapped file, (outputs, inputs) or (n,)."""

    shape: tuple[int, ...]
    type: WeightType
    data: NDArray[np.uint8]


def read_folder(folder: Path) -> dict[str, FloatTensor]:
    """All tensors of a model folder: model.safetensors, or the shards of its index. Never
    pickled files.
    """
    if (folder / SINGLE).exists():
        return read_safetensors(folder / SINGLE)
    if (folder / INDEX).exists():
        return _read_shards(folder)
    pickled = sorted(
        p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    if pickled:
        raise UnsupportedModelError(
            f"{folder} holds only pickled weights ({', '.join(pickled[:3])}), which can run "
            "code and are never read. "
            "Convert them to safetensors where you trust them."
        )
    raise MissingFileError(f"{folder} has neither {SINGLE} nor {INDEX}. Check the folder.")


def _read_shards(folder: Path) -> dict[str, FloatTensor]:
    """The weight map names files of this folder, nothing else; each shard holds just the
    tensors it is said to hold.
    """
    index = _index(folder / INDEX)
    for file in set(index.values()):
        if not _SHARD.fullmatch(file):
            raise CorruptFileError(
                f"{folder / INDEX}: {file[:100]!r} is no file name of this folder. Do not use "
                "this model; fetch it again."
            )
    tensors: dict[str, FloatTensor] = {}
    for file in sorted(set(index.values())):
        if not (folder / file).exists():
            raise MissingFileError(f"{folder}: shard {file} is missing. Fetch it.")
        found = read_safetensors(folder / file)
        due = {name for name, shard in index.items() if shard == file}
        _check_same(folder / file, due, set(found))
        tensors |= found
    return tensors


def _check_same(shard: Path, due: set[str], found: set[str]) -> None:
    for what, names in (("lacks", due - found), ("has, against the index,", found - due)):
        if names:
            listed = ", ".join(sorted(names)[:5])
            raise CorruptFileError(f"{shard} {what} {listed}. Fetch the model again.")


def _index(path: Path) -> dict[str, str]:
    raw = read_bounded(path, MAX_INDEX_BYTES)
    try:
        return msgspec.json.decode(raw, type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CorruptFileError(f"{path} is no index ({error}). Fetch it again.") from error


def read_safetensors(path: Path) -> dict[str, FloatTensor]:
    """Maps one file and indexes its tensors. Raises CorruptFileError or UnsupportedModelError."""
    file = MappedFile(path)
    header, start = _header(file)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, raw) for name, raw in header.items()}
    _check_cover(path, entries.values(), file.nbytes - start)
    return {name: _tensor(file, start, name, entry) for name, entry in entries.items()}


def read_notes(path: Path) -> dict[str, str]:
    """A file's free metadata; nothing where it is not as it must be."""
    raw = _header(MappedFile(path))[0].get("__metadata__", msgspec.Raw(b"{}"))
    try:
        return msgspec.json.decode(raw, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return {}


def _header(file: MappedFile) -> tuple[dict[str, msgspec.Raw], int]:
    if file.nbytes < 8:
        raise _corrupt(file.path, f"{file.nbytes} bytes cannot hold a header")
    if bytes(file.data[:4]) in (b"PK\x03\x04", b"\x80\x02}q"):
        raise UnsupportedModelError(
            f"{file.path} is an archive of pickled weights under another name, which is never "
            "read. "
            "Convert it to safetensors where you trust it."
        )
    (nbytes,) = _LENGTH.unpack_from(file.buffer())
    if nbytes > min(MAX_HEADER_BYTES, file.nbytes - 8):
        raise _corrupt(file.path, f"a header of {nbytes} bytes in a file of {file.nbytes}")
    try:
        header = msgspec.json.decode(file.buffer()[8 : 8 + nbytes], type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _corrupt(file.path, f"the header is unreadable ({error})") from error
    return header, 8 + nbytes


def _entry(path: Path, name: str, raw: msgspec.Raw) -> _Entry:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _corrupt(path, f"tensor {name!r} is not described as it must be ({error})") from error
    if entry.dtype not in _TYPES:
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} is of type {entry.dtype[:20]}; supported are "
            f"{', '.join(_TYPES)}. "
            "Convert the model to one of these."
        )
    begin, end = entry.data_offsets
    if len(entry.shape) > MAX_DIMENSIONS:  # a product of thousands of huge numbers takes minutes
        raise _corrupt(path, f"tensor {name!r} has {len(entry.shape)} dimensions")
    if any(n < 0 for n in (*entry.shape, begin)) or end < begin:
        raise _corrupt(path, f"tensor {name!r} has negative sizes or offsets")
    needed = prod(entry.shape) * FORMATS[_TYPES[entry.dtype]].nbytes
    if end - begin != needed:
        raise _corrupt(
            path,
            f"tensor {name!r} of shape {entry.shape} needs {needed} bytes, "
            f"its offsets give {end - begin}",
        )
    return entry


def _check_cover(path: Path, entries: Iterable[_Entry], nbytes: int) -> None:
    """Raises unless the tensors fill the data part, each beginning where the one before ends."""
    at = 0
    for begin, end in sorted(entry.data_offsets for entry in entries):
        if begin != at:
            raise _corrupt(
                path, f"the data has {'a hole' if begin > at else 'an overlap'} at {min(at, begin)}"
            )
        at = end
    if at != nbytes:
        raise _corrupt(path, f"the tensors need {at} bytes of data, the file has {nbytes}")


def _tensor(file: MappedFile, start: int, name: str, entry: _Entry) -> FloatTensor:
    begin, end = entry.data_offsets
    if not entry.shape or 0 in entry.shape:
        raise _corrupt(file.path, f"tensor {name!r} is empty or a single number")
    return FloatTensor(entry.shape, _TYPES[entry.dtype], file.span(start + begin, end - begin))


def _corrupt(path: Path, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{path}: {what}. The file is damaged or was cut short: fetch it again."
    )


def same_values(a: FloatTensor, b: FloatTensor) -> bool:
    """Whether two tensors are equal, byte for byte; compared in pieces."""
    if (a.shape, a.type) != (b.shape, b.type):
        return False
    step = 1 << 22
    return all(
        np.array_equal(a.data[i : i + step], b.data[i : i + step])
        for i in range(0, a.data.nbytes, step)
    )


Tensors = Mapping[str, FloatTensor]
