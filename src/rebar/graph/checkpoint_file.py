"""A checkpoint on disk: a safetensors file (any reader of these opens it) with a digest over every
byte of it. No pickle.

    0     u64 bytes of the header
    8     {"__metadata__": {"sha256": 64 hex digits, "state": JSON as text}, tensors ...}
    then  the arrays, flat float32, in the order of the header

The digest is taken with its own 64 digits as zeros and stands at a fixed place. A file that was cut
short, or in which a byte differs, is refused as a whole: what is loaded is what was written.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError
from rebar.graph.weights.safetensors import read_safetensors
from rebar.hal.files import MappedFile, hash_mapped, write_whole

F32 = NDArray[np.float32]
State = dict[str, Any]

_BEGIN = b'{"__metadata__": {"sha256": "'
_DIGEST = slice(8 + len(_BEGIN), 8 + len(_BEGIN) + 64)
_ZEROS = b"0" * 64
_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 22
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds. arrays: read-only views into the mapped file."""

    path: Path
    state: State
    arrays: Mapping[str, F32]


def write_checkpoint(path: Path, state: State, arrays: Mapping[str, F32]) -> None:
    """Writes a checkpoint under its name, whole or not at all, and waits for the disk. OSError as
    the system reports it.
    """
    header = _header(state, arrays)
    digest = hashlib.sha256(header)
    with write_whole(path, len(header) + sum(a.nbytes for a in arrays.values())) as sink:
        sink.write(header)
        for piece in _pieces(arrays):
            digest.update(piece)
            sink.write(piece)
        sink.seek(_DIGEST.start)
        sink.write(digest.hexdigest().encode())


def _header(state: State, arrays: Mapping[str, F32]) -> bytes:
    entries: dict[str, Any] = {
        "__metadata__": {"sha256": _ZEROS.decode(), "state": json.dumps(state, allow_nan=False)}
    }
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        entries[name] = {"dtype": "F32", "shape": [array.size], "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    assert text.startswith(_BEGIN), "the digest stands where it is looked for"
    return _LENGTH.pack(len(text)) + text


def _pieces(arrays: Mapping[str, F32]) -> Iterator[memoryview]:
    for array in arrays.values():
        raw = np.ascontiguousarray(array, dtype="<f4").reshape(-1).view(np.uint8)
        for begin in range(0, raw.size, _PIECE):
            yield raw[begin : begin + _PIECE].data


def read_checkpoint(path: Path) -> Saved:
    """Maps a checkpoint whose digest is right. MissingFileError, CorruptFileError."""
    with MappedFile(path) as file:
        data = file.data
        if data[8 : _DIGEST.start].tobytes() != _BEGIN or file.nbytes < _DIGEST.stop:
            raise _damaged(path, "it does not begin as a checkpoint does")
        if _digest(data) != data[_DIGEST].tobytes():
            raise _damaged(path, "its bytes do not have their digest")
        tensors = read_safetensors(path)
        (nbytes,) = _LENGTH.unpack_from(file.buffer())
        state = _state(path, bytes(data[8 : 8 + nbytes]))
    if any(t.type != "F32" for t in tensors.values()):
        raise _damaged(path, "it holds what is no float32")
    return Saved(path, state, {name: t.data.view("<f4") for name, t in tensors.items()})


def _state(path: Path, header: bytes) -> State:
    """From a header whose digest is right; whoever wrote it, nothing but an error comes of it."""
    try:
        state = json.loads(json.loads(header)["__metadata__"]["state"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, "its state cannot be read") from error
    if not isinstance(state, dict):
        raise _damaged(path, "its state is none")
    return state


def _digest(data: NDArray[np.uint8]) -> bytes:
    digest = hashlib.sha256(data[: _DIGEST.start].data)
    digest.update(_ZEROS)
    hash_mapped(digest, data[_DIGEST.stop :])
    return digest.hexdigest().encode()


def _damaged(path: Path, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{path}: {what}. It was cut short or damaged: use an older checkpoint of the folder."
    )
