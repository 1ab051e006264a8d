"""Optimizers against NumPy on every device, and what a step promises beside its formula."""

from __future__ import annotations

import numpy as np
import pytest

from rebar.errors import GradientExplosionError, InputError
from rebar.graph.optimizer import PIECE, AdamW, Optimizer, Rule, Sgd, ranges
from rebar.hal import Vector
from tests.graph.harness import DEVICES, open_device
from tests.graph.line import F32, Flat, Parameter


def drawn(count: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


class Large(Flat):
    """One parameter of several pieces, the last not whole."""

    def __init__(self) -> None:
        self.size = 2 * PIECE + 100
        self.values, self.gradients, self.m, self.v = np.zeros((4, self.size), dtype=np.float32)
        self.weight = Vector(self.values)

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
        yield Parameter("large", self.weight, True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", [AdamW(decay=0.1), Sgd(momentum=0.9, decay=0.1)])
def test_steps_follow_the_formula(device: str, rule: Rule) -> None:
    """In float64 beside it; a value is off by its own roundings, a few in each of three steps:
    2^-24 relative to the largest term each, so 1e-6 of a value near 1 holds ten of them.
    """
    p = Flat()
    p.values[:5], p.values[16] = drawn(5, 1), 2.0
    optimizer = Optimizer(open_device(device), p, rule, clip=0.5)
    x, m, v = p.values.astype(np.float64), np.zeros(32), np.zeros(32)
    decay = np.where(np.arange(32) < 5, 0.1, 0.0)
    for step in range(1, 4):
        p.gradients[:5], p.gradients[16] = drawn(5, 10 + step), 0.25
        g = p.gradients.astype(np.float64)
        norm = np.sqrt((g * g).sum())
        assert optimizer.step(0.01 * step) == pytest.approx(norm, rel=1e-6)
        assert not p.gradients.any()
        g *= min(1.0, 0.5 / norm)
        if isinstance(rule, AdamW):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            x -= 0.01 * step * decay * x
            x -= 0.01 * step * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        else:
            m = 0.9 * m + g + decay * x
            x -= 0.01 * step * m
        np.testing.assert_allclose(p.values, x, rtol=1e-6, atol=1e-6)
    assert optimizer.count == 3
    assert not p.values[5:16].any()  # the gap between two parameters stays zero
    assert not p.m[5:16].any()


@pytest.mark.parametrize("device", DEVICES)
def test_the_norm_counts_every_piece(device: str) -> None:
    p = Large()
    p.gradients[:] = drawn(p.size, 5)
    exact = np.sqrt((p.gradients.astype(np.float64) ** 2).sum())
    # Each piece is rounded to float32 a few times more than log2(65536 / 16) = 12 tree levels.
    assert Optimizer(open_device(device), p, Sgd()).norm() == pytest.approx(exact, rel=1e-6)


def test_the_bits_depend_on_no_device_but_its_formula() -> None:
    made = set()
    for device in DEVICES[1:]:
        p = Large()
        p.values[:], p.gradients[:] = drawn(p.size, 1), drawn(p.size, 2)
        optimizer = Optimizer(open_device(device), p, AdamW(), clip=1.0)
        norm = optimizer.step(1e-3)
        made.add((norm, p.values.tobytes(), p.m.tobytes(), p.v.tobytes()))
    assert len(made) == 1


def test_gradients_within_the_norm_are_left_as_they_are() -> None:
    p = Flat()
    p.gradients[16] = 0.5
    Optimizer(open_device("ref"), p, Sgd(), clip=0.5).step(1.0)
    assert p.values[16] == np.float32(-0.5)
    p.gradients[16] = 8.0
    Optimizer(open_device("ref"), p, Sgd(), clip=None).step(1.0)
    assert p.values[16] == np.float32(-8.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_gradient_that_is_no_number_is_named_and_changes_nothing(bad: float) -> None:
    """3e38 is a number whose square is none: as a norm it is as wrong."""
    p = Flat()
    p.values[16] = 1.0
    p.gradients[:5], p.gradients[16] = 1.0, bad
    optimizer = Optimizer(open_device("ref"), p, AdamW())
    named = pytest.raises(GradientExplosionError, match="step 1: the gradient of bias")
    with np.errstate(over="ignore", invalid="ignore"), named as raised:
        optimizer.step(1.0)
    assert raised.value.node == "bias"
    assert raised.value.step == 1
    assert p.values[16] == 1.0
    assert optimizer.count == 0


def test_neighbours_with_one_rule_share_a_launch() -> None:
    assert ranges(Flat()) == [(0, 5, True), (16, 17, False)]
    p = Flat()
    alike = [Parameter("a", p.weight, True), Parameter("b", p.bias, True)]
    p.__class__ = type("Alike", (Flat,), {"__iter__": lambda self: iter(alike)})
    assert ranges(p) == [(0, 17, True)]


@pytest.mark.parametrize(
    "make", [lambda: AdamW(beta1=1.0), lambda: AdamW(eps=0.0), lambda: Sgd(momentum=-0.1)]
)
def test_what_is_no_rule_is_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]
    with pytest.raises(InputError, match="--clip"):
        Optimizer(open_device("ref"), Flat(), Sgd(), clip=0.0)
