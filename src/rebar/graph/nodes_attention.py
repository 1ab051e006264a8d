"""Rotation, the cache and attention, as graph/nodes.py has the rest. Formulas and orders of sums:
native/rebar.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.gradients import Gradients
from rebar.graph.node import Cost, Node, Record, Values
from rebar.graph.tensor import Shape, Tensor, same
from rebar.hal import Domain
from rebar.hal import launches as la
from rebar.hal import launches_backward as lb

F32 = 4  # bytes


@dataclass(frozen=True, eq=False, slots=True)
class Rope(Node):
    """out = x with the pairs (i, i + dim/2) of each head rotated by the row's position
    (arXiv:2104.09864).
    """

    x: Tensor
    table: Tensor
    out: Tensor
    heads: int

    @staticmethod
    def shape(x: Shape, table: Shape, heads: int) -> Shape:
        """(rows, heads * head_dim), (positions, dim <= head_dim) -> (rows, heads * head_dim)."""
        same("width modulo heads", int(x[1]) % heads, 0)
        if int(table[1]) > int(x[1]) // heads:
            raise ShapeError(
                f"a rotation of {table[1]} values does not fit heads of {int(x[1]) // heads}"
            )
        return x

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        dim = self.x.width // self.heads
        run(
            la.Rope(
                values.rows(self.x), values.rows(self.out), values.rows(self.table), self.heads, dim
            )
        )

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """The rotation backwards."""
        if dx := gradients.rows(self.x):
            dim, table = self.x.width // self.heads, values.rows(self.table)
            run(lb.RopeGradient(gradients.of(self.out), dx, table, self.heads, dim))

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Four products and two sums a pair."""
        n = self.x.width
        return Cost(3 * rows * n, rows * (n + self.table.width) * F32, rows * n * F32)


