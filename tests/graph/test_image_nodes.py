"""Every node over images on every device, against formulas written out here in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.node import Node
from rebar.graph.nodes_image import groups_of
from rebar.graph.tensor import Tensor
from rebar.hal import DeviceManager, Domain, Indices, Operand, WeightFormat
from rebar.hal.launches_image import PoolKind, Window
from tests.graph.harness import DEVICES, F32, Call, matrix, open_device, run, vector

EPS = float(np.finfo(np.float32).eps)
IMAGES = 4
CALL = Call([(0, IMAGES, [0])])
F64 = NDArray[np.float64]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> DeviceManager:
    return open_device(request.param)


def random(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def image(height: int, width: int, channels: int) -> Image:
    tensor = Tensor("x", (Domain.ROWS, height * width * channels))
    return Image(tensor, height, width, channels)


def under(x: F32, w: Window, fill: float = 0.0) -> F64:
    """(images, positions, ky, kx, channels), by loops."""
    at = x.reshape(-1, w.height, w.width, w.channels)
    kernel = (w.kernel_height, w.kernel_width, w.channels)
    out = np.full((len(x), w.out_height, w.out_width, *kernel), fill)
    for oy in range(w.out_height):
        for ox in range(w.out_width):
            for ky in range(w.kernel_height):
                for kx in range(w.kernel_width):
                    y, z = oy * w.stride - w.padding + ky, ox * w.stride - w.padding + kx
                    if 0 <= y < w.height and 0 <= z < w.width:
                        out[:, oy, ox, ky, kx] = at[:, y, z]
    return out.reshape(len(x), w.positions, *kernel)


WINDOWS = [
    Window(8, 8, 1, 3, 3, 1, 1),
    Window(5, 7, 3, 3, 2, 2, 1),
    Window(4, 4, 17, 1, 1),
    Window(6, 5, 4, 6, 5),
    Window(9, 3, 2, 4, 3, 3, 2),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("n", [5, 32])
def test_conv(device: DeviceManager, window: Window, n: int) -> None:
    x, w, bias = random(IMAGES, window.values), random(n, window.inputs, seed=2), random(n, seed=3)
    g, tx = ImageBuilder(), image(window.height, window.width, window.channels)
    tw, tb = Tensor("w", (n, window.inputs), WeightFormat.F32), Tensor("b", (n,))
    out = g.conv("y", tx, tw, tb, window)
    bound: dict[Tensor, Operand] = {tw: matrix(w), tb: vector(bias)}
    got = run(g.graph(out.tensor), device, CALL, bound, {tx.tensor: x}).rows(out.tensor).data
    patches = under(x, window).reshape(IMAGES, window.positions, -1)
    want = (patches @ w.astype(np.float64).T + bias).reshape(IMAGES, -1)
    magnitude = np.abs(patches) @ np.abs(w).T.astype(np.float64) + np.abs(bias)
    bound_ = (window.inputs + 1) * EPS * magnitude.reshape(IMAGES, -1)
    assert (np.abs(got - want) <= bound_).all()
    assert (out.height, out.width, out.channels) == (window.out_height, window.out_width, n)


@pytest.mark.parametrize("window", WINDOWS)
def test_pools(device: DeviceManager, window: Window) -> None:
    x = random(IMAGES, window.values)
    g, tx = ImageBuilder(), image(window.height, window.width, window.channels)
    largest = g.pool("largest", tx, window, PoolKind.MAX).tensor
    mean = g.pool("mean", tx, window, PoolKind.MEAN).tensor
    values = run(g.graph(largest, mean), device, CALL, {}, {tx.tensor: x})
    want = under(x, window, -np.inf).max(axis=(2, 3)).reshape(IMAGES, -1)
    assert (values.rows(largest).data == want).all()
    patches = under(x, window)
    area = window.kernel_height * window.kernel_width
    want = patches.mean(axis=(2, 3)).reshape(IMAGES, -1)
    bound = (area + 2) * EPS * np.abs(patches).mean(axis=(2, 3)).reshape(IMAGES, -1)
    assert (np.abs(values.rows(mean).data - want) <= bound).all()


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (24, 24), (32, 32), (33, 11), (37, 1), (40, 20), (48, 24), (64, 32), (96, 32)],
)
def test_group_norm(device: DeviceManager, channels: int, groups: int) -> None:
    """Their number was that of a common divisor of the channels and 32: one for 33 channels."""
    assert groups_of(channels) == groups
    x, weight, bias = random(IMAGES, 12 * channels), random(channels), random(channels, seed=4)
    g, tx = ImageBuilder(), image(4, 3, channels)
    tw, tb = Tensor("w", (channels,)), Tensor("b", (channels,))
    out = g.group_norm("norm", tx, tw, tb, 1e-5).tensor
    bound = {tw: vector(weight), tb: vector(bias)}
    got = run(g.graph(out), device, CALL, bound, {tx.tensor: x}).rows(out).data
    wide = x.astype(np.float64).reshape(IMAGES, 12, groups, -1)
    mean = wide.mean(axis=(1, 3), keepdims=True)
    centred = wide - mean
    h = (centred / np.sqrt((centred**2).mean(axis=(1, 3), keepdims=True) + 1e-5)).reshape(
        IMAGES, 12, channels
    )
    want = (h * weight + bias).reshape(IMAGES, -1)
    # Sums of 12 c/g numbers near 1 round as often, the variance twice; five operations follow.
    count = 12 * channels // groups
    limit = 4 * (count + 8) * EPS * ((np.abs(h) + 1) * np.abs(weight) + np.abs(bias))
    assert (np.abs(got - want) <= limit.reshape(IMAGES, -1)).all()


def test_relu_keeps_what_is_no_number(device: DeviceManager) -> None:
    x = random(IMAGES, 18)
    x[0, :3] = np.nan, -np.inf, np.inf
    g, tx = ImageBuilder(), image(3, 3, 2)
    out = g.relu("relu", tx).tensor
    got = run(g.graph(out), device, CALL, {}, {tx.tensor: x}).rows(out).data
    assert np.array_equal(got, np.where(x < 0, 0, x), equal_nan=True)


def test_dropout_is_a_function_of_its_address(device: DeviceManager) -> None:
    """The same bits on every device, for rows that come together or alone; another seed, step or
    node drops others. 4 x 4,096 draws at 0.25: six standard deviations are 333.
    """
    width, rate = 4096, 0.25
    x = random(IMAGES, width)
    g, tx, key = ImageBuilder(), image(64, 64, 1), Tensor("key", (2,), "i32")
    first = g.dropout("first", tx.tensor, key, rate)
    second = g.dropout("second", tx.tensor, key, rate)

    def dropped(seed: int, step: int, call: Call, rows: F32) -> tuple[F32, F32]:
        bound = {key: Indices(np.array([seed, step], np.int32))}
        values = run(g.graph(first, second), device, call, bound, {tx.tensor: rows})
        return values.rows(first).data.copy(), values.rows(second).data.copy()

    whole, other = dropped(7, 1, CALL, x)
    kept = whole != 0
    assert (whole[kept] == (x * np.float32(1 / 0.75))[kept]).all()
    assert abs(int((~kept).sum()) - IMAGES * width * rate) < 333
    assert (whole != other).any()
    for row in range(IMAGES):
        alone, _ = dropped(7, 1, Call([(row, 1, [0])]), x[row : row + 1])
        assert (alone == whole[row]).all()
    for seed, step in ((8, 1), (7, 2)):
        assert (dropped(seed, step, CALL, x)[0] != whole).any()
    on_ref = open_device("ref")
    bound = {key: Indices(np.array([7, 1], np.int32))}
    assert (
        run(g.graph(first), on_ref, CALL, bound, {tx.tensor: x}).rows(first).data == whole
    ).all()


def test_reshaped_images_are_the_same_memory() -> None:
    x = image(4, 6, 3)
    assert x.reshaped(2, 12, 3).flat() is x.tensor
    with pytest.raises(ShapeError, match="72 values are no"):
        x.reshaped(5, 5, 3)


FAULTS: list[tuple[str, Callable[[ImageBuilder], object]]] = [
    ("does not fit", lambda g: Window(4, 4, 1, 5, 5)),
    ("as wide as the window", lambda g: Window(4, 4, 1, 3, 1, padding=1)),
    ("not all between", lambda g: Window(4, 4, 0, 3, 3)),
    (
        "inputs of a window differs: 10, 9",
        lambda g: g.conv(
            "c", image(4, 4, 1), Tensor("w", (3, 10), WeightFormat.F32), None, Window(4, 4, 1, 3, 3)
        ),
    ),
    (
        "values of an image differs",
        lambda g: g.pool("p", image(4, 4, 1), Window(4, 5, 1, 2, 2), PoolKind.MAX),
    ),
    (
        "n of bias differs",
        lambda g: g.conv(
            "c",
            image(4, 4, 1),
            Tensor("w", (3, 9), WeightFormat.F32),
            Tensor("b", (4,)),
            Window(4, 4, 1, 3, 3),
        ),
    ),
    (
        "width modulo channels",
        lambda g: g.group_norm("n", image(3, 3, 4), Tensor("w", (5,)), Tensor("b", (5,)), 1e-5),
    ),
    ("numbers of the key", lambda g: g.dropout("d", image(2, 2, 1).tensor, Tensor("k", (3,)), 0.1)),
]


@pytest.mark.parametrize(("message", "build"), FAULTS)
def test_shape_rules_name_the_size(message: str, build: Callable[[ImageBuilder], object]) -> None:
    with pytest.raises(ShapeError, match=message):
        build(ImageBuilder())


def test_costs() -> None:
    window = Window(8, 8, 3, 3, 3, padding=1)
    g, x, key = ImageBuilder(), image(8, 8, 3), Tensor("key", (2,), "i32")
    y = g.conv("conv", x, Tensor("w", (16, 27), WeightFormat.F32), None, window)
    y = g.group_norm("norm", y, Tensor("a", (16,)), Tensor("b", (16,)), 1e-5)
    g.dropout("dropout", g.global_mean("means", g.relu("relu", y)).flat(), key, 0.5)
    conv = g.nodes[0].cost(2)
    assert conv.operations == 2 * 2 * 64 * 16 * 27
    assert conv.read == (16 * 27 + 2 * 192) * 4
    assert conv.written == 2 * 64 * 16 * 4
    nodes: list[Node] = g.nodes
    assert all(n.cost(3).operations and n.cost(3).read and n.cost(3).written for n in nodes)
