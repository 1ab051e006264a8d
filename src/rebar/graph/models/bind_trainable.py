"""Weights that learn: a model file's tensors as float32 parameters, beside frozen ones as they lie.

A frozen pattern names modules, as fnmatch reads it over names of Hugging Face without the last part
(model.layers.0.self_attn.q_proj): a matrix and its bias learn together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

from rebar.graph.models.bind import Binder, floats
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.decoder import Part
from rebar.graph.parameters import Parameters, ParameterShape, fill
from rebar.graph.tensor import Tensor
from rebar.graph.weights.hf_names import namer
from rebar.graph.weights.layout import tensor_shapes
from rebar.graph.weights.model_file import ModelFile, Progress, StoredTensor
from rebar.graph.weights.pack import TILE_ROWS
from rebar.graph.weights.values import dense
from rebar.hal import Matrix, Pool, Vector, WeightFormat
from rebar.hal.files import drop_pages


def trainable_shapes(config: DecoderConfig, frozen: Sequence[str]) -> list[ParameterShape]:
    """All parameters of a decoder that learn. Matrices decay; norms and biases do not."""
    name_of = namer(config)
    return [
        ParameterShape(name_of(name), shape, decay=len(shape) == 2)
        for name, shape in tensor_shapes(config)
        if not is_frozen(name_of(name), frozen)
    ]


def is_frozen(name: str, frozen: Sequence[str]) -> bool:
    """Whether a pattern names the module of a tensor."""
    module = name.rsplit(".", 1)[0]
    return any(fnmatchcase(module, pattern) for pattern in frozen)


class TrainableBinder(Binder):
    """A Binder that reads what learns into `parameters`. gradients: where those of its tensors
    lie.
    """

    def __init__(
        self,
        model: ModelFile,
        pool: Pool,
        parameters: Parameters,
        progress: Progress | None = None,
        *,
        copied: bool = False,
        threads: int = 1,
    ) -> None:
        super().__init__(model, pool, progress, copied=copied, threads=threads)
        self.parameters = parameters
        self.gradients: dict[Tensor, Matrix | Vector] = {}
        self._name_of = namer(model.config)

    def _learns(self, name: str) -> bool:
        return self._name_of(name) in self.parameters

    def joins(self, a: StoredTensor, b: StoredTensor) -> bool:
        """Parameters join where the first is whole tiles: all are F32 and lie side by side."""
        if self._learns(a.name) != self._learns(b.name):
            return False
        return a.shape[0] % TILE_ROWS == 0 if self._learns(a.name) else super().joins(a, b)

    def _bind(self, group: Sequence[StoredTensor]) -> Tensor:
        if not self._learns(group[0].name):
            return super()._bind(group)
        n, k = sum(t.shape[0] for t in group), group[0].shape[1]
        self._reads += [partial(self._read_values, t) for t in group]
        names = [t.name for t in group]
        return self._learn(Tensor("+".join(names), (n, k), WeightFormat.F32), names)

    def _read_values(self, t: StoredTensor) -> None:
        fill(self.parameters[self._name_of(t.name)].value, dense(t, self.threads), self.threads)
        drop_pages(t.data)

    def _learn(self, tensor: Tensor, names: Sequence[str]) -> Tensor:
        value, gradient = self.parameters.joined([self._name_of(name) for name in names])
        self.operands[tensor] = value
        self.gradients[tensor] = gradient
        return tensor

    def vector(self, name: str) -> Tensor:
        """A float32 vector."""
        if not self._learns(name):
            return super().vector(name)
        stored = self.stored(name)
        fill(self.parameters[self._name_of(name)].value, floats(stored))
        return self._learn(Tensor(name, stored.shape), [name])

    def bias(self, names: Sequence[str], parts: Part) -> Part:
        """Biases cut as the matrix's parts are."""
        left = list(names)
        biases: list[Tensor] = []
        for part in parts:
            of_part: list[str] = []
            while sum(self.stored(n).shape[0] for n in of_part) < int(part.shape[0]):
                of_part.append(left.pop(0))
            if not self._learns(of_part[0]):
                biases += super().bias(of_part, (part,))
                continue
            for name in of_part:
                fill(self.parameters[self._name_of(name)].value, floats(self.stored(name)))
            biases.append(self._learn(Tensor(f"{part.name} bias", part.shape[:1]), of_part))
        return tuple(biases)
