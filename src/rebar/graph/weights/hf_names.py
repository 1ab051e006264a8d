"""Tensor names of Hugging Face folders beside the canonical ones (model_file), for the three
families. Source: transformers' modeling files.
"""

from __future__ import annotations

from collections.abc import Callable

from rebar.graph.models.config import DecoderConfig

OUTSIDE = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "head.weight",
}
INSIDE = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "q", "self_attn.k_proj": "k",
    "self_attn.v_proj": "v", "self_attn.o_proj": "out", "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm", "mlp.gate_proj": "gate", "mlp.up_proj": "up",
    "mlp.down_proj": "down", "post_attention_layernorm": "mlp_norm",
}  # fmt: skip
GEMMA3 = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}


def inside(config: DecoderConfig) -> dict[str, str]:
    """Names within a layer: theirs -> canonical."""
    return INSIDE | (GEMMA3 if config.family == "gemma3" else {})


def namer(config: DecoderConfig) -> Callable[[str], str]:
    """Canonical names as the folder spells them."""
    outside = {canonical: name for name, canonical in OUTSIDE.items()}
    within = {canonical: name for name, canonical in inside(config).items()}

    def shown(name: str) -> str:
        parts = name.split(".")
        if parts[0] == "layers" and len(parts) == 4 and parts[2] in within:
            return f"model.layers.{parts[1]}.{within[parts[2]]}.{parts[3]}"
        return outside.get(name, name)

    return shown
