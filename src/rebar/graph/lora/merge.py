"""An adapter added into a model's weights for good: W + scale B A, in a new file. The model's own
file is never touched; it is also the way back.

A merged weight is computed in float64, rounded to float32 and then to the type it had, if that is a
float type. Block-quantized weights become Q8_0: in the few bits that they had, rounding would be
larger than what most adapters add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.lora.folder import Adapter, LowRank
from rebar.graph.lora.modules import Place
from rebar.graph.weights.model_file import ModelFile, StoredTensor, WeightType
from rebar.graph.weights.pack import unpacked
from rebar.graph.weights.types import FORMATS

MergeType = Literal["auto", "F32", "F16", "BF16", "Q8_0"]
MERGED, BASE = "merged_adapters", "merged_base"  # in a file's provenance
FLOATS: tuple[WeightType, ...] = ("F32", "F16", "BF16")
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def merged_digests(model: ModelFile) -> tuple[str, ...]:
    """Digests of the adapters that are in a model's weights already."""
    return tuple(str(model.provenance.get(MERGED) or "").split())


def base_digest(model: ModelFile) -> str:
    """What names a model whatever was merged into it: the digest of what it was converted from."""
    return str(model.provenance.get(BASE) or model.provenance.get("source_sha256") or "")


def merged(model: ModelFile, adapter: Adapter, kind: MergeType = "auto") -> ModelFile:
    """The model with the adapter in its weights, computed as they are read. kind: type of the
    weights that change. InputError for an adapter that is in there already, and for a type that
    rows of this model do not fill.
    """
    if adapter.digest in merged_digests(model):
        raise InputError(
            f"{model.path} has this adapter in its weights already; merged twice, it would count "
            "twice. Use the model as it is, or merge into the one it was made from.",
            param="adapter",
            code="merged_twice",
        )
    if kind not in get_args(MergeType):
        known = ", ".join(get_args(MergeType))
        raise InputError(f"no type {kind!r}; --type is one of {known}.", param="type")
    notes = {
        MERGED: " ".join((*merged_digests(model), adapter.digest)),
        BASE: base_digest(model),
    }
    tensors = MergedTensors(model.tensors, adapter.parts, kind)
    return replace(model, tensors=tensors, provenance={**model.provenance, **notes})


def unmerged(model: ModelFile, base: ModelFile) -> ModelFile:
    """The model before anything was merged into it: the weights of `base`, bit for bit. Nothing is
    subtracted, for what was rounded does not come back. InputError for another base.
    """
    if not merged_digests(model):
        raise InputError(f"{model.path} has no adapter in its weights. Use it as it is.")
    if merged_digests(base) or base_digest(base) != base_digest(model):
        raise InputError(
            f"{base.path} is not what {model.path} was made from. Give the file that the adapter "
            "was merged into.",
            param="base",
        )
    return base


class MergedTensors(Mapping[str, StoredTensor]):
    """A model's tensors; those that an adapter changes are made when their bytes are asked for."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        parts: Mapping[Place, LowRank],
        kind: MergeType,
    ) -> None:
        self._tensors, self._kind = tensors, kind
        self._parts = {f"layers.{p.layer}.{p.part}.weight": low for p, low in parts.items()}

    def __getitem__(self, name: str) -> StoredTensor:
        tensor, low = self._tensors[name], self._parts.get(name)
        return tensor if low is None else MergedTensor(tensor, low, self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class MergedTensor(StoredTensor):
    """One whose bytes, stored row by row, are made anew each time they are asked for."""

    __slots__ = ("_low", "_tensor")
    _low: LowRank
    _tensor: StoredTensor

    def __init__(self, tensor: StoredTensor, low: LowRank, kind: MergeType) -> None:
        set_ = object.__setattr__
        own: WeightType = tensor.type if tensor.type in FLOATS else "Q8_0"
        due = own if kind == "auto" else kind
        if tensor.shape[1] % FORMATS[due].block:
            raise InputError(
                f"{tensor.name} has rows of {tensor.shape[1]} values, which {due} cannot hold. "
                "Choose --type F16.",
                param="type",
            )
        values = {"name": tensor.name, "shape": tensor.shape, "type": due, "packed": False}
        for name, value in (*values.items(), ("rows", None), ("_tensor", tensor), ("_low", low)):
            set_(self, name, value)

    @property
    def data(self) -> Bytes:
        """The bytes, stored row by row."""
        a, b = self._low.matrices()
        values = unpacked(self._tensor).astype(np.float64)
        values += self._low.scale * (b.astype(np.float64) @ a.astype(np.float64))
        return encoded(self.type, values.astype(np.float32))


def encoded(kind: WeightType, values: F32) -> Bytes:
    """Rows of values as a file stores them, each rounded to nearest."""
    if kind == "F32":
        raw = values.astype("<f4")
    elif kind == "F16":
        raw = values.astype("<f2")
    elif kind == "BF16":
        bits = values.view(np.uint32)
        raw = ((bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16).astype("<u2")
    else:
        return _q8_0(values)
    return np.ascontiguousarray(raw).view(np.uint8).reshape(-1)


def _q8_0(values: F32) -> Bytes:
    """ggml's block: an f16 scale max|x| / 127 and 32 signed bytes."""
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1) / np.float32(127)).astype("<f2")
    step = scale.astype(np.float32)[:, None]
    quants = np.divide(blocks, step, out=np.zeros_like(blocks), where=step != 0)
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = scale[:, None].view(np.uint8)
    out[:, 2:] = np.clip(np.rint(quants), -127, 127).astype(np.int8).view(np.uint8)
    return out.reshape(-1)
