"""The way back of every node over images: central differences in float64, and the kernels of every
instruction set beside the reference.
"""

from __future__ import annotations

import numpy as np
import pytest

from rebar.graph.backward import RECOMPUTE
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.tensor import Tensor
from rebar.hal import Domain
from rebar.hal.launches_image import PoolKind, Window
from tests.graph import slopes
from tests.graph.harness import DEVICES
from tests.graph.image_training import Case, Trained, Weights


def conv(n: int, kernel: tuple[int, int], stride: int, padding: int, *, bias: bool) -> Case:
    height, width, channels = 5, 6, 3
    window = Window(height, width, channels, *kernel, stride=stride, padding=padding)

    def body(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
        return g.conv("conv", x, w["w"], w["b"] if bias else None, window).flat()

    weights: dict[str, tuple[int, ...]] = {"w": (n, window.inputs)}
    return Case(height, width, channels, body, weights | ({"b": (n,)} if bias else {}))


def pool(kind: PoolKind, kernel: tuple[int, int], stride: int, padding: int) -> Case:
    window = Window(6, 5, 4, *kernel, stride=stride, padding=padding)

    def body(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
        return g.pool("pool", x, window, kind).flat()

    return Case(6, 5, 4, body, {})


def means(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
    return g.global_mean("means", x).flat()


def norm(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
    return g.group_norm("norm", x, w["weight"], w["bias"], 1e-5).flat()


def relu(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
    return g.relu("relu", x).reshaped(1, 1, x.tensor.width).flat()


def dropout(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
    return g.dropout("second", g.dropout("first drop", x.flat(), key, 0.3), key, 0.2)


def twice(g: ImageBuilder, x: Image, w: Weights, key: Tensor) -> Tensor:
    """One tensor read by two nodes: their gradients add."""
    halves = Window(4, 4, 2, 2, 2, stride=2)
    largest = g.pool("largest", x, halves, PoolKind.MAX)
    return g.add("both", largest.flat(), g.pool("mean", x, halves, PoolKind.MEAN).flat())


CASES = {
    "conv": conv(5, (3, 3), 1, 1, bias=True),
    "conv strided": conv(18, (3, 2), 2, 1, bias=True),
    "conv without padding": conv(17, (2, 3), 1, 0, bias=False),
    "largest": pool(PoolKind.MAX, (2, 2), 2, 0),
    "largest, overlapping": pool(PoolKind.MAX, (3, 3), 2, 1),
    "mean": pool(PoolKind.MEAN, (2, 2), 1, 0),
    "mean with padding": pool(PoolKind.MEAN, (3, 2), 2, 1),
    "global mean": Case(3, 5, 20, means, {}),
    "norm": Case(3, 3, 6, norm, {"weight": (6,), "bias": (6,)}),
    "norm, groups of two": Case(2, 3, 64, norm, {"weight": (64,), "bias": (64,)}),
    "relu": Case(4, 3, 5, relu, {}),
    "dropout": Case(4, 3, 5, dropout, {}),
    "twice": Case(4, 4, 2, twice, {}),
}


def features(case: Case) -> int:
    """Width of what the case's nodes make."""
    weights = {name: Tensor(name, shape) for name, shape in case.weights.items()}
    g, values = ImageBuilder(), case.height * case.width * case.channels
    start = Image(Tensor("x", (Domain.ROWS, values)), case.height, case.width, case.channels)
    return case.body(g, start, weights, Tensor("key", (2,), "i32")).width


def opened(name: str, device: str, **options: object) -> Trained:
    return Trained(CASES[name], device, features(CASES[name]), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_is_the_slope_of_the_loss(name: str) -> None:
    """In float64 throughout."""
    model = opened(name, "ref64")
    memory = slopes.wide_memory(model.device)
    model.gradients()

    def losses() -> slopes.F64:
        model.forward()
        return memory.wide(model.program.losses.data)

    slopes.check_parameters(memory, model.parameters, losses)


@pytest.mark.parametrize("name", CASES)
def test_kernels_learn_as_the_reference_and_all_alike(name: str) -> None:
    """Every instruction set and number of threads gives the same bits. Beside the reference: some
    100 float32 roundings of terms of at most the largest gradient.
    """
    expected = opened(name, "ref").gradients().copy()
    found = {}
    for device in DEVICES[1:]:
        model = opened(name, device)
        found[device] = model.gradients().tobytes()
        error = np.abs(model.parameters.gradients - expected).max()
        assert error <= 1e-5 * np.abs(expected).max(), device
    assert len(set(found.values())) == 1, list(found)


@pytest.mark.parametrize("name", ["norm", "conv", "largest"])
def test_gradients_add_to_what_is_there(name: str) -> None:
    model = opened(name, "cpu:scalar:1")
    once = model.gradients().copy()
    twice = model.gradients()
    assert np.abs(twice - 2 * once).max() <= 1e-5 * np.abs(once).max()


def test_what_is_computed_again_changes_no_bit() -> None:
    results = {opened("norm", "ref", recompute=r).gradients().tobytes() for r in RECOMPUTE}
    assert len(results) == 1
