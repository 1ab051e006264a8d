"""Tiny models as Hugging Face folders, written with nothing but json and struct."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rebar.graph.models.config import DecoderConfig
from tests.tiny import vocabulary
from tests.tiny.model import F32, Change, TinyModel, tiny_model
from tests.tiny.quantize import quantize

FloatType = Literal["F32", "F16", "BF16"]

_NAMES = {
    "attention_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "out": "self_attn.o_proj", "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm", "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj",
    "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_GEMMA3 = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_OUTSIDE = {
    "embed.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def hf_name(name: str, family: str) -> str:
    """A canonical tensor name in transformers' words."""
    parts = name.split(".")
    if parts[0] != "layers":
        return _OUTSIDE[name]
    inside = _NAMES | (_GEMMA3 if family == "gemma3" else {})
    return f"model.layers.{parts[1]}.{inside[parts[2]]}.{parts[3]}"


def hf_values(model: TinyModel) -> dict[str, F32]:
    """The tensors as transformers stores them: Gemma's norm weights are 1 less than the factor."""
    one_less = model.config.family == "gemma3"
    return {
        hf_name(name, model.config.family): values - np.float32(1)
        if one_less and "norm" in name
        else values
        for name, values in model.values.items()
    }


def safetensors_bytes(values: Mapping[str, F32], kind: FloatType = "F32") -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in values.items():
        raw = quantize(kind, array)
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tiny_hf(
    folder: Path,
    family: str = "llama",
    kind: FloatType = "F32",
    *,
    seed: int = 0,
    shards: int = 1,
    **changes: Change,
) -> Path:
    """Writes a Hugging Face folder under `folder` and gives its path; the same values as
    `tiny_model`.
    """
    model = tiny_model(family, seed=seed, **changes)
    path = folder / f"tiny-{family}-{kind}-{seed}-{shards}"
    path.mkdir()
    write_json(path / "config.json", hf_config(model.config))
    write_json(path / "tokenizer.json", spm_json() if family == "gemma3" else bpe_json(family))
    write_json(path / "tokenizer_config.json", tokenizer_config(family))
    _write_weights(path, hf_values(model), kind, shards)
    return path


def write_json(path: Path, value: object) -> None:
    """JSON with a line end."""
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(path: Path, values: dict[str, F32], kind: FloatType, shards: int) -> None:
    if shards == 1:
        (path / "model.safetensors").write_bytes(safetensors_bytes(values, kind))
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        names = list(values)[shard::shards]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        (path / file).write_bytes(safetensors_bytes({name: values[name] for name in names}, kind))
        weight_map |= dict.fromkeys(names, file)
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def hf_config(c: DecoderConfig) -> dict[str, Any]:
    """config.json."""
    config: dict[str, Any] = {
        "model_type": {"gemma3": "gemma3_text"}.get(c.family, c.family), "hidden_size": c.width,
        "intermediate_size": c.mlp_width, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim,
        "vocab_size": c.vocab_size, "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.norm_eps, "rope_theta": c.rope.theta, "tie_word_embeddings": c.tied_head,
        "eos_token_id": 1 if c.family == "gemma3" else 2, "hidden_act": "silu",
    }  # fmt: skip
    if c.family == "gemma3":
        config |= {
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": c.sliding_window,
            "sliding_window_pattern": c.sliding_pattern, "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": c.head_dim,
        }  # fmt: skip
    return config


def bpe_json(family: str) -> dict[str, Any]:
    """tokenizer.json of the byte-level BPE."""
    tokens, _, merges = vocabulary.bpe()
    split: dict[str, Any] = {"type": "Digits", "individual_digits": True}
    byte_level: dict[str, Any] = dict(_BYTE_LEVEL)
    if family == "qwen2":
        pattern = {"Regex": QWEN2_PATTERN}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        byte_level["use_regex"] = False
    return {
        "version": "1.0",
        "added_tokens": [added(i, token) for i, token in enumerate(vocabulary.BPE_CONTROL)],
        "normalizer": {"type": "NFC"} if family == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
            "vocab": {token: id_ for id_, token in enumerate(tokens)}, "merges": merges,
        },
    }  # fmt: skip


def spm_json() -> dict[str, Any]:
    """tokenizer.json of the SentencePiece-style BPE."""
    tokens, _, _, merges = vocabulary.spm()
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    text = [{"Sequence": {"id": letter, "type_id": i}} for i, letter in enumerate("AB")]
    return {
        "version": "1.0",
        "added_tokens": [added(i, token) for i, token in enumerate(vocabulary.SPM_CONTROL)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, text[0]], "pair": [bos, *text],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }  # fmt: skip


def added(id_: int, token: str) -> dict[str, Any]:
    """An added token that is special."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": token, **flags, "special": True}


def tokenizer_config(family: str) -> dict[str, Any]:
    """tokenizer_config.json."""
    if family == "gemma3":
        names = {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        }
        return {**names, "chat_template": vocabulary.TURNS}
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return {**names, "chat_template": vocabulary.CHATML}
