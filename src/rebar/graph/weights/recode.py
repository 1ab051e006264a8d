"""Matrices in another type than their file has them, made as they are read: one at a time, in
pieces, so that a model needs no more memory to be written anew than its largest matrix does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from rebar.errors import InputError
from rebar.graph.weights.model_file import ModelFile, StoredTensor, WeightType
from rebar.graph.weights.pack import is_matrix
from rebar.graph.weights.types import FORMATS
from rebar.graph.weights.values import F32, Bytes, dense_pieces, encoded


class MadeTensor(StoredTensor):
    """A matrix whose bytes, stored row by row, are made anew each time they are asked for.
    InputError for a type that its rows do not fill.
    """

    __slots__ = ("_source",)
    _source: StoredTensor

    def __init__(self, source: StoredTensor, kind: WeightType) -> None:
        if source.shape[1] % FORMATS[kind].block:
            raise InputError(
                f"{source.name} has rows of {source.shape[1]} values, which {kind} cannot hold: "
                f"its blocks have {FORMATS[kind].block}. Choose another --type, F16 for one that "
                "holds any.",
                param="type",
            )
        for name, value in {
            "name": source.name, "shape": source.shape, "type": kind, "packed": False,
            "rows": None, "_source": source,
        }.items():  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def data(self) -> Bytes:
        """The bytes, stored row by row."""
        return np.concatenate([encoded(self.type, values) for values in self._values()])

    def _values(self) -> Iterator[F32]:
        """The numbers in pieces of rows."""
        return dense_pieces(self._source)


def matrix_types(model: ModelFile) -> dict[str, WeightType]:
    """The type of each matrix."""
    return {name: t.type for name, t in model.tensors.items() if is_matrix(t.shape)}


def recoded(model: ModelFile, kinds: Mapping[str, WeightType]) -> ModelFile:
    """The model with its matrices in these types, by name. What is not named, or has its type
    already, stays as it is.
    """
    made = {
        name: MadeTensor(model.tensors[name], kind)
        for name, kind in kinds.items()
        if model.tensors[name].type != kind
    }
    return replace(model, tensors={**model.tensors, **made})
