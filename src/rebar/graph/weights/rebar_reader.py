"""Opens a .rebar file by mapping it: nothing is copied, every length is checked before it is
used.
"""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, ShapeError
from rebar.graph.weights.layout import MAX_SIZE, check_config, check_tensors
from rebar.graph.weights.model_file import ModelFile, Progress, StoredTensor
from rebar.graph.weights.pack import LAYOUT_VERSION, final_nbytes, is_matrix
from rebar.graph.weights.rebar_format import (
    TENSOR_ALIGNMENT,
    AnyHeader,
    Header,
    Span,
    TensorEntry,
    decode,
    decode_any,
)
from rebar.hal.files import MappedFile

_CHUNK = 1 << 24
_SHA256 = re.compile(r"[0-9a-f]{64}")


def open_rebar(path: Path) -> ModelFile:
    """Opens a .rebar model. Raises CorruptFileError when it is damaged, UnsupportedModelError for
    another version.

    Digests are not computed here (see `verify_digests`): opening reads the header's pages only.
    """
    file = MappedFile(path)
    where = str(path)
    header, start = decode(file.buffer(), LAYOUT_VERSION, where, Header)
    check_config(header.config, where)
    tensors = tensors_of(file, start, header, where)
    check_tensors(header.config, tensors, where)
    return ModelFile(
        path=path,
        format="rebar",
        config=header.config,
        tensors=tensors,
        vocabulary=_bytes(file, start, header.vocabulary).data,
        chat_template=header.chat_template,
        name=header.name,
        provenance=header.provenance,
    )


def tensors_of(
    file: MappedFile, start: int, header: AnyHeader, where: str
) -> dict[str, StoredTensor]:
    """Views of all tensors, each checked against the file."""
    _check_apart(header, where)
    tensors: dict[str, StoredTensor] = {}
    for entry in header.tensors:
        if entry.name in tensors:
            raise _corrupt(where, f"tensor {entry.name!r} stands in the file twice")
        tensors[entry.name] = _tensor(file, start, entry, where)
    return tensors


def _tensor(file: MappedFile, start: int, entry: TensorEntry, where: str) -> StoredTensor:
    named = f"tensor {entry.name!r}"
    if not 1 <= len(entry.shape) <= 2 or not all(1 <= n <= MAX_SIZE for n in entry.shape):
        raise _corrupt(where, f"{named} has the impossible shape {entry.shape}")
    if entry.packed != is_matrix(entry.shape) or (not entry.packed and entry.type != "F32"):
        raise _corrupt(where, f"{named}: matrices must be packed, vectors plain F32")
    try:
        due = final_nbytes(entry.type, entry.shape)
    except ShapeError as error:
        raise _corrupt(where, f"{named}: {error}") from error
    if entry.span.nbytes != due or entry.span.offset % TENSOR_ALIGNMENT:
        raise _corrupt(where, f"{named} must be {due} bytes at a multiple of {TENSOR_ALIGNMENT}")
    data = _bytes(file, start, entry.span)
    return StoredTensor(entry.name, entry.shape, entry.type, data, packed=entry.packed)


def _bytes(file: MappedFile, start: int, span: Span) -> NDArray[np.uint8]:
    if span.offset < 0 or span.nbytes < 0:
        raise _corrupt(str(file.path), "it has a negative offset or size")
    return file.span(start + span.offset, span.nbytes)


def _check_apart(header: AnyHeader, where: str) -> None:
    spans = sorted(header.spans, key=lambda named: (named[1].offset, named[1].nbytes))
    for (before, first), (after, second) in pairwise(spans):
        if second.offset < first.offset + first.nbytes:
            raise _corrupt(where, f"{before} and {after} overlap")
    for name, span in spans:
        if not _SHA256.fullmatch(span.sha256):
            raise _corrupt(where, f"the digest of {name} is no sha256")


def verify_digests(path: Path, progress: Progress | None = None) -> int:
    """Computes every digest of a .rebar file; gives the bytes checked. Raises CorruptFileError
    naming the first that differs.
    """
    file = MappedFile(path)
    header, start = decode_any(file.buffer(), LAYOUT_VERSION, str(path))
    spans = header.spans
    total, done = sum(span.nbytes for _, span in spans), 0
    for name, span in spans:
        if _digest(_bytes(file, start, span)) != span.sha256:
            raise _corrupt(str(path), f"{name} does not have its digest")
        done += span.nbytes
        if progress is not None:
            progress(name, done, total)
    return done


def _digest(data: NDArray[np.uint8]) -> str:
    digest = hashlib.sha256()
    for begin in range(0, data.nbytes, _CHUNK):
        digest.update(data[begin : begin + _CHUNK].data)
    return digest.hexdigest()


def _corrupt(where: str, what: str) -> CorruptFileError:
    return CorruptFileError(f"{where}: {what}. The file is damaged: convert the model again.")
