"""Small random decoders of every family, as GGUF files or Hugging Face folders: the whole
stack without real weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.weights.layout import tensor_shapes
from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.types import FORMATS
from tests.tiny import vocabulary
from tests.tiny.gguf_bytes import Key, Tensor, gguf_bytes
from tests.tiny.quantize import quantize

Types = WeightType | Mapping[str, WeightType]
F32 = NDArray[np.float32]
Change = int | float | RopeConfig | None

_GGUF_NAMES = {
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "out": "attn_output",
    "post_attention_norm": "post_attention_norm", "mlp_norm": "ffn_norm", "gate": "ffn_gate",
    "up": "ffn_up", "down": "ffn_down", "post_mlp_norm": "post_ffw_norm",
    "embed": "token_embd", "final_norm": "output_norm", "head": "output",
}  # fmt: skip


@dataclass(frozen=True)
class TinyModel:
    """A description and its values by canonical name, in f32, before any quantization."""

    config: DecoderConfig
    values: Mapping[str, F32]


def tiny_config(family: str = "llama", **changes: Change) -> DecoderConfig:
    """2 layers, width 64, 4 heads on 2 KV heads, vocabulary 512, context 128. Any field can be
    changed.
    """
    width, heads = (
        _size(changes, name, default) for name, default in (("width", 64), ("heads", 4))
    )
    head_dim = _size(changes, "head_dim", width // heads)
    fields: dict[str, Any] = {
        "family": family, "layers": 2, "width": width, "heads": heads, "kv_heads": 2,
        "head_dim": head_dim, "mlp_width": 2 * width, "vocab_size": vocabulary.SIZE,
        "context_length": 128, "norm_eps": 1e-5, "rope": RopeConfig(theta=10000.0, dim=head_dim),
        "tied_head": True,
    }  # fmt: skip
    if family == "qwen2":
        fields |= {"qkv_bias": True, "tied_head": False}
    if family == "gemma3":
        fields |= {
            "rope": RopeConfig(theta=1_000_000.0, dim=head_dim),
            "rope_local": RopeConfig(theta=10000.0, dim=head_dim),
            "activation": "gelu_tanh", "qk_norm": True, "post_norms": True, "sliding_window": 16,
            "sliding_pattern": 6, "embedding_scale": width**0.5, "attention_scale": head_dim**-0.5,
        }  # fmt: skip
    return DecoderConfig(**(fields | changes))


def _size(changes: dict[str, Change], name: str, default: int) -> int:
    size = changes.pop(name, default)
    assert isinstance(size, int)
    return size


def tiny_model(family: str = "llama", *, seed: int = 0, **changes: Change) -> TinyModel:
    """Random values: matrices of variance 1/k, norms about 1, biases about 0."""
    config = tiny_config(family, **changes)
    random = np.random.default_rng(seed)
    values: dict[str, F32] = {}
    for name, shape in tensor_shapes(config):
        drawn = random.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values[name] = np.float32(1) + np.float32(0.1) * drawn
        elif name.endswith(".bias"):
            values[name] = np.float32(0.1) * drawn
        else:
            values[name] = drawn * np.float32(shape[-1] ** -0.5)
    return TinyModel(config, values)


def tiny_gguf(
    folder: Path, family: str = "llama", types: Types = "F32", *, seed: int = 0, **changes: Change
) -> Path:
    """Writes a GGUF file and gives its path.

    types: one type for all matrices, or by part ("q", "down", "embed", ...; others F32). K types
    need width=256.
    """
    model = tiny_model(family, seed=seed, **changes)
    kinds = types if isinstance(types, str) else "-".join(f"{k}{v}" for k, v in types.items())
    path = folder / f"tiny-{family}-{kinds}-{seed}.gguf"
    path.write_bytes(gguf_bytes(gguf_keys(model.config), gguf_tensors(model, types)))
    return path


def gguf_tensors(model: TinyModel, types: Types = "F32") -> list[Tensor]:
    """The tensor table with its data."""
    return [
        _gguf_tensor(model.config, name, values, types) for name, values in model.values.items()
    ]


def _gguf_tensor(config: DecoderConfig, name: str, values: F32, types: Types) -> Tensor:
    *layer, part, what = name.split(".")
    if config.family == "llama" and part in ("q", "k"):
        values = _paired(values, config.head_dim, config.rope.dim)
    kind: WeightType = "F32"
    if values.ndim == 2:
        kind = types if isinstance(types, str) else types.get(part, "F32")
    prefix = f"blk.{layer[1]}." if layer else ""
    stored = f"{prefix}{_GGUF_NAMES[part]}.{what}"
    return Tensor(stored, values.shape[::-1], FORMATS[kind].ggml, quantize(kind, values))


def _paired(values: F32, head_dim: int, dim: int) -> F32:
    """llama.cpp's order of q and k rows in the llama family: (j, j + dim/2) become neighbours."""
    heads = values.reshape(-1, head_dim, *values.shape[1:]).copy()
    rotated = heads[:, :dim].reshape(len(heads), 2, dim // 2, *values.shape[1:])
    heads[:, :dim] = rotated.swapaxes(1, 2).reshape(len(heads), dim, *values.shape[1:])
    return heads.reshape(values.shape)


def gguf_keys(config: DecoderConfig) -> list[Key]:
    """Keys of the description and the tokenizer."""
    a, c = config.family, config
    keys: list[Key] = [
        ("general.architecture", "str", a),
        ("general.name", "str", f"Tiny {a}"),
        (f"{a}.block_count", "u32", c.layers),
        (f"{a}.context_length", "u32", c.context_length),
        (f"{a}.embedding_length", "u32", c.width),
        (f"{a}.feed_forward_length", "u32", c.mlp_width),
        (f"{a}.attention.head_count", "u32", c.heads),
        (f"{a}.attention.head_count_kv", "u32", c.kv_heads),
        (f"{a}.attention.key_length", "u32", c.head_dim),
        (f"{a}.attention.value_length", "u32", c.head_dim),
        (f"{a}.attention.layer_norm_rms_epsilon", "f32", c.norm_eps),
        (f"{a}.rope.freq_base", "f32", c.rope.theta),
        (f"{a}.rope.dimension_count", "u32", c.rope.dim),
    ]
    if c.sliding_window is not None:
        keys.append((f"{a}.attention.sliding_window", "u32", c.sliding_window))
        keys.append((f"{a}.attention.sliding_window_pattern", "u32", c.sliding_pattern))
    return keys + (
        _spm_keys() if a == "gemma3" else _bpe_keys("qwen2" if a == "qwen2" else "smollm")
    )


def _bpe_keys(pre: str) -> list[Key]:
    tokens, types, merges = vocabulary.bpe()
    return [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", pre),
        ("tokenizer.ggml.tokens", "[str]", tokens),
        ("tokenizer.ggml.token_type", "[i32]", types),
        ("tokenizer.ggml.merges", "[str]", merges),
        ("tokenizer.ggml.bos_token_id", "u32", 1),
        ("tokenizer.ggml.eos_token_id", "u32", 2),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.chat_template", "str", vocabulary.CHATML),
    ]


def _spm_keys() -> list[Key]:
    tokens, types, scores, _ = vocabulary.spm()
    return [
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.pre", "str", "default"),
        ("tokenizer.ggml.tokens", "[str]", tokens),
        ("tokenizer.ggml.token_type", "[i32]", types),
        ("tokenizer.ggml.scores", "[f32]", scores),
        ("tokenizer.ggml.bos_token_id", "u32", 2),
        ("tokenizer.ggml.eos_token_id", "u32", 1),
        ("tokenizer.ggml.unknown_token_id", "u32", 3),
        ("tokenizer.ggml.padding_token_id", "u32", 0),
        ("tokenizer.ggml.add_bos_token", "bool", True),
        ("tokenizer.ggml.add_space_prefix", "bool", False),
        ("tokenizer.chat_template", "str", vocabulary.TURNS),
    ]
