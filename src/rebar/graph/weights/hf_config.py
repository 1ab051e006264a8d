"""The decoder description out of a Hugging Face config.json. Defaults are those of
transformers' config classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.hal.files import read_bounded

Family = Literal["llama", "qwen2", "gemma3"]
MODEL_TYPES: dict[str, Family] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
}
MAX_JSON_BYTES = 1 << 28
ADAPTER_CONFIG = "adapter_config.json"  # what peft calls it, in a folder that is no model

T = TypeVar("T")


class RopeParameters(msgspec.Struct, frozen=True):
    """`rope_scaling` of transformers 4, `rope_parameters` of 5; `type` is the older name of
    `rope_type`.
    """

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class HFConfig(msgspec.Struct, frozen=True):
    """The fields of config.json that matter; unknown ones are passed over."""

    model_type: str = ""
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str | None = None
    hidden_activation: str | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_scaling: RopeParameters | None = None
    rope_parameters: msgspec.Raw = msgspec.Raw()
    rope_local_base_freq: float = 10000.0
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    sliding_window_pattern: int | None = None
    eos_token_id: int | list[int] | None = None
    bos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None
    text_config: msgspec.Raw = msgspec.Raw()


# transformers' Gemma3TextConfig: files leave out what equals it.
_GEMMA3 = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "query_pre_attn_scalar": 256.0, "sliding_window": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip


def read_json(path: Path, kind: type[T]) -> T:
    """A small JSON file as `kind`. Raises MissingFileError or CorruptFileError."""
    return parse_json(read_bounded(path, MAX_JSON_BYTES), kind, str(path))


def parse_json(raw: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """JSON bytes as `kind`; every way in which they can be wrong is a CorruptFileError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CorruptFileError(f"{where} is not as it must be: {error}. Fetch it again.") from error


def _given(raw: msgspec.Raw) -> bool:
    """Whether a field is there and not null."""
    return bytes(raw) not in (b"", b"null")


def read_hf_config(path: Path) -> HFConfig:
    """config.json; of a model with pictures, the part about text."""
    config = read_json(path, HFConfig)
    where = str(path)
    if config.model_type not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"{where}: model type {config.model_type!r} is not supported; supported are "
            f"{', '.join(MODEL_TYPES)}. "
            "Use a model of one of these."
        )
    if config.quantization_config is not None:
        raise UnsupportedModelError(
            f"{where}: weights quantized by "
            f"{str(config.quantization_config.get('quant_method'))[:40]} are not "
            "supported. Use the float weights or a GGUF file."
        )
    if _given(config.text_config):
        text = parse_json(config.text_config, HFConfig, where)
        ends = text.eos_token_id if text.eos_token_id is not None else config.eos_token_id
        config = msgspec.structs.replace(text, model_type=config.model_type, eos_token_id=ends)
    return _with_defaults(config)


def _with_defaults(config: HFConfig) -> HFConfig:
    if MODEL_TYPES[config.model_type] != "gemma3":
        return config
    absent = {name: value for name, value in _GEMMA3.items() if getattr(config, name) is None}
    return msgspec.structs.replace(config, **absent)


