"""Launches of the way back, a dataclass each with its shape rule, and those of loss and optimizer.

The law: a launch of the way back adds into the gradients it names and overwrites nothing; a
gradient is zeroed by its owner. Each element of a gradient is one chain of fused multiply-adds that
begins at what stands there, over ascending rows or outputs, where nothing else is said: the bits
depend on shapes and inputs alone. Weights are read as the values their format stands for; that
activations and the KV cache are rounded on the way forward is taken as the identity
(straight-through, Bengio et al., arXiv:1308.3432).

A training step computes whole sequences: the rows of a sequence are its positions 0, 1, 2, ...
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar import _native
from rebar.errors import ShapeError
from rebar.hal.arrays import Indices, KVFormat, KVStorage, Matrix, Rows, Vector, WeightFormat
from rebar.hal.launch_rules import Activation, Domain, same


@dataclass(frozen=True, slots=True)
class MatmulInputGradient:
    """dx (rows, k) += scale dy (rows, n) w; w (n, k) of any format. Over ascending n in chains of
    128: chain = fma(scale * dy[j], w[j], chain) from 0, then dx = dx + chain.
    """

    w: Matrix
    dy: Rows
    dx: Rows
    scale: float = 1.0
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("matmul_input_gradient", "n", self.w.n, self.dy.width)
        same("matmul_input_gradient", "k", self.w.k, self.dx.width)


@dataclass(frozen=True, slots=True)
class MatmulWeightGradient:
    """dw (n, k) += scale dyᵀ (n, rows) x (rows, k). dw is F32, packed as weights are. Ascending
    rows: dw[j, i] = fma(scale * dy[j], x[i], dw[j, i]).
    """

    x: Rows
    dy: Rows
    dw: Matrix
    scale: float = 1.0
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("matmul_weight_gradient", "n", self.dw.n, self.dy.width)
        same("matmul_weight_gradient", "k", self.dw.k, self.x.width)
        if self.dw.format is not WeightFormat.F32:
            raise ShapeError(f"matmul_weight_gradient: gradients are F32, not {self.dw.format}")


@dataclass(frozen=True, slots=True)
class SumRows:
    """db (n,) += sum of dy (rows, n) over ascending rows."""

    dy: Rows
    db: Vector
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("sum_rows", "n", self.dy.width, self.db.n)


@dataclass(frozen=True, slots=True)
class AddInto:
    """y += scale * x, one fma an element."""

    x: Rows
    y: Rows
    scale: float = 1.0
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("add_into", "width", self.x.width, self.y.width)


@dataclass(frozen=True, slots=True)
class Zero:
    """y = 0: how the owner of a gradient that lies in an arena begins it, in the program itself."""

    y: Rows
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Any rows will do."""


@dataclass(frozen=True, slots=True)
class EmbedGradient:
    """dw[ids[r]] += scale * dy[r], ascending rows; dw F32, packed."""

    dy: Rows
    dw: Matrix
    scale: float = 1.0

    def check(self) -> None:
        """Shape rule."""
        same("embed_gradient", "width", self.dw.k, self.dy.width)


@dataclass(frozen=True, slots=True)
class RmsNormGradient:
    """Of y = x s weight, s = 1 / sqrt(mean(x^2) + eps), for each of `groups` slices of n values:
    dx += s (weight dy - x s^2 mean(weight dy x)), dweight += sum of dy x s over ascending rows,
    then groups. mean: lanes and tree of the forward's sum of squares. dx or dweight may be None.
    """

    x: Rows
    weight: Vector
    dy: Rows
    dx: Rows | None
    dweight: Vector | None
    eps: float
    groups: int = 1
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        n = self.weight.n
        same("rms_norm_gradient", "width", self.x.width, self.dy.width, n * self.groups)
        same("rms_norm_gradient", "dx", self.x.width, self.dx.width if self.dx else None)
        same("rms_norm_gradient", "dweight", n, self.dweight.n if self.dweight else None)


@dataclass(frozen=True, slots=True)
class RopeGradient:
    """dx += dy rotated back: the rotation of `Rope` by the negative angle."""

    dy: Rows
    dx: Rows
    table: Rows
    heads: int
    head_dim: int

    def check(self) -> None:
        """Shape rule."""
        same("rope_gradient", "width", self.dy.width, self.dx.width, self.heads * self.head_dim)


@dataclass(frozen=True, slots=True)
class AttentionGradient:
    """Of the attention of a training step. With P = softmax(s) of the forward, s = scale q.k (then
    softcap), D = sum of out * dout over a head: ds = P (dout.v - D) (times 1 - (s / cap)^2 with a
    softcap); dq += scale ds k; dk += scale ds q, dv += P dout.

    q, k: as the forward read them (rotated). Keys and values come from the cache. dk, dv (rows,
    kv_heads * head_dim): row r is the position of row r. Sums over positions ascend in dq; in dk
    and dv over the rows of a part (native/rebar_training.h), and in a row over the query heads of
    the kv head ascending.

    parts: room for the dk and dv of parts of long sequences, (rows, _native.attention_parts times
    the width of dk and dv); with it, an AttentionGradientMerge must follow.
    """

    q: Rows
    storage: KVStorage
    out: Rows
    dout: Rows
    dq: Rows
    dk: Rows
    dv: Rows
    heads: int
    max_positions: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    parts: Rows | None = None

    def check(self) -> None:
        """Shape rule."""
        width = self.heads * self.storage.head_dim
        same("attention_gradient", "width", self.q.width, self.out.width, self.dout.width, width)
        same("attention_gradient", "dq", self.dq.width, width)
        kv = self.storage.kv_heads * self.storage.head_dim
        same("attention_gradient", "kv width", self.dk.width, self.dv.width, kv)
        room = self.parts.width if self.parts is not None else 0
        needed = 2 * kv * _native.attention_parts(self.max_positions)
        same("attention_gradient", "width of parts", room, needed)
        if self.parts is not None:
            same("attention_gradient", "stride of parts", self.parts.stride, needed)
        same("attention_gradient", "head_dim modulo 16", self.storage.head_dim % 16, 0)
        if self.storage.format is KVFormat.INT8:
            raise ShapeError(
                "attention_gradient: int8 keys and values are not those that were computed. Train "
                "with an f16 or f32 cache."
            )


