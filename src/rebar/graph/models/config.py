"""What a decoder is: one description whose flags cover llama, qwen2 and gemma3.

A config is read from a model file and never changes. Sizes are element counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al., arXiv:2104.09864), pairs (i, i + dim/2).

    `scaling` "linear" divides positions by `factor`; "llama3" keeps high frequencies, divides low
    ones by `factor` and blends between (Llama 3.1 model card).
    """

    theta: float
    dim: int
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer.

    `post_norms`: norm after attention and MLP as well as before (gemma3). `sliding_pattern` p:
    layer i looks at all positions when (i + 1) % p == 0, else at the last `sliding_window`; such
    windowed layers use `rope_local` when it is given.
    """

    family: Literal["llama", "qwen2", "gemma3"]
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    rope_local: RopeConfig | None = None
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    sliding_window: int | None = None
    sliding_pattern: int = 1
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied_head: bool = False

    def window_of(self, layer: int) -> int | None:
        """Positions layer `layer` may look back at (itself included), None for all."""
        if self.sliding_window is None or (layer + 1) % self.sliding_pattern == 0:
            return None
        return self.sliding_window

    def rope_of(self, layer: int) -> RopeConfig:
        """Rotation of layer `layer`."""
        local = self.rope_local
        return self.rope if local is None or self.window_of(layer) is None else local
