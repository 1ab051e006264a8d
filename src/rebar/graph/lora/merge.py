"""An adapter added into a model's weights for good: W + scale B A, in a new file. The model's own
file is never touched; it is also the way back.

A merged weight is computed in float64, rounded to float32 and then to its type: the one it had, if
that is a float type. Block-quantized weights become Q8_0, unless their own type is asked for: in
the few bits that they had, rounding may be larger than what an adapter adds; `rounding` measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from rebar.errors import InputError
from rebar.graph.lora.folder import Adapter, LowRank
from rebar.graph.weights.model_file import ModelFile, StoredTensor, WeightType
from rebar.graph.weights.provenance import BASE, MERGED, TYPES, base_digest, merged_digests
from rebar.graph.weights.recode import MadeTensor
from rebar.graph.weights.values import F32, FLOATS, dense

MergeType = Literal["auto", "same"] | WeightType


def merged(model: ModelFile, adapter: Adapter, kind: MergeType = "auto") -> ModelFile:
    """The model with the adapter in its weights, computed as they are read. kind: type of the
    weights that change; same: the one that each has; auto: that for floats, else Q8_0. InputError
    for an adapter that is in there already, and for a type that rows of this model do not fill.
    """
    if adapter.digest in merged_digests(model):
        raise InputError(
            f"{model.path} has this adapter in its weights already; merged twice, it would count "
            "twice. Use the model as it is, or merge into the one it was made from.",
            param="adapter",
            code="merged_twice",
        )
    known = ("auto", "same", *get_args(WeightType))
    if kind not in known:
        raise InputError(f"no type {kind!r}; --type is one of {', '.join(known)}.", param="type")
    notes = {
        MERGED: " ".join((*merged_digests(model), adapter.digest)),
        BASE: base_digest(model),
    }
    if kind != "auto":
        notes[TYPES] = kind
    tensors = dict(model.tensors)
    for place, low in adapter.parts.items():
        own = tensors[place.weight]
        tensors[place.weight] = MergedTensor(own, low, _due(kind, own.type))
    return replace(model, tensors=tensors, provenance={**model.provenance, **notes})


def _due(kind: MergeType, own: WeightType) -> WeightType:
    if kind == "same" or (kind == "auto" and own in FLOATS):
        return own
    return "Q8_0" if kind == "auto" else kind


class MergedTensor(MadeTensor):
    """W + scale B A."""

    __slots__ = ("_low",)
    _low: LowRank

    def __init__(self, tensor: StoredTensor, low: LowRank, kind: WeightType) -> None:
        super().__init__(tensor, kind)
        object.__setattr__(self, "_low", low)

    def _values(self) -> Iterator[F32]:
        a, b = (m.astype(np.float64) for m in self._low.matrices())
        more, at = self._low.scale * (b @ a), 0  # whole: a product's bits may depend on its shape
        for values in super()._values():
            yield (values + more[at : at + len(values)]).astype(np.float32)
            at += len(values)


def rounding(base: ModelFile, adapter: Adapter, written: ModelFile) -> float:
    """What was rounded away of the merged weights, by the size of what the adapter adds: the roots
    of both sums of squares over all matrices that changed. At 1 as much noise as adapter is left,
    or nothing of it.
    """
    lost = added = 0.0
    for place, low in adapter.parts.items():
        a, b = (m.astype(np.float64) for m in low.matrices())
        more = low.scale * (b @ a)
        left = dense(written.tensors[place.weight]) - (dense(base.tensors[place.weight]) + more)
        lost += float(np.square(left).sum())
        added += float(np.square(more).sum())
    return math.sqrt(lost / added) if added else 0.0