@dataclass(frozen=True, slots=True)
class AttentionGradientMerge:
    """Adds the parts that an AttentionGradient has left into dk and dv, in ascending order."""

    gradient: AttentionGradient

    def check(self) -> None:
        """Shape rule."""
        self.gradient.check()


@dataclass(frozen=True, slots=True)
class GatedGradient:
    """Of y = act(a) b, x = [a | b]: da += dy b act'(a), db += dy act(a); dx = [da | db]."""

    x: Rows
    dy: Rows
    dx: Rows
    activation: Activation
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("gated_gradient", "width", self.x.width, self.dx.width, 2 * self.dy.width)


@dataclass(frozen=True, slots=True)
class SelectGradient:
    """dx[logit_index[i]] += dy[i]; no row is selected twice."""

    dy: Rows
    dx: Rows

    def check(self) -> None:
        """Shape rule."""
        same("select_gradient", "width", self.dy.width, self.dx.width)


@dataclass(frozen=True, slots=True)
class SoftcapGradient:
    """Of y = cap tanh(x / cap): dx += dy (1 - (y / cap)^2)."""

    y: Rows
    dy: Rows
    dx: Rows
    cap: float
    domain: Domain = Domain.ROWS

    def check(self) -> None:
        """Shape rule."""
        same("softcap_gradient", "width", self.y.width, self.dy.width, self.dx.width)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """loss[r] = log(sum of exp(logits[r])) - logits[r, targets[r]]; 0 for a negative target, which
    stands for "not asked". loss (logit rows, 1).

    With m the largest logit of a row: log of the sum of exp(x - m), summed as RmsNorm sums squares,
    plus (m - x[target]).
    """

    logits: Rows
    targets: Indices
    loss: Rows
    domain: Domain = Domain.LOGIT_ROWS

    def check(self) -> None:
        """Shape rule."""
        same("cross_entropy", "loss width", self.loss.width, 1)


@dataclass(frozen=True, slots=True)
class CrossEntropyGradient:
    """dlogits[r] += dloss[r] (softmax(logits[r]) - one at targets[r]); nothing for a negative
    target. dloss (logit rows, 1).
    """

    logits: Rows
    targets: Indices
    dloss: Rows
    dlogits: Rows
    domain: Domain = Domain.LOGIT_ROWS

    def check(self) -> None:
        """Shape rule."""
        same("cross_entropy_gradient", "width", self.logits.width, self.dlogits.width)
        same("cross_entropy_gradient", "dloss width", self.dloss.width, 1)


@dataclass(frozen=True, slots=True)
class SquareSums:
    """sums[c] = sum of x^2 of piece c of 65,536 values; the caller adds the pieces in float64. As
    RmsNorm sums squares within 4,096 values, these in ascending order.
    """

    x: Vector
    sums: Vector

    def check(self) -> None:
        """Shape rule."""
        same("square_sums", "pieces", -(-self.x.n // 65536), self.sums.n)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Loshchilov & Hutter, arXiv:1711.05101, an element at a time: g = clip * gradient; m = beta1 m
    + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; x -= rate decay x; x -= rate (m / bias1) /
    (sqrt(v / bias2) + eps). bias1 = 1 - beta1^t and so on: hyper, read when the launch runs, holds
    [clip, rate, decay, beta1, beta2, eps, bias1, bias2].
    """

    x: Vector
    gradient: Vector
    m: Vector
    v: Vector
    hyper: Vector

    def check(self) -> None:
        """Shape rule."""
        same("adamw", "values", self.x.n, self.gradient.n, self.m.n, self.v.n)
        same("adamw", "hyper", self.hyper.n, 8)


@dataclass(frozen=True, slots=True)
class Sgd:
    """m = momentum m + (clip * gradient + decay x); x -= rate m. hyper: [clip, rate, decay,
    momentum].
    """

    x: Vector
    gradient: Vector
    m: Vector
    hyper: Vector

    def check(self) -> None:
        """Shape rule."""
        same("sgd", "values", self.x.n, self.gradient.n, self.m.n)
        same("sgd", "hyper", self.hyper.n, 4)


FlatLaunch = SquareSums | AdamW | Sgd  # over flat memory, whatever rows the step has
BackwardLaunch = (
    MatmulInputGradient
    | MatmulWeightGradient
    | SumRows
    | AddInto
    | Zero
    | EmbedGradient
    | RmsNormGradient
    | RopeGradient
    | AttentionGradient
    | AttentionGradientMerge
    | GatedGradient
    | SelectGradient
    | SoftcapGradient
    | CrossEntropy
    | CrossEntropyGradient
    | FlatLaunch
)
