"""Nodes over images against torch's autograd, on random shapes; and a whole network's gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rebar.errors import ShapeError
from rebar.graph.builder import Builder
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.image_batch import ImageBatch
from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.nodes_image import groups_of
from rebar.graph.parameters import dense
from rebar.graph.tensor import Tensor
from rebar.hal import Domain, Indices
from rebar.hal.launches_image import PoolKind, Window
from tests.graph.harness import Call, open_device, run
from tests.parity.beside_torch import Values, compare, draw

pytestmark = pytest.mark.parity
some = settings(max_examples=30, deadline=None)
sides, kernels = st.integers(1, 9), st.integers(1, 4)
windows = st.tuples(sides, sides, st.integers(1, 20), kernels, kernels, kernels, st.integers(0, 2))


def window_of(sizes: tuple[int, ...]) -> Window:
    """A window that can be."""
    try:
        return Window(*sizes)
    except ShapeError:
        assume(False)
        raise


def against(
    window: Window,
    images: int,
    values: Mapping[str, np.ndarray],
    ours: Callable[[ImageBuilder, Image, Mapping[str, Tensor]], Tensor],
    theirs: Callable[[Any, Any, Values], Any],
) -> None:
    """ours makes rows of images in our order, theirs (images, channels, height, width)."""

    def build(g: Builder, t: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(g, ImageBuilder)
        image = Image(t["x"], window.height, window.width, window.channels)
        return ours(g, image, t)

    def torch_build(torch: Any, v: Values) -> Any:
        shape = (images, window.height, window.width, window.channels)
        out = theirs(torch, v["x"].reshape(shape).permute(0, 3, 1, 2), v)
        return out.permute(0, 2, 3, 1).reshape(images, -1)

    x = {"x": draw(1, images, window.values)}
    compare(build, torch_build, x | dict(values), images, g=ImageBuilder())


@given(windows, st.integers(1, 40), st.integers(1, 4))
@some
def test_conv(sizes: tuple[int, ...], n: int, images: int) -> None:
    window = window_of(sizes)
    kernel = (window.kernel_height, window.kernel_width, window.channels)

    def theirs(torch: Any, x: Any, v: Values) -> Any:
        w = v["w"].reshape(n, *kernel).permute(0, 3, 1, 2)
        return torch.nn.functional.conv2d(
            x, w, v["b"], stride=window.stride, padding=window.padding
        )

    values = {"w": draw(2, n, window.inputs), "b": draw(3, n)}
    against(
        window,
        images,
        values,
        lambda g, x, t: g.conv("y", x, t["w"], t["b"], window).tensor,
        theirs,
    )


@given(windows, st.sampled_from(list(PoolKind)), st.integers(1, 4))
@some
def test_pool(sizes: tuple[int, ...], kind: PoolKind, images: int) -> None:
    """torch allows a padding of half the window."""
    window = window_of(sizes)
    assume(2 * window.padding <= min(window.kernel_height, window.kernel_width))

    def theirs(torch: Any, x: Any, v: Values) -> Any:
        kernel = (window.kernel_height, window.kernel_width)
        largest = kind is PoolKind.MAX
        f = torch.nn.functional.max_pool2d if largest else torch.nn.functional.avg_pool2d
        return f(x, kernel, stride=window.stride, padding=window.padding)

    against(window, images, {}, lambda g, x, t: g.pool("y", x, window, kind).tensor, theirs)


@given(sides, sides, st.sampled_from([1, 3, 16, 32, 40, 64, 96]), st.integers(1, 4))
@some
def test_group_norm_and_relu(height: int, width: int, channels: int, images: int) -> None:
    """Over eight values or more: of one or two the gradient cancels, and rounding is left."""
    assume(height * width * channels // groups_of(channels) >= 8)
    window = Window(height, width, channels, 1, 1)

    def ours(g: ImageBuilder, x: Image, t: Mapping[str, Tensor]) -> Tensor:
        return g.relu("relu", g.group_norm("norm", x, t["w"], t["b"], 1e-5)).tensor

    def theirs(torch: Any, x: Any, v: Values) -> Any:
        norm = torch.nn.functional.group_norm(x, groups_of(channels), v["w"], v["b"], 1e-5)
        return torch.nn.functional.relu(norm)

    values = {"w": draw(2, channels), "b": draw(3, channels)}
    against(window, images, values, ours, theirs)


@given(st.integers(1, 4), st.integers(1, 200), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
@some
def test_dropout(images: int, n: int, rate: float) -> None:
    """What stays is what our way forward keeps, and is scaled in float32; the way back drops the
    same.
    """
    key = Tensor("key", (2,), "i32")
    frozen = {key: Indices(np.array([images, n], np.int32))}
    g, ones = ImageBuilder(), Tensor("ones", (Domain.ROWS, n))
    kept = g.dropout("kept", ones, key, rate)
    inputs = {ones: np.ones((images, n), np.float32)}
    values = run(g.graph(kept), open_device("ref"), Call([(0, images, [0])]), frozen, inputs)
    factor = values.rows(kept).data.astype(np.float64)
    assert set(np.unique(factor)) <= {0.0, float(np.float32(1 / (1 - rate)))}

    def ours(g: Builder, t: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(g, ImageBuilder)
        return g.dropout("kept", t["x"], key, rate)

    compare(
        ours,
        lambda torch, v: v["x"] * torch.tensor(factor),
        {"x": draw(1, images, n)},
        images,
        frozen,
        g=ImageBuilder(),
    )


@given(sides, sides, st.integers(1, 20), st.integers(1, 30), st.integers(1, 4))
@some
def test_reshaped_means_and_flat(
    height: int, width: int, channels: int, n: int, images: int
) -> None:
    """An image read by other sizes, the mean of each channel, and all values as one row."""
    size, other = (
        (height, width, channels),
        Window(width, height * channels, 1, 1, height * channels),
    )
    values = {
        "x": draw(1, images, height * width * channels),
        "flat": draw(2, n, height * width * channels),
    }
    values |= {"mean": draw(3, n, channels), "side": draw(4, n, width), "b": draw(5, n)}

    def ours(g: Builder, t: Mapping[str, Tensor]) -> Tensor:
        assert isinstance(g, ImageBuilder)
        x = Image(t["x"], *size)
        sides = g.pool("sides", x.reshaped(width, height * channels, 1), other, PoolKind.MEAN)
        means = g.linear("m", g.global_mean("means", x).flat(), (t["mean"],), (t["b"],))
        both = g.add("both", means, g.linear("s", sides.flat(), (t["side"],)))
        return g.add("all", both, g.linear("f", x.flat(), (t["flat"],)))

    def theirs(torch: Any, v: Values) -> Any:
        means = v["x"].view(images, height * width, channels).mean(dim=1)
        sides = v["x"].view(images, width, height * channels).mean(dim=2)
        return means @ v["mean"].T + v["b"] + sides @ v["side"].T + v["x"] @ v["flat"].T

    compare(ours, theirs, values, images, g=ImageBuilder())


def test_the_gradient_of_a_whole_network() -> None:
    """Loss and every parameter's gradient, of one batch, beside torch in float64: relative error of
    at most 1e-4 of the largest element.
    """
    import torch

    config = ConvNetConfig(8, 8, 3, ("a", "b", "c"), stages=(16, 48), dropout=0.0)
    learner = open_image_learner(config, ImageLearnerOptions(threads=2, memory=256 << 20))
    images, labels = draw(5, 32, config.values), np.arange(32, dtype=np.int32) % 3
    loss = learner.run(ImageBatch(images, labels), 1.0)
    w = {
        p.name: torch.tensor(dense(p.value), dtype=torch.float64, requires_grad=True)
        for p in learner.parameters
    }
    x = torch.tensor(images, dtype=torch.float64).reshape(32, 8, 8, 3).permute(0, 3, 1, 2)
    f, channels = torch.nn.functional, 3
    for i, n in enumerate(config.stages):
        for j in range(2):
            kernel = w[f"stages.{i}.conv{j}.weight"].reshape(n, 3, 3, channels)
            x = f.conv2d(x, kernel.permute(0, 3, 1, 2), padding=1)
            names = (f"stages.{i}.norm{j}.weight", f"stages.{i}.norm{j}.bias")
            x = f.relu(f.group_norm(x, groups_of(n), w[names[0]], w[names[1]], 1e-5))
            channels = n
        x = f.max_pool2d(x, 2) if i + 1 < len(config.stages) else x
    logits = x.mean(dim=(2, 3)) @ w["head.weight"].T + w["head.bias"]
    total = f.cross_entropy(logits, torch.tensor(labels, dtype=torch.long), reduction="sum")
    total.backward()
    assert abs(loss.total - total.item()) <= 1e-5 * total.item()
    for parameter in learner.parameters:
        want = w[parameter.name].grad.numpy()
        error = np.abs(dense(parameter.gradient) - want).max()
        assert error <= 1e-4 * np.abs(want).max(), parameter.name
