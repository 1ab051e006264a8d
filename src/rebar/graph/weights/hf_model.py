"""Hugging Face folders (config.json, safetensors, tokenizer.json) as one decoder description with
canonical tensors.

Tensor names: transformers' modeling files of the three families. q and k stand in the (i, i +
dim/2) rope order already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rebar.errors import CorruptFileError
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.hf_config import decoder_config, read_hf_config
from rebar.graph.weights.hf_tokenizer import read_hf_tokenizer, read_template
from rebar.graph.weights.layout import check_config, check_tensors, frozen, vector_as_f32
from rebar.graph.weights.model_file import ModelFile, StoredTensor
from rebar.graph.weights.safetensors import FloatTensor, Tensors, read_folder, same_values
from rebar.graph.weights.types import FORMATS

_OUTSIDE = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "head.weight",
}
_INSIDE = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "q", "self_attn.k_proj": "k",
    "self_attn.v_proj": "v", "self_attn.o_proj": "out", "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
    "mlp.down_proj": "down", "post_attention_layernorm": "mlp_norm",
}  # fmt: skip
_GEMMA3 = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.([a-z_.]+)\.(weight|bias)", re.ASCII)
# Pictures are not this decoder's business; old files carry the rotation's table.
_IGNORED = re.compile(
    r"(model\.)?(vision_tower|multi_modal_projector)\..*|.*\.rotary_emb\.inv_freq"
)


def open_hf_folder(folder: Path) -> ModelFile:
    """Opens a folder. Raises ModelFileError when something is missing, damaged, inconsistent
    or of an unknown kind.
    """
    where = str(folder)
    hf = read_hf_config(folder / "config.json")
    config = decoder_config(hf, str(folder / "config.json"))
    check_config(config, where)
    floats = _canonical(read_folder(folder), config)
    _settle_head(floats, config, where)
    shown = _shower(config)
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
        provenance={"format": "safetensors"},
    )


def _inside(config: DecoderConfig) -> dict[str, str]:
    return _INSIDE | (_GEMMA3 if config.family == "gemma3" else {})


def _canonical(stored: Tensors, config: DecoderConfig) -> dict[str, FloatTensor]:
    """The tensors by canonical name; names that the family does not know keep their own."""
    inside, named = _inside(config), {}
    for full, tensor in stored.items():
        if _IGNORED.fullmatch(full):
            continue
        name = re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", full)
        name = name.removeprefix("language_model.")
        layer = _LAYER.fullmatch(name)
        known = layer is not None and layer[2] in inside
        canonical = (
            f"layers.{layer[1]}.{inside[layer[2]]}.{layer[3]}"
            if known and layer
            else _OUTSIDE.get(name, name)
        )
        if canonical in named:
            raise CorruptFileError(f"Tensor {full!r} stands in the model twice. Fetch it again.")
        named[canonical] = tensor
    return named


def _shower(config: DecoderConfig) -> Callable[[str], str]:
    """Canonical names as the folder spells them."""
    outside = {canonical: name for name, canonical in _OUTSIDE.items()}
    inside = {canonical: name for name, canonical in _inside(config).items()}

    def shown(name: str) -> str:
        parts = name.split(".")
        if parts[0] == "layers" and len(parts) == 4 and parts[2] in inside:
            return f"model.layers.{parts[1]}.{inside[parts[2]]}.{parts[3]}"
        return outside.get(name, name)

    return shown


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
