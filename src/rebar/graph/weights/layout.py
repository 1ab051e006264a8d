"""Which tensors a decoder has, of which shapes, in the order of their use; the test that a file
has just these.

Names are canonical (see model_file). q, k, v and gate, up are neighbours, so that packed files may
join them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.weights.model_file import StoredTensor

Shape = tuple[int, ...]

# Sizes no decoder reaches; they keep products of sizes far inside 63 bits.
MAX_LAYERS = 4096
MAX_SIZE = 1 << 28


def tensor_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """(name, shape) of every tensor, in the order a step uses them."""
    c = config
    yield "embed.weight", (c.vocab_size, c.width)
    for index in range(c.layers):
        for name, shape in layer_shapes(c):
            yield f"layers.{index}.{name}", shape
    yield "final_norm.weight", (c.width,)
    if not c.tied_head:
        yield "head.weight", (c.vocab_size, c.width)


def layer_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """(name inside the layer, shape), in the order of use."""
    c = config
    outputs = {
        "q": c.heads * c.head_dim,
        "k": c.kv_heads * c.head_dim,
        "v": c.kv_heads * c.head_dim,
    }
    yield "attention_norm.weight", (c.width,)
    yield from ((f"{part}.weight", (n, c.width)) for part, n in outputs.items())
    if c.qkv_bias:
        yield from ((f"{part}.bias", (n,)) for part, n in outputs.items())
    if c.qk_norm:
        yield from ((f"{part}_norm.weight", (c.head_dim,)) for part in "qk")
    yield "out.weight", (c.width, c.heads * c.head_dim)
    if c.post_norms:
        yield "post_attention_norm.weight", (c.width,)
    yield "mlp_norm.weight", (c.width,)
    yield from ((f"{part}.weight", (c.mlp_width, c.width)) for part in ("gate", "up"))
    yield "down.weight", (c.width, c.mlp_width)
    if c.post_norms:
        yield "post_mlp_norm.weight", (c.width,)


def check_config(config: DecoderConfig, where: str) -> None:
    """Raises CorruptFileError unless the sizes make a decoder that can be computed."""
    c = config
    sizes = (
        "layers",
        "width",
        "heads",
        "kv_heads",
        "head_dim",
        "mlp_width",
        "vocab_size",
        "context_length",
    )
    for name in sizes:
        value = getattr(c, name)
        most = MAX_LAYERS if name == "layers" else MAX_SIZE
        _require(1 <= value <= most, where, f"{name} is {value}, possible are 1 to {most}")
    _require(
        c.heads % c.kv_heads == 0,
        where,
        f"{c.heads} heads do not divide among {c.kv_heads} KV heads",
    )
    _require(0 < c.norm_eps < 1, where, f"the norm's epsilon is {c.norm_eps}")
    _require(c.sliding_pattern >= 1, where, f"the sliding pattern is {c.sliding_pattern}")
    _require(
        c.sliding_window is None or c.sliding_window >= 1,
        where,
        f"the window is {c.sliding_window}",
    )
    for number in ("embedding_scale", "attention_scale"):
        _require(isfinite(getattr(c, number)), where, f"{number} is {getattr(c, number)}")
    for rope in filter(None, (c.rope, c.rope_local)):
        _check_rope(rope, c.head_dim, where)


def _check_rope(rope: RopeConfig, head_dim: int, where: str) -> None:
    fits = 2 <= rope.dim <= head_dim and rope.dim % 2 == 0
    _require(fits, where, f"{rope.dim} rotated dimensions do not fit a head of {head_dim}")
    numbers = [getattr(rope, f.name) for f in fields(rope) if f.name not in ("dim", "scaling")]
    _require(
        all(0 < n < 1e30 for n in numbers), where, f"the rotation has impossible numbers: {rope}"
    )


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise CorruptFileError(f"{where}: {what}. Fetch or convert the model again.")


def check_tensors(
    config: DecoderConfig,
    tensors: Mapping[str, StoredTensor],
    where: str,
    shown: Callable[[str], str] = str,
) -> None:
    """Raises unless `tensors` are just those of `config`, each in its shape. `shown` gives a name
    as the file has it.
    """
    due = dict(tensor_shapes(config))
    for name, shape in due.items():
        tensor = tensors.get(name)
        _require(tensor is not None, where, f"tensor {shown(name)!r} is missing")
        assert tensor is not None
        _require(
            tensor.shape == shape, where,
            f"tensor {shown(name)!r} has shape {tensor.shape}, the description asks for {shape}",
        )  # fmt: skip
    extra = sorted(set(tensors) - set(due))
    if extra:
        raise UnsupportedModelError(
            f"{where}: tensors that a {config.family} decoder does not have: "
            f"{', '.join(shown(name) for name in extra[:5])}. Use a file of a supported "
            "architecture."
        )


def vector_as_f32(tensor: StoredTensor, where: str, plus: float = 0.0) -> StoredTensor:
    """A vector in F32 (`plus` added to each value). F32 without `plus` stays a view. Raises for
    quantized vectors.
    """
    if tensor.type == "F32" and not plus:
        return tensor
    values = floats(tensor, where) + np.float32(plus)
    return StoredTensor(
        tensor.name, tensor.shape, "F32", frozen(values.astype("<f4").view(np.uint8))
    )


def floats(tensor: StoredTensor, where: str) -> NDArray[np.float32]:
    """Values of an F32, F16 or BF16 tensor, flat, in F32 (exact)."""
    raw = np.ascontiguousarray(tensor.data)
    if tensor.type == "F32":
        return raw.view("<f4").astype(np.float32)
    if tensor.type == "F16":
        return raw.view("<f2").astype(np.float32)
    if tensor.type == "BF16":
        return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    raise UnsupportedModelError(
        f"{where}: vector {tensor.name!r} is of type {tensor.type}; norms and biases must be "
        "F32, F16 or BF16. "
        "Convert the model again."
    )


def frozen(data: NDArray[Any]) -> NDArray[Any]:
    """The same array, read-only from now on."""
    data.flags.writeable = False
    return data
