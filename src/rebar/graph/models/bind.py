"""Weights of a model file as operands: mapped where they stand packed, packed into a pool where
they do not.

Parts that are read by one product (q, k, v; gate, up) become one matrix when they have one format
and lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rebar.errors import ModelFileError
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.decoder import DecoderWeights, LayerWeights, Part
from rebar.graph.tensor import Tensor
from rebar.graph.weights.model_file import ModelFile, Progress, StoredTensor
from rebar.graph.weights.pack import TILE_ROWS, pack, packed_nbytes
from rebar.hal import Matrix, Operand, Pool, Vector, WeightFormat, aligned
from rebar.hal.files import drop_pages


def mapped_bytes(model: ModelFile) -> int:
    """Bytes of matrices that stand in the file as the kernels read them."""
    return sum(t.data.nbytes for t in model.tensors.values() if t.packed)


def pool_bytes(model: ModelFile, *, copied: bool = False) -> int:
    """What Binder takes from its pool: packed copies of what is not packed (copied: of what is,
    too), and biases joined.
    """
    total = 0
    for t in model.tensors.values():
        if len(t.shape) == 2 and (copied or not t.packed):
            total += aligned(packed_nbytes(t.type, *t.shape))
        if len(t.shape) == 1 and (not mappable(t) or t.name.endswith(".bias")):
            total += aligned(t.shape[0] * 4)
    return total


class Binder:
    """Makes tensors and their operands from a model file. `operands` is what a plan's values are
    bound with. copied: matrices that could be mapped are copied into the pool. threads: that
    pack.

    `decoder` gives everything its place and reads no matrix; `load` does.
    """

    def __init__(
        self,
        model: ModelFile,
        pool: Pool,
        progress: Progress | None = None,
        *,
        copied: bool = False,
        threads: int = 1,
    ) -> None:
        self.model = model
        self.pool = pool
        self.progress = progress
        self.copied = copied
        self.threads = threads
        self.operands: dict[Tensor, Operand] = {}
        self._reads: list[Callable[[], None]] = []

    def decoder(self) -> DecoderWeights:
        """All weights of the decoder; matrices that are not mapped hold nothing yet."""
        c = self.model.config
        embed = self.matrix("embed.weight")
        head = embed if c.tied_head else self.matrix("head.weight")
        layers = tuple(self.layer(c, i) for i in range(c.layers))
        return DecoderWeights(embed[0], layers, self.vector("final_norm.weight"), head)

    def load(self) -> None:
        """Reads the matrices that `decoder` gave places, in their order."""
        for done, read in enumerate(self._reads):
            self._report(done)
            read()
        self._report(len(self._reads))
        self._reads.clear()

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress("weights", done, len(self._reads))

    def layer(self, c: DecoderConfig, i: int) -> LayerWeights:
        """Weights of layer i, in the order of use."""
        p = f"layers.{i}."
        qkv = [f"{p}{part}" for part in "qkv"]
        weights = self.matrix(*(f"{name}.weight" for name in qkv))
        return LayerWeights(
            index=i,
            attention_norm=self.vector(f"{p}attention_norm.weight"),
            qkv=weights,
            qkv_bias=self.bias([f"{name}.bias" for name in qkv], weights) if c.qkv_bias else (),
            q_norm=self.vector(f"{p}q_norm.weight") if c.qk_norm else None,
            k_norm=self.vector(f"{p}k_norm.weight") if c.qk_norm else None,
            out=self.matrix(f"{p}out.weight"),
            post_attention_norm=self.vector(f"{p}post_attention_norm.weight")
            if c.post_norms
            else None,
            mlp_norm=self.vector(f"{p}mlp_norm.weight"),
            gate_up=self.matrix(f"{p}gate.weight", f"{p}up.weight"),
            down=self.matrix(f"{p}down.weight"),
            post_mlp_norm=self.vector(f"{p}post_mlp_norm.weight") if c.post_norms else None,
        )

    def stored(self, name: str) -> StoredTensor:
        """The tensor of that name; ModelFileError when the file has none."""
        if name not in self.model.tensors:
            raise ModelFileError(
                f"{self.model.path}: no tensor {name}. The file is incomplete; fetch "
                "or convert it again."
            )
        return self.model.tensors[name]

    def matrix(self, *names: str) -> Part:
        """The stacked matrices as few parts as their formats and places allow."""
        parts = [self.stored(name) for name in names]
        groups: list[list[StoredTensor]] = []
        for part in parts:
            if groups and self.joins(groups[-1][-1], part):
                groups[-1].append(part)
            else:
                groups.append([part])
        return tuple(self._bind(group) for group in groups)

    def joins(self, a: StoredTensor, b: StoredTensor) -> bool:
        """Whether b can follow a in one matrix."""
        return joins(a, b)

    def _bind(self, group: Sequence[StoredTensor]) -> Tensor:
        first = group[0]
        mapped = first.packed and not self.copied
        data = span(group) if mapped else self._pack(group)
        n, k = sum(t.shape[0] for t in group), first.shape[1]
        tensor = Tensor("+".join(t.name for t in group), (n, k), WeightFormat[first.type])
        self.operands[tensor] = Matrix(data, WeightFormat[first.type], n, k)
        return tensor

    def _pack(self, group: Sequence[StoredTensor]) -> NDArray[np.uint8]:
        """The place of a group, side by side in the pool: packed there or copied as it is."""
        sizes = [packed_nbytes(t.type, *t.shape) for t in group]
        out = self.pool.allocate(sum(sizes), "+".join(t.name for t in group)).bytes()[: sum(sizes)]
        begin = 0
        for t, nbytes in zip(group, sizes, strict=True):
            self._reads.append(partial(self._read, t, out[begin : begin + nbytes]))
            begin += nbytes
        return out

    def _read(self, t: StoredTensor, place: NDArray[np.uint8]) -> None:
        if t.packed:
            np.copyto(place, t.data)
            drop_pages(t.data)
        else:
            pack(t, place, self.threads)

    def vector(self, name: str) -> Tensor:
        """A float32 vector, mapped where it can be."""
        stored = self.stored(name)
        tensor = Tensor(name, stored.shape)
        if mappable(stored):
            self.operands[tensor] = Vector(stored.data.view(np.float32))
        else:
            self.operands[tensor] = self._copy(name, [floats(stored)])
        return tensor

    def bias(self, names: Sequence[str], parts: Part) -> Part:
        """Biases cut as the matrix's parts are."""
        values = np.concatenate([floats(self.stored(name)) for name in names])
        biases, begin = [], 0
        for part in parts:
            n = int(part.shape[0])
            tensor = Tensor(f"{part.name} bias", (n,))
            self.operands[tensor] = self._copy(tensor.name, [values[begin : begin + n]])
            biases.append(tensor)
            begin += n
        return tuple(biases)

    def _copy(self, what: str, values: Sequence[NDArray[np.float32]]) -> Vector:
        n = sum(v.size for v in values)
        out = self.pool.allocate(4 * n, what).bytes()[: 4 * n].view(np.float32)
        np.concatenate(values, out=out)
        return Vector(out)


