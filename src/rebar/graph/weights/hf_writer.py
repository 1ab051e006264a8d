"""Writes a model as a Hugging Face folder, which transformers opens: config.json,
generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
chat_template.jinja.

The law: the folder is there whole or not at all, for it is built beside its place and renamed. All
weights have one type, since transformers computes in one. Rows of q and k stand as they do here;
Gemma's norms are written as 1 less than the factor.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np

from rebar.errors import InputError
from rebar.graph.weights.hf_config_writer import generation_config, hf_config
from rebar.graph.weights.hf_names import namer
from rebar.graph.weights.hf_tokenizer_writer import hf_tokenizer, tokenizer_config
from rebar.graph.weights.layout import floats, tensor_shapes
from rebar.graph.weights.model_file import (
    ModelFile,
    Progress,
    StoredTensor,
    TokenizerData,
    WeightType,
)
from rebar.graph.weights.pack import is_matrix
from rebar.graph.weights.provenance import merged_notes
from rebar.graph.weights.rebar_writer import unwritten
from rebar.graph.weights.safetensors import SINGLE
from rebar.graph.weights.safetensors_writer import safetensors_header
from rebar.graph.weights.types import stored_nbytes
from rebar.graph.weights.values import F32, dense_pieces, encoded
from rebar.hal.files import sync_folder, write_whole

FloatType = Literal["F32", "F16", "BF16"]
FolderType = Literal["auto"] | FloatType
_SHORT: tuple[FloatType, ...] = ("F16", "BF16")
TEMPLATE = "chat_template.jinja"
JSONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
FILES = frozenset((*JSONS, SINGLE, TEMPLATE))


def write_hf_folder(
    model: ModelFile,
    tokenizer: TokenizerData,
    folder: Path,
    *,
    kind: FolderType = "auto",
    replace: bool = False,
    progress: Progress | None = None,
) -> FloatType:
    """Writes `model`; gives the type of its weights. kind: this type; auto: see folder_type.
    replace: also over a folder of just such files. Raises InputError for a place that is taken and
    a type that does not hold the weights, UnsupportedModelError for what transformers has no words
    for, ModelFileError for what cannot be written.
    """
    check_place(folder, replace=replace)
    due = folder_type(model) if kind == "auto" else kind
    texts = _texts(model, tokenizer, due)
    nbytes = sum(_nbytes(due, shape) for _, shape in tensor_shapes(model.config))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", suffix=".part", dir=folder.parent
        ) as beside:
            built = Path(beside) / "folder"
            with write_whole(built / SINGLE, nbytes) as file:
                _write_weights(file, model, due, progress)
            for name, text in texts.items():
                with write_whole(built / name) as file:
                    file.write(text)
            _put(built, folder, Path(beside) / "before")
    except OSError as error:
        raise unwritten(folder, error, nbytes) from error
    return due


def check_place(folder: Path, *, replace: bool) -> None:
    """Raises InputError unless a folder may be written there. Nothing is taken away that may not
    have come from here.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder. Choose another name.", param="target")
    held = {path.name for path in folder.iterdir()}
    if held and not replace:
        raise InputError(
            f"{folder} is not empty. Choose another name, or --force to replace the model in it.",
            param="target",
        )
    if strange := sorted(held - FILES):
        raise InputError(
            f"{folder} holds {strange[0]!r}, which is no file of such a model, so it is not "
            "replaced. Choose another name.",
            param="target",
        )


def folder_type(model: ModelFile) -> FloatType:
    """F16 or BF16 when all matrices have this type and it holds every other value as it is, else
    F32, which holds any.
    """
    tensors = [model.tensors[name] for name, _ in tensor_shapes(model.config)]
    kinds = {tensor.type for tensor in tensors if is_matrix(tensor.shape)}
    for kind in _SHORT:
        if kinds == {kind}:
            vectors = (_vector(model, t) for t in tensors if not is_matrix(t.shape))
            return kind if all(_holds(kind, values) for values in vectors) else "F32"
    return "F32"


def _holds(kind: WeightType, values: F32) -> bool:
    raw = encoded(kind, values)
    return bool((floats(StoredTensor("", values.shape, kind, raw), "") == values).all())


def _nbytes(kind: WeightType, shape: tuple[int, ...]) -> int:
    return stored_nbytes(kind, shape) or 0  # floats fill any row


def _texts(model: ModelFile, tokenizer: TokenizerData, kind: WeightType) -> dict[str, bytes]:
    """Everything but the weights, by name of the file."""
    described: dict[str, Mapping[str, Any]] = {
        "tokenizer.json": hf_tokenizer(tokenizer),
        "tokenizer_config.json": tokenizer_config(tokenizer, model.config.context_length),
        "generation_config.json": generation_config(tokenizer),
        "config.json": hf_config(model.config, tokenizer, kind),
    }
    texts = {
        name: msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"
        for name, said in described.items()
    }
    if model.chat_template is not None:
        texts[TEMPLATE] = model.chat_template.encode()
    return texts


def _write_weights(
    file: IO[bytes], model: ModelFile, kind: WeightType, progress: Progress | None
) -> None:
    shown, shapes = namer(model.config), list(tensor_shapes(model.config))
    notes = {"format": "pt"} | merged_notes(model)
    file.write(safetensors_header([(shown(name), kind, shape) for name, shape in shapes], notes))
    total, done = sum(_nbytes(kind, shape) for _, shape in shapes), 0
    for name, shape in shapes:
        for values in _values(model, model.tensors[name]):
            file.write(encoded(kind, values).data)
        done += _nbytes(kind, shape)
        if progress is not None:
            progress(name, done, total)


def _values(model: ModelFile, tensor: StoredTensor) -> Iterator[F32]:
    if is_matrix(tensor.shape):
        yield from dense_pieces(tensor)
    else:
        yield _vector(model, tensor)


def _vector(model: ModelFile, tensor: StoredTensor) -> F32:
    """A vector as transformers stores it."""
    values = floats(tensor, tensor.name)
    gemma_norm = model.config.family == "gemma3" and tensor.name.endswith("norm.weight")
    return values - np.float32(1) if gemma_norm else values


def _put(built: Path, folder: Path, before: Path) -> None:
    """Renames a finished folder into its place; what was there goes with the rest."""
    if folder.exists():
        os.replace(folder, before)
    os.replace(built, folder)
    sync_folder(folder.parent)
