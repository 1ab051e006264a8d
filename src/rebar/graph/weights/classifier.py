"""An image classifier as a .rebar file: the format of rebar_format.py with a header of its own. No
tokenizer; the labels are in the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rebar.errors import CorruptFileError
from rebar.graph.models.image_config import ConvNetConfig, tensor_shapes
from rebar.graph.weights.model_file import StoredTensor
from rebar.graph.weights.pack import LAYOUT_VERSION, final_nbytes, is_matrix
from rebar.graph.weights.rebar_format import (
    BLOB_ALIGNMENT,
    MAGIC,
    TENSOR_ALIGNMENT,
    ClassifierHeader,
    ProvenanceValue,
    Span,
    TensorEntry,
    aligned,
    data_start,
    decode,
    encode,
    kind_of,
)
from rebar.graph.weights.rebar_reader import tensors_of
from rebar.graph.weights.rebar_writer import unwritten, write_span
from rebar.hal import Matrix, Vector
from rebar.hal.files import MappedFile, write_whole


@dataclass(frozen=True, slots=True)
class ClassifierFile:
    """An opened classifier; tensors are views into the mapped file."""

    path: Path
    name: str
    config: ConvNetConfig
    tensors: Mapping[str, StoredTensor]
    provenance: Mapping[str, Any]
    format: Literal["classifier"] = "classifier"


def is_classifier(path: Path) -> bool:
    """Whether the file is a .rebar file of an image classifier. Raises as opening it would when
    it is a damaged .rebar file; anything else is none.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
    mapped = MappedFile(path)
    return kind_of(mapped.buffer(), LAYOUT_VERSION, str(path)) == ClassifierHeader.KIND


def open_classifier(path: Path) -> ClassifierFile:
    """Maps it; every length and shape is checked. Raises ModelFileError."""
    file, where = MappedFile(path), str(path)
    header, start = decode(file.buffer(), LAYOUT_VERSION, where, ClassifierHeader)
    tensors = tensors_of(file, start, header, where)
    due = dict(tensor_shapes(header.config))
    found = {name: t.shape for name, t in tensors.items()}
    if found != due or any(t.type != "F32" for t in tensors.values()):
        names = sorted(name for name in due | found if due.get(name) != found.get(name))
        raise CorruptFileError(
            f"{where}: its tensors are not those of its description ({', '.join(names[:4])}). "
            "Train it again."
        )
    return ClassifierFile(path, header.name, header.config, tensors, header.provenance)


def write_classifier(
    target: Path,
    name: str,
    config: ConvNetConfig,
    values: Mapping[str, Matrix | Vector],
    provenance: Mapping[str, ProvenanceValue],
) -> None:
    """Writes the file, whole or not at all. values: by the names of tensor_shapes. Raises
    ModelFileError.
    """
    entries, end = [], 0
    for tensor, shape in tensor_shapes(config):
        span = Span(aligned(end, TENSOR_ALIGNMENT), final_nbytes("F32", shape), "0" * 64)
        entries.append(TensorEntry(tensor, "F32", shape, is_matrix(shape), span))
        end = span.offset + span.nbytes
    nbytes = aligned(end, BLOB_ALIGNMENT)
    header = ClassifierHeader(ClassifierHeader.KIND, name, config, tuple(entries), dict(provenance))
    start = data_start(len(encode(header, nbytes, LAYOUT_VERSION)) - 64)
    try:
        with write_whole(target, start + nbytes) as sink:
            written = [
                replace(e, span=write_span(sink, start, e.span, [_bytes(values[e.name])]))
                for e in entries
            ]
            sink.seek(0)
            sink.write(encode(replace(header, tensors=tuple(written)), nbytes, LAYOUT_VERSION))
    except OSError as error:
        raise unwritten(target, error, start + nbytes) from error


def _bytes(value: Matrix | Vector) -> NDArray[np.uint8]:
    return value.data.view(np.uint8)
