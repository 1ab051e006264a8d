"""A dataclass per launch of native/rebar.h, with its shape rule by named sizes. What is recorded
here has been checked.

`domain` says which rows a launch covers: all rows of the step, or those whose logits are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar import _native
from rebar.errors import ShapeError
from rebar.hal.arrays import BLOCK_POSITIONS, KVStorage, Matrix, QuantizedRows, Rows, Vector
from rebar.hal.launch_rules import Activation as Activation
from rebar.hal.launch_rules import Domain as Domain
from rebar.hal.launch_rules import same as same
from rebar.hal.launches_backward import BackwardLaunch
from rebar.hal.launches_image import ImageLaunch
from rebar.hal.launches_lora import LoraLaunch


@dataclass(frozen=True, slots=True)
class Embed:
    """out (rows, k) = w[ids] * scale; w (vocabulary, k)."""

    w: Matrix
    out: Rows
    scale: float = 1.0

    def check(self) -> None:
        """Shape rule."""
        same("embed", "width", self.w.k, self.out.width)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight over `groups` slices of each row (Zhang & Sennrich,
    arXiv:1910.07467).
    """

    x: Rows
    weight: Vector
    y: Rows
    eps: float
    quantized: QuantizedRows | None = None
    groups: int = 1
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("rms_norm", "width", self.x.width, self.y.width, self.weight.n * self.groups)
        if self.quantized is not None:
            same("rms_norm", "groups with a quantized output", self.groups, 1)
            same("rms_norm", "quantized width", self.quantized.width, self.y.width)


@dataclass(frozen=True, slots=True)
class Quantize:
    """xq = int8 of x, a scale per xq.group inputs."""

    x: Rows
    xq: QuantizedRows
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("quantize", "width", self.x.width, self.xq.width)


@dataclass(frozen=True, slots=True)
class Matmul:
    """y (rows, n) = x (rows, k) wᵀ + bias + residual. x is quantized for block formats, float for
    float ones.
    """

    w: Matrix
    x: Rows | QuantizedRows
    y: Rows
    bias: Vector | None = None
    residual: Rows | None = None
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("matmul", "k", self.w.k, self.x.width)
        bias = None if self.bias is None else self.bias.n
        residual = None if self.residual is None else self.residual.width
        same("matmul", "n", self.w.n, self.y.width, bias, residual)
        if self.w.format.quantized_input != isinstance(self.x, QuantizedRows):
            raise ShapeError(
                f"matmul: {self.w.format.name} weights do not take {type(self.x).__name__}"
            )


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates pairs (i, i + dim/2) of each head by table (positions, dim) = [cos | sin]."""

    x: Rows
    y: Rows
    table: Rows
    heads: int
    head_dim: int

    def check(self) -> None:
        """Shape rule."""
        same("rope", "width", self.x.width, self.y.width, self.heads * self.head_dim)
        if (
            self.table.width > self.head_dim
            or self.table.width % 2
            or self.table.stride != self.table.width
        ):
            raise ShapeError(
                f"rope: a table of {self.table.width} values for heads of {self.head_dim}"
            )


@dataclass(frozen=True, slots=True)
class Append:
    """Stores k and v rows at their positions in the paged cache, in its format."""

    k: Rows
    v: Rows
    storage: KVStorage

    def check(self) -> None:
        """Shape rule."""
        same(
            "append",
            "width",
            self.k.width,
            self.v.width,
            self.storage.kv_heads * self.storage.head_dim,
        )


@dataclass(frozen=True, slots=True)
class RopeAppend:
    """out = q rotated by table; k rotated and v stored in the paged cache: Rope, Rope and Append in
    one.
    """

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    table: Rows
    storage: KVStorage
    heads: int

    def check(self) -> None:
        """Shape rules of the three."""
        Rope(self.q, self.out, self.table, self.heads, self.storage.head_dim).check()
        Append(self.k, self.v, self.storage).check()


@dataclass(frozen=True, slots=True)
class Attention:
    """out = softmax(scale q kᵀ) v over the positions up to the row's own, the last `window` of them
    when it is not 0.

    work: room for the results of chunks of positions, (at most ATTENTION_SPLIT_ROWS rows, as wide
    as _native.attention_work says); with it, steps of few rows are cut by chunks, and an
    AttentionMerge must follow.
    """

    q: Rows
    storage: KVStorage
    out: Rows
    heads: int
    max_positions: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    quantized: QuantizedRows | None = None
    work: Rows | None = None

    def check(self) -> None:
        """Shape rule."""
        same("attention", "width", self.q.width, self.out.width, self.heads * self.storage.head_dim)
        if self.storage.head_dim % BLOCK_POSITIONS:
            dim = self.storage.head_dim
            raise ShapeError(
                f"attention: heads of {dim} values; kernels read them in vectors of 16"
            )
        if self.heads % self.storage.kv_heads:
            raise ShapeError(
                f"attention: {self.heads} heads cannot share {self.storage.kv_heads} kv heads"
            )
        if self.quantized is not None:
            same("attention", "quantized width", self.quantized.width, self.out.width)
            same(
                "attention",
                "head_dim modulo 32 with a quantized output",
                self.storage.head_dim % 32,
                0,
            )
        if self.work is not None:
            dim, limit = self.storage.head_dim, self.max_positions
            needed = _native.attention_work(self.heads, dim, self.window, limit)
            same("attention", "width of work", self.work.width, self.work.stride, needed)


@dataclass(frozen=True, slots=True)
class AttentionMerge:
    """Puts the chunks together that an Attention with `work` has left there."""

    attention: Attention

    def check(self) -> None:
        """Shape rule."""
        self.attention.check()


@dataclass(frozen=True, slots=True)
class Gated:
    """y (rows, n) = act(x[:, :n]) * x[:, n:] (Shazeer, arXiv:2002.05202)."""

    x: Rows
    y: Rows
    activation: Activation
    quantized: QuantizedRows | None = None
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("gated", "width", self.x.width, 2 * self.y.width)
        if self.quantized is not None:
            same("gated", "quantized width", self.quantized.width, self.y.width)


@dataclass(frozen=True, slots=True)
class Add:
    """y = a + b."""

    a: Rows
    b: Rows
    y: Rows
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("add", "width", self.a.width, self.b.width, self.y.width)


@dataclass(frozen=True, slots=True)
class Select:
    """y (logit rows, n) = the rows of x (rows, n) whose logits are needed."""

    x: Rows
    y: Rows

    def check(self) -> None:
        """Shape rule."""
        same("select", "width", self.x.width, self.y.width)


@dataclass(frozen=True, slots=True)
class Softcap:
    """y = cap tanh(x / cap)."""

    x: Rows
    y: Rows
    cap: float
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("softcap", "width", self.x.width, self.y.width)
        if not self.cap > 0:
            raise ShapeError(f"softcap: a cap of {self.cap} is not above 0")


Launch = (
    Embed
    | RmsNorm
    | Quantize
    | Matmul
    | Rope
    | Append
    | RopeAppend
    | Attention
    | AttentionMerge
    | Gated
    | Add
    | Select
    | Softcap
    | LoraLaunch
    | BackwardLaunch
    | ImageLaunch
)
