"""One small graph's gradients beside those of torch's autograd, in float64.

Ours twice: on the reference without rounding, which is what the formulas say, and on the best
kernels of this machine, which is what is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse
from rebar.graph.parameters import dense
from rebar.graph.tensor import Tensor
from rebar.hal import Domain, Matrix, Operand, WeightFormat
from rebar.hal.ref import WideBackend
from tests.graph import slopes
from tests.graph.harness import F32, Call

EPS = float(np.finfo(np.float32).eps)
WIDE_EPS = float(np.finfo(np.float64).eps)
KERNELS = f"cpu:{_native.best_isa()}:2"
F64 = NDArray[np.float64]
Named = Mapping[str, Tensor]
Values = Mapping[str, Any]  # torch's tensors


def draw(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compare(
    build: Callable[[Builder, Named], Tensor],
    torch_build: Callable[[Any, Values], Any],
    values: Mapping[str, F32],
    rows: int,
    frozen: Mapping[Tensor, Operand] | None = None,
    call: Call | None = None,
    g: Builder | None = None,
    *,
    tables: slopes.Tables | None = None,
    fused: bool = False,
) -> None:
    """Gradients of sum(out * weights) of every value. "x" is the matrix that an Embed makes
    activations of; "x matrix" is that matrix.

    Sums here have at most some 1,000 terms, and what is left of them in a gradient that cancels (a
    norm's, a softmax's) may be a thousandth: 1e6 roundings of the largest element bound the
    reference. A kernel's rounding goes with the root of the terms, as signs are random, and is held
    to 300 eps of the largest; that the terms are the right ones is the reference's to show.
    """
    import torch

    g, call = g or Builder(), call or Call([(0, rows, [0])])
    tensors = {
        name: Tensor(name, v.shape, WeightFormat.F32 if v.ndim == 2 else "f32")
        for name, v in values.items()
    }
    named = tensors | {"x matrix": tensors["x"], "x": g.embed(tensors["x"], 1.0)}
    out = build(g, named)
    graph = fuse(g.graph(out)) if fused else g.graph(out)
    trained = {tensors[name]: v for name, v in values.items()}
    count = call.rows if out.domain is Domain.ROWS else len(call.logit_index)
    weights = draw(99, count, out.width)
    theirs = {
        n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in values.items()
    }
    (torch_build(torch, theirs) * torch.tensor(weights)).sum().backward()
    for device, bound in (("ref64", 1e6 * WIDE_EPS), (KERNELS, 300 * EPS)):
        model = slopes.opened(graph, out, trained, frozen or {}, call, device, tables=tables)
        model.run(weights)
        for name in values:
            want = theirs[name].grad.numpy()
            off = np.abs(gradient_of(model, name) - want).max()
            assert off <= bound * max(np.abs(want).max(), 1e-2), (device, name)


def gradient_of(model: slopes.Opened, name: str) -> F64:
    """As wide as the device has it, (n, k) or (n,)."""
    gradient, backend = model.parameters[name].gradient, model.device.backend
    if isinstance(backend, WideBackend):
        memory = backend.memory
        if isinstance(gradient, Matrix):
            return memory.matrix(gradient)
        return memory.vector(gradient)
    return dense(gradient).astype(np.float64)