def joins(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether b can follow a in one matrix: same format and inputs, whole tiles, and b's bytes
    right behind a's.
    """
    alike = (
        a.type == b.type
        and a.packed == b.packed
        and a.shape[1] == b.shape[1]
        and a.shape[0] % TILE_ROWS == 0
    )
    return alike and (not a.packed or adjacent(a.data, b.data))


def adjacent(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    """Whether b's bytes follow a's in one mapping."""
    return a.base is not None and a.base is b.base and a.ctypes.data + a.nbytes == b.ctypes.data


def span(group: Sequence[StoredTensor]) -> NDArray[np.uint8]:
    """One view over adjacent bytes."""
    total = sum(t.data.nbytes for t in group)
    return np.lib.stride_tricks.as_strided(group[0].data, (total,), (1,), writeable=False)


def mappable(stored: StoredTensor) -> bool:
    """Whether a vector can be read where it lies in the file."""
    return stored.type == "F32" and stored.data.ctypes.data % 4 == 0


def floats(stored: StoredTensor) -> NDArray[np.float32]:
    """A stored vector as float32."""
    if stored.type == "F16":
        return stored.data.view(np.float16).astype(np.float32)
    if stored.type == "BF16":
        return (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if stored.type != "F32":
        raise ModelFileError(
            f"{stored.name}: a vector of {stored.type}; vectors are F32, F16 or BF16."
        )
    return stored.data.view(np.float32)
