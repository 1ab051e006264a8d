"""config.json and generation_config.json of a decoder, in words that transformers 4 and 5 know.

The law: what is written is read back (`hf_config`) as the same decoder, or nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.weights.hf_config import HFConfig, decoder_config
from rebar.graph.weights.model_file import TokenizerData, WeightType

# (model_type, class)
_KINDS = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_DTYPES: dict[WeightType, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def hf_config(config: DecoderConfig, tokenizer: TokenizerData, kind: WeightType) -> dict[str, Any]:
    """config.json. kind: type of the weights. UnsupportedModelError for a decoder that none of
    transformers' three families is.
    """
    # A llama with biases on q, k and v is what transformers calls qwen2; its own has one more.
    family = "qwen2" if config.qkv_bias else config.family
    written = _common(config, *_KINDS[family]) | {"torch_dtype": _DTYPES[kind]} | _ids(tokenizer)
    if family == "gemma3":
        written |= _gemma3(config)
    try:
        read = decoder_config(msgspec.convert(written, HFConfig), "config.json")
    except (UnsupportedModelError, CorruptFileError, msgspec.ValidationError):
        read = None
    if read is None or _settled(read) != _settled(config):
        raise UnsupportedModelError(
            f"transformers has no words for this {config.family} decoder ({config}). Write the "
            "model as .rebar."
        )
    return written


def generation_config(tokenizer: TokenizerData) -> dict[str, Any]:
    """generation_config.json: where an answer ends. How to sample stands in no model file."""
    return _ids(tokenizer)


def _ids(tokenizer: TokenizerData) -> dict[str, Any]:
    ends = [*tokenizer.end_ids]
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.pad_id,
    }
    return {name: value for name, value in ids.items() if value is not None}


def _common(c: DecoderConfig, model_type: str, architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": c.width,
        "intermediate_size": c.mlp_width, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim,
        "vocab_size": c.vocab_size, "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.norm_eps, "rope_theta": c.rope.theta, "rope_scaling": _scaling(c.rope),
        "tie_word_embeddings": c.tied_head, "hidden_act": "silu",
    }  # fmt: skip


def _scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.scaling == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_frequency_factor,
            "high_freq_factor": rope.high_frequency_factor,
            "original_max_position_embeddings": rope.original_context,
        }
    return scaling


def _gemma3(c: DecoderConfig) -> dict[str, Any]:
    kinds = ["sliding" if c.window_of(layer) else "full" for layer in range(c.layers)]
    return {
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": c.sliding_window, "sliding_window_pattern": c.sliding_pattern,
        "layer_types": [f"{kind}_attention" for kind in kinds],
        "query_pre_attn_scalar": _scalar(c.attention_scale or c.head_dim**-0.5),
        "rope_local_base_freq": (c.rope_local or c.rope).theta,
        "attn_logit_softcapping": c.attention_softcap, "final_logit_softcapping": c.logit_softcap,
    }  # fmt: skip


def _scalar(scale: float) -> float:
    """The number whose inverse root is the scale: whole where a model's own was."""
    exact = scale**-2
    return round(exact) if round(exact) ** -0.5 == scale else exact


def _settled(c: DecoderConfig) -> tuple[object, ...]:
    """What a decoder computes, whatever it is called: windows and rotations layer by layer."""
    layers = [(c.window_of(layer), c.rope_of(layer)) for layer in range(c.layers)]
    alike = replace(
        c,
        family="llama",
        attention_scale=c.attention_scale or c.head_dim**-0.5,
        rope_local=None,
        sliding_window=None,
        sliding_pattern=1,
    )
    return layers, alike
