"""Writes a model as .rebar: packed for the kernels, complete under its name or not there at all."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rebar.errors import ModelFileError
from rebar.graph.weights.layout import tensor_shapes
from rebar.graph.weights.model_file import ModelFile, Progress
from rebar.graph.weights.pack import LAYOUT_VERSION, final_nbytes, final_pieces, is_matrix
from rebar.graph.weights.rebar_format import (
    BLOB_ALIGNMENT,
    TENSOR_ALIGNMENT,
    Header,
    ProvenanceValue,
    Span,
    TensorEntry,
    aligned,
    data_start,
    encode,
)
from rebar.hal.files import write_whole

"""(tensor, bytes done, bytes in all)"""

_NO_DIGEST = "0" * 64


def write_rebar(
    model: ModelFile,
    target: Path,
    *,
    vocabulary: bytes,
    provenance: Mapping[str, ProvenanceValue],
    progress: Progress | None = None,
    threads: int = 1,
) -> None:
    """Writes `model` to `target`.

    vocabulary: the tokenizer's ready tables. The room is taken before any work is done, so a full
    disk is known at once; a failure leaves nothing behind. Raises ModelFileError when the file
    cannot be written, ShapeError for sizes that cannot be packed. Needs memory for one piece of a
    matrix at a time (16 MiB, or one whole q or k).
    """
    header, data_nbytes = _planned(model, len(vocabulary), provenance)
    beginning = encode(header, data_nbytes, LAYOUT_VERSION)
    start = data_start(len(beginning) - 64)
    try:
        with write_whole(target, start + data_nbytes) as sink:
            written = _write_data(model, header, vocabulary, sink, start, progress, threads)
            final = encode(written, data_nbytes, LAYOUT_VERSION)
            assert len(final) == len(beginning), "digests have a fixed length"
            sink.seek(0)
            sink.write(final)
    except OSError as error:
        raise unwritten(target, error, start + data_nbytes) from error


def _planned(
    model: ModelFile, vocabulary_nbytes: int, provenance: Mapping[str, ProvenanceValue]
) -> tuple[Header, int]:
    """The header without digests, and the bytes of the data part."""
    entries, end, blob = [], vocabulary_nbytes, ""
    for name, shape in tensor_shapes(model.config):
        tensor = model.tensors[name]
        alignment = TENSOR_ALIGNMENT if _blob_of(name) == blob else BLOB_ALIGNMENT
        blob = _blob_of(name)
        nbytes = final_nbytes(tensor.type, shape)
        span = Span(aligned(end, alignment), nbytes, _NO_DIGEST)
        entries.append(TensorEntry(name, tensor.type, shape, is_matrix(shape), span))
        end = span.offset + nbytes
    header = Header(
        name=model.name,
        config=model.config,
        tensors=tuple(entries),
        vocabulary=Span(0, vocabulary_nbytes, _NO_DIGEST),
        chat_template=model.chat_template,
        provenance=dict(provenance),
    )
    return header, aligned(end, BLOB_ALIGNMENT)


def _blob_of(name: str) -> str:
    """embed, each layer, and all that comes after the layers are a blob each."""
    first, second = name.split(".")[:2]
    if first == "layers":
        return f"layers.{second}"
    return "embed" if first == "embed" else "end"


def _write_data(
    model: ModelFile,
    header: Header,
    vocabulary: bytes,
    sink: IO[bytes],
    start: int,
    progress: Progress | None,
    threads: int,
) -> Header:
    """Writes every span; gives the header with the digests."""
    total = sum(entry.span.nbytes for entry in header.tensors)
    tables = write_span(sink, start, header.vocabulary, [np.frombuffer(vocabulary, dtype=np.uint8)])
    done, entries = 0, []
    for entry in header.tensors:
        pieces = final_pieces(model.tensors[entry.name], threads)
        entries.append(replace(entry, span=write_span(sink, start, entry.span, pieces)))
        done += entry.span.nbytes
        if progress is not None:
            progress(entry.name, done, total)
    return replace(header, tensors=tuple(entries), vocabulary=tables)


def write_span(
    sink: IO[bytes], start: int, span: Span, pieces: Iterable[NDArray[np.uint8]]
) -> Span:
    """Writes the bytes of one span; gives it with its digest."""
    digest, nbytes = hashlib.sha256(), 0
    sink.seek(start + span.offset)
    for piece in pieces:
        digest.update(piece.data)
        sink.write(piece.data)
        nbytes += piece.nbytes
    assert nbytes == span.nbytes, "a tensor packs into what was planned"
    return replace(span, sha256=digest.hexdigest())


def unwritten(target: Path, error: OSError, nbytes: int) -> ModelFileError:
    """What a failed write is told as."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelFileError(
            f"{target} needs {nbytes / 1e6:,.0f} MB and the disk has no room for it. Nothing "
            "was left behind. "
            "Make room or write to another disk."
        )
    return ModelFileError(
        f"{target} cannot be written: {error.strerror or error}. Choose another place."
    )
