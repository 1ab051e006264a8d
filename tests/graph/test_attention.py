"""Attention and the cache on every device, against formulas written out here in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse_rope_append
from rebar.graph.nodes_attention import Append, Attention, Rope, RopeAppend
from rebar.graph.tensor import Tensor
from rebar.hal import DeviceManager, Domain, KVFormat
from rebar.hal.ref_attention import hadamard
from tests.graph.harness import DEVICES, F32, Call, open_device, run, storage

EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> DeviceManager:
    return open_device(request.param)


def random(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def activation(name: str, width: int) -> Tensor:
    return Tensor(name, (Domain.ROWS, width))


def close(got: F32, want: NDArray[np.float64], bound: NDArray[np.float64] | float) -> None:
    """|got - want| <= bound everywhere."""
    worst = np.max(np.abs(got.astype(np.float64) - want) - bound)
    assert worst <= 0, f"past the bound by {worst}"


def kept(a: F32, head_dim: int, kind: KVFormat, *, turned: bool = False) -> NDArray[np.float64]:
    """As the cache keeps it: f32, f16, or int8 times the f16 scale of 32 dimensions of a head
    (keys: turned by a Hadamard matrix, and here turned back).
    """
    if kind is KVFormat.F32:
        return a.astype(np.float64)
    if kind is KVFormat.F16:
        return a.astype(np.float16).astype(np.float64)
    heads, size = a.reshape(-1, head_dim), head_dim & -head_dim
    heads = hadamard(heads) if turned else heads
    out = np.empty(heads.shape)
    for begin in range(0, head_dim, 32):
        group = heads[:, begin : begin + 32]
        d = (np.abs(group).max(-1, keepdims=True) / np.float32(127)).astype(np.float16)
        wide = d.astype(np.float32)
        out[:, begin : begin + 32] = np.rint(group * (np.float32(1) / wide)) * d.astype(np.float64)
    return ((hadamard(out) / size) if turned else out).reshape(a.shape)


def test_a_hadamard_matrix_is_its_own_inverse_but_for_its_size() -> None:
    for dim, size in ((16, 16), (48, 16), (64, 64), (96, 32)):
        x = np.random.default_rng(dim).integers(-9, 9, (3, dim)).astype(np.float64)
        assert (hadamard(hadamard(x)) == size * x).all()  # integers: exact


@pytest.mark.parametrize("kind", list(KVFormat))
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (5, 0.0), (0, 3.0)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (3, 1, 64), (2, 2, 48)])
def test_attention_over_scattered_blocks(
    device: DeviceManager,
    kind: KVFormat,
    window: int,
    softcap: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> None:
    """Two sequences, chunked, in blocks out of order; unwritten places hold NaN."""
    width, kv_width = heads * head_dim, kv_heads * head_dim
    cache = storage(16, kv_heads, head_dim, kind)
    q, k, v = random(39, width), random(39, kv_width, seed=2), random(39, kv_width, seed=3)
    kept_k, kept_v = kept(k, head_dim, kind, turned=True), kept(v, head_dim, kind)
    chunks = [
        (slice(0, 20), Call([(0, 20, [7, 3])])),
        (slice(20, 39), Call([(20, 17, [7, 3, 11]), (0, 2, [5])])),
    ]
    got = []
    for rows, call in chunks:
        g = Builder()
        tq, tk, tv = (activation(n, w) for n, w in (("q", width), ("k", kv_width), ("v", kv_width)))
        tc = Tensor("cache", (16, kv_heads, head_dim), "kv")
        out = g.attention(
            tq,
            tc,
            g.append(tk, tv, tc),
            heads=heads,
            max_positions=256,
            scale=0.3,
            window=window or None,
            softcap=softcap or None,
        )
        values = run(
            g.graph(out), device, call, {tc: cache}, {tq: q[rows], tk: k[rows], tv: v[rows]}
        )
        got.append(values.rows(out).data.copy())
    compare(np.concatenate(got), q, kept_k, kept_v, heads, kv_heads, window, softcap)


def compare(
    result: F32,
    q: F32,
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    heads: int,
    kv_heads: int,
    window: int,
    softcap: float,
) -> None:
    """Every row and head against softmax in float64; k and v as they were kept."""
    head_dim = q.shape[1] // heads
    owners = [(0, r, r) for r in range(37)] + [(37, 0, 37), (37, 1, 38)]
    for begin, position, row in owners:
        first = max(0, position - window + 1) if window else 0
        seen = slice(begin + first, begin + position + 1)
        for h in range(heads):
            kv = slice(h * kv_heads // heads * head_dim, (h * kv_heads // heads + 1) * head_dim)
            scores = (
                k[seen, kv] @ q[row, h * head_dim : (h + 1) * head_dim].astype(np.float64) * 0.3
            )
            size = np.abs(q[row]).max() * np.abs(k[seen, kv]).sum(-1).max() * 0.3
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            p = np.exp(scores - scores.max())
            want = p @ v[seen, kv] / p.sum()
            # a score of s rounds by head_dim eps |q||k|, which exp turns into a relative error of
            # the weights; turning q adds 8 roundings of sums that may cancel
            slack = (
                (head_dim * np.abs(scores).max() * 4 + 60 + 8 * size)
                * EPS
                * np.abs(v[seen, kv]).max()
            )
            close(result[row, h * head_dim : (h + 1) * head_dim], want, slack)


def test_heads_that_are_no_whole_vectors_are_refused() -> None:
    """A head of 40 values: the kernel's last vector of values reached into the next position, and
    past the end of the last one.
    """
    g, q, cache = Builder(), activation("q", 40), Tensor("c", (16, 1, 40), "kv")
    after = g.append(q, q, cache)
    out = g.attention(
        q, cache, after, heads=1, max_positions=64, scale=1.0, window=None, softcap=None
    )
    with pytest.raises(ShapeError, match="heads of 40 values"):
        run(
            g.graph(out),
            open_device("ref"),
            Call(),
            {cache: storage(16, 1, 40)},
            {q: random(4, 40)},
        )


def rotated_attention() -> tuple[Builder, Tensor, Tensor]:
    """q, k, v slices of one tensor, rotated by one table, over a cache."""
    g, qkv = Builder(), activation("qkv", 64 + 32 + 32)
    table, cache = Tensor("table", (64, 16)), Tensor("cache", (16, 2, 16), "kv")
    q = g.rope("q_rope", qkv.columns(0, 64), table, 4)
    k = g.rope("k_rope", qkv.columns(64, 96), table, 2)
    after = g.append(k, qkv.columns(96, 128), cache)
    out = g.attention(
        q, cache, after, heads=4, max_positions=64, scale=0.25, window=None, softcap=None
    )
    return g, out, k


@pytest.mark.parametrize("kind", list(KVFormat))
def test_rotation_at_the_cache_is_one_launch_with_the_same_bits(
    device: DeviceManager, kind: KVFormat
) -> None:
    g, out, _ = rotated_attention()
    plain = g.graph(out)
    fused = fuse_rope_append(plain)
    assert [type(n) for n in plain.order] == [Rope, Rope, Append, Attention]
    assert [type(n) for n in fused.order] == [RopeAppend, Attention]
    x = random(20, 128)
    angles = random(64, 8, seed=4)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    results = []
    for graph in (plain, fused):
        names = {t.name: t for n in graph.order for t in n.inputs if t.base is None}
        names |= {t.root.name: t.root for n in graph.order for t in n.inputs}
        cache = storage(16, 2, 16, kind)
        inputs = {names["qkv"]: x, names["table"]: table}
        values = run(graph, device, Call([(3, 20, [9, 2])]), {names["cache"]: cache}, inputs)
        results.append(values.rows(out).data.tobytes() + cache.data.tobytes())
    assert results[0] == results[1]


def test_a_rotated_k_that_somebody_else_reads_keeps_its_launch() -> None:
    g, out, k = rotated_attention()
    kinds = [type(n) for n in fuse_rope_append(g.graph(out, k)).order]
    assert RopeAppend not in kinds
    assert kinds.count(Rope) == 2
