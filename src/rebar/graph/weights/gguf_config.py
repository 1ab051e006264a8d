"""The decoder description out of GGUF keys. Defaults where files leave keys out are llama.cpp's,
named at each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.weights.gguf import GGUFFile, GGUFTensor
from rebar.graph.weights.gguf_keys import Keys

Family = Literal["llama", "qwen2", "gemma3"]
ARCHITECTURES: tuple[Family, ...] = ("llama", "qwen2", "gemma3")


def read_config(keys: Keys, gguf: GGUFFile, named: Mapping[str, GGUFTensor]) -> DecoderConfig:
    """The description; sizes are still unchecked against the tensors, except the number of
    layers.
    """
    if keys.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{keys.where}: architecture {keys.architecture!r} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}. Use a model of one of these."
        )
    if keys.integer("{arch}.expert_count", 0):
        raise UnsupportedModelError(
            f"{keys.where} is a mixture of experts, which is not supported. Use a dense model."
        )
    family: Family = keys.architecture
    config = _common(keys, family, named, _llama_rope(keys, gguf))
    return _gemma3(keys, config) if family == "gemma3" else config


def _common(
    keys: Keys, family: Family, named: Mapping[str, GGUFTensor], rope: RopeConfig
) -> DecoderConfig:
    width, heads = (
        keys.integer("{arch}.embedding_length"),
        keys.integer("{arch}.attention.head_count"),
    )
    return DecoderConfig(
        family=family,
        layers=_layers(keys, named),
        width=width,
        heads=heads,
        kv_heads=keys.integer("{arch}.attention.head_count_kv", heads),
        head_dim=_head_dim(keys),
        mlp_width=keys.integer("{arch}.feed_forward_length"),
        vocab_size=_vocab_size(keys, named),
        context_length=keys.integer("{arch}.context_length"),
        norm_eps=keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        qkv_bias="layers.0.q.bias" in named,
        tied_head="head.weight" not in named,
    )


def _layers(keys: Keys, named: Mapping[str, GGUFTensor]) -> int:
    claimed = keys.integer("{arch}.block_count")
    found = {name.split(".")[1] for name in named if name.startswith("layers.")}
    if claimed != len(found):
        raise CorruptFileError(
            f"{keys.where}: {keys.full('{arch}.block_count')} says {claimed} layers, tensors "
            "exist for "
            f"{len(found)}. Convert the model again."
        )
    return claimed


def _vocab_size(keys: Keys, named: Mapping[str, GGUFTensor]) -> int:
    embed = named.get("embed.weight")
    if embed is None:
        raise CorruptFileError(
            f"{keys.where}: tensor 'token_embd.weight' is missing. Fetch or convert the model "
            "again."
        )
    return embed.shape[0]


def _head_dim(keys: Keys) -> int:
    """key_length, by default width / heads; values as long as keys."""
    width, heads = (
        keys.integer("{arch}.embedding_length"),
        keys.integer("{arch}.attention.head_count"),
    )
    length = keys.integer("{arch}.attention.key_length", width // heads if heads else 0)
    if keys.integer("{arch}.attention.value_length", length) != length:
        raise UnsupportedModelError(
            f"{keys.where}: keys and values of different lengths are not supported. "
            "Use a model of a supported architecture."
        )
    return length


def _llama_rope(keys: Keys, gguf: GGUFFile) -> RopeConfig:
    rope = RopeConfig(
        theta=keys.number("{arch}.rope.freq_base", 10000.0),
        dim=keys.integer("{arch}.rope.dimension_count", _head_dim(keys)),
    )
    kind = keys.text("{arch}.rope.scaling.type", None)
    factor = keys.number("{arch}.rope.scaling.factor", 0.0) or keys.number(
        "{arch}.rope.scale_linear", 0.0
    )
    if kind not in ("", "none", "linear"):
        raise UnsupportedModelError(
            f"{keys.where}: rope scaling {kind!r} is not supported; supported are linear and "
            "llama3. "
            "Use a model without it."
        )
    if kind != "none" and factor not in (0.0, 1.0):
        rope = replace(rope, scaling="linear", factor=factor)
    factors = gguf.tensors.get("rope_freqs.weight")
    return rope if factors is None else _llama3(keys, gguf, factors, rope)


def _llama3(keys: Keys, gguf: GGUFFile, stored: GGUFTensor, rope: RopeConfig) -> RopeConfig:
    """Llama 3.1's scaling. GGUF holds its divisors, one a frequency, and not its parameters: the
    largest divisor is the factor, the others are the ones that Meta's models share; the divisors
    must come out equal.
    """
    data = gguf.file.span(stored.offset, stored.nbytes)
    if stored.type == "F32" and stored.shape == (rope.dim // 2,) and rope.scaling == "none":
        divisors = data.view("<f4").astype(np.float64)
        scaled = replace(rope, scaling="llama3", factor=float(divisors.max()))
        if np.all(divisors == 1.0):
            return rope
        if np.allclose(llama3_divisors(scaled), divisors, rtol=1e-5, atol=0):
            return scaled
    raise UnsupportedModelError(
        f"{keys.where}: the divisors in rope_freqs.weight are not those of Llama 3.1's scaling. "
        "Use a model with a supported rope scaling."
    )


def llama3_divisors(rope: RopeConfig) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What each of dim/2 frequencies is divided by (Llama 3.1 model card's reference code)."""
    frequencies = rope.theta ** -(np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    turns = rope.original_context * frequencies / (2 * np.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / rope.factor + smooth)


def _gemma3(keys: Keys, config: DecoderConfig) -> DecoderConfig:
    """Gemma 3 (technical report, arXiv:2503.19786, section 2): five windowed layers to one that
    sees all.
    """
    theta_local = keys.number("{arch}.rope.freq_base_swa", 10000.0)
    # The 27B model alone scales by the width of a head that width / heads would give.
    scale_dim = config.width / config.heads if config.layers == 62 else config.head_dim
    return replace(
        config,
        rope=replace(config.rope, theta=keys.number("{arch}.rope.freq_base", 1_000_000.0)),
        rope_local=RopeConfig(theta=theta_local, dim=config.rope.dim),
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        sliding_window=keys.integer("{arch}.attention.sliding_window", 0) or None,
        sliding_pattern=keys.integer("{arch}.attention.sliding_window_pattern", 6),
        embedding_scale=config.width**0.5,
        attention_scale=scale_dim**-0.5 if scale_dim else 0.0,
        logit_softcap=keys.number("{arch}.final_logit_softcapping", 0.0) or None,
    )