def decoder_config(config: HFConfig, where: str) -> DecoderConfig:
    """The description. Whether the head is tied is what the file says; the tensors are
    compared with it later.
    """
    family = MODEL_TYPES[config.model_type]
    width, heads = _need(config, "hidden_size", where), _need(config, "num_attention_heads", where)
    head_dim = config.head_dim or (width // heads if heads > 0 else 0)
    ropes = _ropes(config, head_dim, where)
    _check_supported(config, family, where)
    gemma = family == "gemma3"
    layers = _need(config, "num_hidden_layers", where)
    return DecoderConfig(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=head_dim,
        mlp_width=_need(config, "intermediate_size", where),
        vocab_size=_need(config, "vocab_size", where),
        context_length=_need(config, "max_position_embeddings", where),
        norm_eps=config.rms_norm_eps,
        rope=ropes[0],
        rope_local=ropes[1],
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias=family == "qwen2" or config.attention_bias,
        qk_norm=gemma,
        post_norms=gemma,
        sliding_window=config.sliding_window if gemma else None,
        sliding_pattern=_pattern(config, layers, where) if gemma else 1,
        embedding_scale=width**0.5 if gemma and width > 0 else 1.0,
        attention_scale=_scale(config.query_pre_attn_scalar) if gemma else 0.0,
        attention_softcap=config.attn_logit_softcapping if gemma else None,
        logit_softcap=config.final_logit_softcapping if gemma else None,
        tied_head=bool(config.tie_word_embeddings),
    )


def _need(config: HFConfig, name: str, where: str) -> int:
    value = getattr(config, name)
    if value is None:
        raise CorruptFileError(f"{where}: {name} is missing. Fetch the file again.")
    return int(value)


def _scale(scalar: float | None) -> float:
    return scalar**-0.5 if scalar is not None and scalar > 0 else 0.0


def _check_supported(config: HFConfig, family: Family, where: str) -> None:
    acts = {"silu"} if family != "gemma3" else {"gelu_pytorch_tanh"}
    act = config.hidden_activation or config.hidden_act or next(iter(acts))
    unsupported = {
        f"activation {act!r}": act not in acts,
        "biases in the MLP": config.mlp_bias,
        "windowed attention in qwen2": family == "qwen2" and config.use_sliding_window,
    }
    for what, present in unsupported.items():
        if present:
            raise UnsupportedModelError(f"{where}: {what} is not supported. Use another model.")


def _ropes(config: HFConfig, head_dim: int, where: str) -> tuple[RopeConfig, RopeConfig | None]:
    """(rotation, rotation of windowed layers or None)."""
    gemma = MODEL_TYPES[config.model_type] == "gemma3"
    theta = config.rope_theta or (1_000_000.0 if gemma else 10_000.0)
    full, local = _rope_parameters(config, where)
    rope = _rope(full, full.rope_theta or theta, head_dim, where)
    local_theta = local.rope_theta or config.rope_local_base_freq
    return rope, RopeConfig(theta=local_theta, dim=head_dim) if gemma else None


def _rope_parameters(config: HFConfig, where: str) -> tuple[RopeParameters, RopeParameters]:
    """Of layers that see all, and of windowed ones. transformers 5 writes one set, or one a
    layer type.
    """
    none, raw = RopeParameters(), config.rope_parameters
    if not _given(raw):
        return config.rope_scaling or none, none
    by_layer = parse_json(raw, dict[str, msgspec.Raw], where)
    if "full_attention" not in by_layer:
        return parse_json(raw, RopeParameters, where), none
    full, local = by_layer["full_attention"], by_layer.get("sliding_attention")
    return (
        parse_json(full, RopeParameters, where),
        none if local is None else parse_json(local, RopeParameters, where),
    )


def _rope(given: RopeParameters, theta: float, dim: int, where: str) -> RopeConfig:
    kind = given.rope_type or given.type or "default"
    if kind == "default":
        return RopeConfig(theta=theta, dim=dim)
    if kind == "linear":
        return RopeConfig(theta=theta, dim=dim, scaling="linear", factor=given.factor)
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            dim=dim,
            scaling="llama3",
            factor=given.factor,
            low_frequency_factor=given.low_freq_factor,
            high_frequency_factor=given.high_freq_factor,
            original_context=given.original_max_position_embeddings,
        )
    raise UnsupportedModelError(
        f"{where}: rope scaling {kind[:40]!r} is not supported; supported are linear and "
        "llama3. Use a model without it."
    )


def _pattern(config: HFConfig, layers: int, where: str) -> int:
    """p, when layer i sees all just for (i + 1) % p == 0."""
    kinds = config.layer_types
    if kinds is None:
        return config.sliding_window_pattern or 6
    full = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
    pattern = min(full, default=layers) + 1
    if len(kinds) != layers or full != {i for i in range(layers) if (i + 1) % pattern == 0}:
        raise UnsupportedModelError(
            f"{where}: layer_types is no repeated pattern over {layers} layers. Use another model."
        )
    return pattern