@dataclass(frozen=True, eq=False, slots=True)
class Append(Node):
    """Stores k and v (rows, kv_heads * head_dim) in a layer's cache. out has no bytes: it makes
    attention come after, and its gradient is that of [k | v].
    """

    k: Tensor
    v: Tensor
    cache: Tensor
    out: Tensor

    @staticmethod
    def shape(k: Shape, v: Shape, cache: Shape) -> Shape:
        """Two (rows, kv_heads * head_dim) and a cache (blocks, kv_heads, head_dim) -> (rows, 2
        kv_heads * head_dim).
        """
        width = same("width", k[1], v[1], int(cache[1]) * int(cache[2]))
        return k[0], 2 * int(width)

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        run(la.Append(values.rows(self.k), values.rows(self.v), values.storage(self.cache)))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """[dk | dv] += dout, which attention has filled."""
        dout, n = gradients.of(self.out), self.k.width
        for part, tensor in ((dout.columns(0, n), self.k), (dout.columns(n, 2 * n), self.v)):
            for launch in gradients.into(part, tensor):
                run(launch)

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Two rows read as float32, written as f16."""
        return Cost(0, 2 * rows * self.k.width * F32, 2 * rows * self.k.width * 2)


@dataclass(frozen=True, eq=False, slots=True)
class RopeAppend(Node):
    """Two Ropes and an Append in one (graph/fuse.py): out = q rotated; k rotated and v stored.
    stored has no bytes: it makes attention come after, and its gradient is that of [k | v].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    cache: Tensor
    out: Tensor
    stored: Tensor
    heads: int

    def forward(self, run: Record, values: Values) -> None:
        """One launch."""
        q, k, v = values.rows(self.q), values.rows(self.k), values.rows(self.v)
        out, table = values.rows(self.out), values.rows(self.table)
        run(la.RopeAppend(q, k, v, out, table, values.storage(self.cache), self.heads))

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """The rotations backwards; dv as it is."""
        table, n = values.rows(self.table), self.k.width
        dim = int(self.cache.shape[2])
        dkv = gradients.of(self.stored)
        if dq := gradients.rows(self.q):
            run(lb.RopeGradient(gradients.of(self.out), dq, table, self.heads, dim))
        if dk := gradients.rows(self.k):
            run(lb.RopeGradient(dkv.columns(0, n), dk, table, n // dim, dim))
        for launch in gradients.into(dkv.columns(n, 2 * n), self.v):
            run(launch)

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Four products and two sums a pair of q and k; k and v are written as f16."""
        q, kv = self.q.width, self.k.width
        read = rows * (q + 2 * kv + self.table.width) * F32
        return Cost(3 * rows * (q + kv), read, rows * (q * F32 + 2 * kv * 2))


@dataclass(frozen=True, eq=False, slots=True)
class Attention(Node):
    """out = softmax(scale q kᵀ) v over the cached positions up to the row's own (the last `window`
    when it is not 0).
    """

    q: Tensor
    cache: Tensor
    after: Tensor
    out: Tensor
    heads: int
    max_positions: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    quantized: Tensor | None = None
    work: Tensor | None = None
    parts: Tensor | None = None

    @staticmethod
    def shape(q: Shape, cache: Shape, heads: int) -> Shape:
        """(rows, heads * head_dim), (blocks, kv_heads, head_dim) -> (rows, heads * head_dim)."""
        same("width", q[1], heads * int(cache[2]))
        same("heads modulo kv heads", heads % int(cache[1]), 0)
        return q

    def forward(self, run: Record, values: Values) -> None:
        """One launch; a second one where contexts may have several chunks."""
        v, q = values, self.quantized
        work = v.rows(self.work) if self.work is not None else None
        launch = la.Attention(
            v.rows(self.q),
            v.storage(self.cache),
            v.rows(self.out),
            self.heads,
            self.max_positions,
            self.scale,
            self.window,
            self.softcap,
            v.quantized(q) if q is not None else None,
            work,
        )
        run(launch)
        if work is not None:
            run(la.AttentionMerge(launch))

    @staticmethod
    def work_shape(cache: Shape, heads: int, window: int, max_positions: int) -> Shape | None:
        """Of the room for results of chunks; None where a context is one chunk."""
        width = _native.attention_work(heads, int(cache[2]), window, max_positions)
        one = _native.attention_work(heads, int(cache[2]), 0, 1)
        return (_native.ATTENTION_SPLIT_ROWS, width) if width > one else None

    @staticmethod
    def parts_shape(cache: Shape, max_positions: int) -> Shape | None:
        """Of the room for [dk | dv] of the parts of long sequences; None where there are none."""
        width = 2 * int(cache[1]) * int(cache[2]) * _native.attention_parts(max_positions)
        return (Domain.ROWS, width) if width else None

    def backward(self, run: Record, values: Values, gradients: Gradients) -> None:
        """One launch for dq, dk and dv; the latter lie in the gradient of `after`, [dk | dv]. A
        second one where sequences may have several parts.
        """
        v, dq, dkv = values, gradients.of(self.q), gradients.of(self.after)
        n = int(self.cache.shape[1]) * int(self.cache.shape[2])
        parts = v.rows(self.parts) if self.parts is not None else None
        launch = lb.AttentionGradient(
            v.rows(self.q),
            v.storage(self.cache),
            v.rows(self.out),
            gradients.of(self.out),
            dq,
            dkv.columns(0, n),
            dkv.columns(n, 2 * n),
            self.heads,
            self.max_positions,
            self.scale,
            self.window,
            self.softcap,
            parts,
        )
        run(launch)
        if parts is not None:
            run(lb.AttentionGradientMerge(launch))

    @property
    def gradients_together(self) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        return self.q, self.after

    @property
    def same_gradient(self) -> dict[Tensor, Tensor]:
        """int8 of out stands for out."""
        return {self.quantized: self.out} if self.quantized is not None else {}

    def cost(self, rows: int, positions: int = 0) -> Cost:
        """Two products a position, head and dimension; keys and values read once a kv head."""
        seen = min(positions, self.window) if self.window else positions
        width = int(self.cache.shape[1]) * int(self.cache.shape[2])
        read = rows * self.q.width * F32 + 2 * seen * width * 2
        return Cost(4 * rows * seen * self.q.width, read, rows * self.out.width * F32)
