"""Hugging Face folders (config.json, safetensors, tokenizer.json) as one decoder description with
canonical tensors.

Tensor names: transformers' modeling files of the three families. q and k stand in the (i, i +
dim/2) rope order already.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.hf_config import ADAPTER_CONFIG, decoder_config, read_hf_config
from rebar.graph.weights.hf_names import OUTSIDE, inside, namer
from rebar.graph.weights.hf_tokenizer import read_hf_tokenizer, read_template
from rebar.graph.weights.layout import check_config, check_tensors, frozen, vector_as_f32
from rebar.graph.weights.model_file import ModelFile, StoredTensor
from rebar.graph.weights.provenance import BASE, MERGED
from rebar.graph.weights.safetensors import (
    SINGLE,
    FloatTensor,
    Tensors,
    read_folder,
    read_notes,
    same_values,
)
from rebar.graph.weights.types import FORMATS

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.([a-z_.]+)\.(weight|bias)", re.ASCII)
_DIGESTS = re.compile(r"[0-9a-f]{64}( [0-9a-f]{64}){0,255}")
# Pictures are not this decoder's business; old files carry the rotation's table.
_IGNORED = re.compile(
    r"(model\.)?(vision_tower|multi_modal_projector)\..*|.*\.rotary_emb\.inv_freq"
)


def open_hf_folder(folder: Path) -> ModelFile:
    """Opens a folder. Raises ModelFileError when something is missing, damaged, inconsistent
    or of an unknown kind.
    """
    where = str(folder)
    if (folder / ADAPTER_CONFIG).exists() and not (folder / "config.json").exists():
        raise UnsupportedModelError(
            f"{folder} is an adapter, and no model. Give the model that it was made for, and this "
            f"beside it (--adapter NAME={folder}; rebar merge MODEL {folder} TARGET)."
        )
    hf = read_hf_config(folder / "config.json")
    config = decoder_config(hf, str(folder / "config.json"))
    check_config(config, where)
    floats = _canonical(read_folder(folder), config)
    _settle_head(floats, config, where)
    shown = namer(config)
    tensors = {name: _stored(name, tensor, config, where) for name, tensor in floats.items()}
    check_tensors(config, tensors, where, shown)
    return ModelFile(
        path=folder,
        format="safetensors",
        config=config,
        tensors=tensors,
        tokenizer=read_hf_tokenizer(folder, hf, config.vocab_size),
        chat_template=read_template(folder),
        name=folder.resolve().name,
        provenance={"format": "safetensors"} | _notes(folder),
    )


def _notes(folder: Path) -> dict[str, str]:
    """Of a folder that was written here: what has been merged into its weights, by digests. Whoever
    else uses these names gets no room in our files.
    """
    notes = read_notes(folder / SINGLE) if (folder / SINGLE).exists() else {}
    return {n: notes[n] for n in (MERGED, BASE) if n in notes and _DIGESTS.fullmatch(notes[n])}


def _canonical(stored: Tensors, config: DecoderConfig) -> dict[str, FloatTensor]:
    """The tensors by canonical name; names that the family does not know keep their own."""
    known, named = inside(config), {}
    for full, tensor in stored.items():
        if _IGNORED.fullmatch(full):
            continue
        name = re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", full)
        name = name.removeprefix("language_model.")
        layer = _LAYER.fullmatch(name)
        is_known = layer is not None and layer[2] in known
        canonical = (
            f"layers.{layer[1]}.{known[layer[2]]}.{layer[3]}"
            if is_known and layer
            else OUTSIDE.get(name, name)
        )
        if canonical in named:
            raise CorruptFileError(f"Tensor {full!r} stands in the model twice. Fetch it again.")
        named[canonical] = tensor
    return named


def _settle_head(floats: dict[str, FloatTensor], config: DecoderConfig, where: str) -> None:
    """Compares the tie flag with the tensors. A head beside a tie must equal the embedding and
    is left out.
    """
    head, embed = floats.get("head.weight"), floats.get("embed.weight")
    if not config.tied_head and head is None:
        raise CorruptFileError(
            f"{where}: lm_head.weight is missing and config.json does not tie it to the "
            "embedding. Fetch the model "
            "again, or set tie_word_embeddings if that is what it means."
        )
    if config.tied_head and head is not None and embed is not None:
        if not same_values(head, embed):
            raise CorruptFileError(
                f"{where}: config.json ties the head to the embedding, but lm_head.weight "
                "differs from it. "
                "Set tie_word_embeddings to false if the head is meant."
            )
        del floats["head.weight"]


def _stored(name: str, tensor: FloatTensor, config: DecoderConfig, where: str) -> StoredTensor:
    data = tensor.data
    if (
        data.ctypes.data % FORMATS[tensor.type].nbytes
    ):  # the format does not align; kernels want whole elements
        data = frozen(np.array(data))
    stored = StoredTensor(name, tensor.shape, tensor.type, data)
    if len(tensor.shape) != 1:
        return stored
    is_norm = name.endswith("norm.weight")
    return vector_as_f32(stored, where, plus=1.0 if is_norm and config.family == "gemma3" else 0.0)
