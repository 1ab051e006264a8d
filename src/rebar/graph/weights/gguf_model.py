"""What a GGUF file means: architectures llama, qwen2 and gemma3 as one decoder description with
canonical tensors.

Key and tensor names: the GGUF specification; values that files leave out: llama.cpp's model loader.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.gguf import GGUFFile, GGUFTensor, read_gguf
from rebar.graph.weights.gguf_config import read_config
from rebar.graph.weights.gguf_keys import Keys
from rebar.graph.weights.gguf_tokenizer import read_tokenizer
from rebar.graph.weights.layout import check_config, check_tensors, frozen, vector_as_f32
from rebar.graph.weights.model_file import ModelFile, StoredTensor
from rebar.hal.files import MappedFile

_OUTSIDE = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "final_norm.weight",
    "output.weight": "head.weight",
}
_INSIDE = {
    "attn_norm": "attention_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v",
    "attn_q_norm": "q_norm", "attn_k_norm": "k_norm", "attn_output": "out",
    "post_attention_norm": "post_attention_norm", "ffn_norm": "mlp_norm", "ffn_gate": "gate",
    "ffn_up": "up", "ffn_down": "down", "post_ffw_norm": "post_mlp_norm",
}  # fmt: skip
_SHOWN = {canonical: stored for stored, canonical in (_OUTSIDE | _INSIDE).items()}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)", re.ASCII)
# Tables that the description already holds; readers of old files left them in.
_IGNORED = re.compile(
    r"rope_freqs\.weight|blk\.[0-9]+\.attn_rot_embd|blk\.[0-9]+\.attn\.rotary_emb\.inv_freq"
)


def open_gguf(path: Path) -> ModelFile:
    """Opens a GGUF model. Raises ModelFileError when it is damaged, inconsistent or of an unknown
    kind.
    """
    gguf = read_gguf(MappedFile(path))
    where, keys = str(path), Keys(gguf)
    _check_whole(keys)
    named = _canonical(gguf)
    config = read_config(keys, gguf, named)
    check_config(config, where)
    tensors = {name: _stored(gguf, name, tensor, config) for name, tensor in named.items()}
    check_tensors(config, tensors, where, _as_stored)
    return ModelFile(
        path=path,
        format="gguf",
        config=config,
        tensors=tensors,
        tokenizer=read_tokenizer(keys, config.vocab_size),
        chat_template=keys.text("tokenizer.chat_template", None) or None,
        name=keys.text("general.name", None) or path.stem,
        provenance={"format": f"gguf v{gguf.version}", "license": keys.text("general.license", "")},
    )


def _check_whole(keys: Keys) -> None:
    parts = keys.integer("split.count", 1)
    if parts > 1:
        raise UnsupportedModelError(
            f"{keys.where} is one of {parts} parts. Join them first (llama-gguf-split --merge)."
        )


def _canonical(gguf: GGUFFile) -> dict[str, GGUFTensor]:
    """The tensors by canonical name; names that no architecture here knows keep their own."""
    named: dict[str, GGUFTensor] = {}
    for name, tensor in gguf.tensors.items():
        if _IGNORED.fullmatch(name):
            continue
        layer = _LAYER.fullmatch(name)
        if layer and layer[2] in _INSIDE:
            named[f"layers.{layer[1]}.{_INSIDE[layer[2]]}.{layer[3]}"] = tensor
        else:
            named[_OUTSIDE.get(name, name)] = tensor
    return named


def _as_stored(name: str) -> str:
    """A canonical name as GGUF spells it."""
    parts = name.split(".")
    if parts[0] == "layers" and len(parts) == 4 and parts[2] in _SHOWN:
        return f"blk.{parts[1]}.{_SHOWN[parts[2]]}.{parts[3]}"
    return _SHOWN.get(name, name)


def _stored(gguf: GGUFFile, name: str, tensor: GGUFTensor, config: DecoderConfig) -> StoredTensor:
    data = gguf.file.span(tensor.offset, tensor.nbytes)
    stored = StoredTensor(name, tensor.shape, tensor.type, data)
    rotated = config.family == "llama" and re.fullmatch(
        r"layers\.[0-9]+\.[qk]\.(weight|bias)", name
    )
    rows = rope_rows(tensor.shape[0], config.head_dim, config.rope.dim) if rotated else None
    if len(tensor.shape) != 1:
        return StoredTensor(name, tensor.shape, tensor.type, data, rows=rows)
    vector = vector_as_f32(stored, str(gguf.file.path))
    if rows is None:
        return vector
    values = frozen(np.ascontiguousarray(vector.data.view("<f4")[rows]).view(np.uint8))
    return StoredTensor(name, tensor.shape, "F32", values)


def rope_rows(n: int, head_dim: int, dim: int) -> NDArray[np.int32]:
    """For output row i the stored row it comes from, (n,).

    llama.cpp's converter stores q and k of the llama family so that the rotation pairs neighbours
    (2j, 2j + 1); here pairs are (j, j + dim/2): row j + t dim/2 of a head stands at 2j + t. Raises
    CorruptFileError when n is no whole number of heads.
    """
    if n % head_dim:
        raise CorruptFileError(
            f"{n} rows of q or k are not whole heads of {head_dim}. Convert the model again."
        )
    head = np.arange(head_dim, dtype=np.int32)
    head[:dim] = head[:dim].reshape(dim // 2, 2).T.ravel()
    starts = np.arange(0, n, head_dim, dtype=np.int32)
    return frozen((starts[:, None] + head[None, :]).ravel())
