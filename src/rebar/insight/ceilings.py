"""What a step cannot avoid, and how long this machine needs for it at least.

A step of some rows must, whatever the engine:
- read every weight matrix once, and the keys and values of the positions that its rows attend to;
- do 2 n k int8 operations a row for every matrix of n outputs and k inputs in a block format (the
  head, and what follows attention in the last layer: only for rows whose logits are wanted), and as
  many f32 operations for a float format;
- do 4 head_dim f32 operations a head and attended position: the dot product with the key, and the
  value's share of the sum.

At least it takes the longer of two times: bytes over the read bandwidth (of memory; of the largest
cache for what fits into it), and int8 over the int8 peak plus f32 over the f32 peak. (Reading and
computing may overlap; int8 and f32 instructions use the same ports.) A single row is bound by
reading, a prompt by arithmetic. Scales, norms, rotation, softmax and sampling come for free here: a
ceiling is no forecast, and no engine reaches one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rebar.graph import DecoderConfig, ModelFile
from rebar.graph.weights import packed_nbytes

FLOATS = ("F32", "F16", "BF16")
LATE = ("out", "gate", "up", "down")  # what follows attention in a layer


@dataclass(frozen=True, slots=True)
class Work:
    """bytes to read, int8 and f32 operations (a multiply-add counts two)."""

    nbytes: int = 0
    int8: int = 0
    f32: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.nbytes + other.nbytes, self.int8 + other.int8, self.f32 + other.f32)

    def times(self, n: int) -> Work:
        """The operations n times, the bytes once: what n rows over the same weights take."""
        return replace(self, int8=self.int8 * n, f32=self.f32 * n)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one sequence in a step: positions first .. first+count-1, logits for `wanted`."""

    first: int
    count: int = 1
    wanted: int = 1


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a model asks for: matrices for all rows (`layers`) and for wanted rows (`head`, the last
    layer's after attention among them), and a position of one layer's cache in bytes."""

    config: DecoderConfig
    layers: Work
    head: Work
    kv_bytes: int

    @classmethod
    def of(cls, model: ModelFile, kv_bytes: int) -> ModelWork:
        """kv_bytes: keys and values of a position in one layer. The embedding counts where it is
        the head: a row that is looked up is nothing."""
        layers, head = Work(), Work()
        late = {f"layers.{model.config.layers - 1}.{part}.weight" for part in LATE}
        head_name = "head.weight" if "head.weight" in model.tensors else "embed.weight"
        for name, tensor in model.tensors.items():
            if len(tensor.shape) != 2:
                continue
            n, k = tensor.shape
            plain = tensor.type in FLOATS
            work = Work(
                packed_nbytes(tensor.type, n, k),
                0 if plain else 2 * n * k,
                2 * n * k if plain else 0,
            )
            if name == head_name or name in late:
                head += work
            elif name != "embed.weight":
                layers += work
        return cls(model.config, layers, head, kv_bytes)

    def step(self, slices: Iterable[Slice]) -> Work:
        """Of one step."""
        parts = list(slices)
        total = self.layers.times(sum(part.count for part in parts))
        wanted = sum(part.wanted for part in parts)
        if wanted:
            total += self.head.times(wanted)
        for part in parts:
            total += self._attention(part)
        return total

    def _attention(self, part: Slice) -> Work:
        c, total = self.config, Work()
        for layer in range(c.layers):
            window = c.window_of(layer) or c.context_length
            ends = range(part.first + 1, part.first + part.count + 1)
            attended = sum(min(end, window) for end in ends)
            read = min(ends[-1], window + part.count - 1)
            total += Work(read * self.kv_bytes, 0, 4 * c.heads * c.head_dim * attended)
        return total


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine gives: read(nbytes), bytes a second of a working set of that size; int8 and
    f32 operations a second."""

    read: Callable[[int], float]
    int8: float
    f32: float

    def floor(self, work: Work) -> tuple[float, str]:
        """The least seconds of a step, and what sets them: "memory" or "arithmetic"."""
        reading = work.nbytes / self.read(work.nbytes)
        computing = work.int8 / self.int8 + work.f32 / self.f32
        return max((reading, "memory"), (computing, "arithmetic"))

    def best(self, other: Peaks) -> Peaks:
        """The higher of each."""
        return Peaks(
            lambda nbytes: max(self.read(nbytes), other.read(nbytes)),
            max(self.int8, other.int8),
            max(self.f32, other.f32),
        )
