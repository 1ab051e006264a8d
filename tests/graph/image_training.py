"""A few nodes over images between a weight and a loss, trained for one step: what gradient tests
look at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rebar.graph.backward import Recompute, Scheduler
from rebar.graph.image import Image, ImageBuilder
from rebar.graph.parameters import Parameters, ParameterShape, fill
from rebar.graph.recorded import RecordedLearner, with_loss
from rebar.graph.tensor import Tensor
from rebar.hal import (
    DeviceManager,
    Domain,
    Indices,
    Limits,
    Matrix,
    Operand,
    Rows,
    Step,
    Vector,
    WeightFormat,
)
from rebar.hal.launches_image import Window
from tests.graph.harness import F32, open_device

IMAGES, LABELS = 3, 4
Weights = dict[str, Tensor]
Body = Callable[[ImageBuilder, Image, Weights, Tensor], Tensor]
"""Nodes from an image to a row of features. The last tensor: dropout's key."""


@dataclass(frozen=True)
class Case:
    """An image's size, what is done with it, and the weights that takes, (n, k) or (n,)."""

    height: int
    width: int
    channels: int
    body: Body
    weights: dict[str, tuple[int, ...]]


class Trained(RecordedLearner):
    """A 1 x 1 convolution, the case's nodes, a linear layer and a loss: the gradient of the first
    weight goes through the input of all that is between.
    """

    def __init__(
        self,
        case: Case,
        device: str | DeviceManager,
        features: int,
        seed: int = 1,
        recompute: Recompute = "none",
    ) -> None:
        manager = open_device(device) if isinstance(device, str) else device
        shapes = {"first": (case.channels, case.channels), **case.weights}
        shapes |= {"head": (LABELS, features), "head bias": (LABELS,)}
        listed = [ParameterShape(name, shape, decay=False) for name, shape in shapes.items()]
        parameters = Parameters(manager.create_pool("p", Parameters.nbytes(listed) + 4096), listed)
        random = np.random.default_rng(seed)
        for shape in listed:
            scale = shape.shape[-1] ** -0.5 if len(shape.shape) == 2 else 1.0
            drawn = random.standard_normal(shape.shape) * scale
            fill(parameters[shape.name].value, drawn.astype(np.float32))
        values = case.height * case.width * case.channels
        self.images: F32 = random.standard_normal((IMAGES, values), dtype=np.float32)
        self.labels = Indices(np.array([1, 3, 0], np.int32))
        step = Step(IMAGES, 1, 1, 1)
        for array in (step.ids, step.sequences, step.tables):
            array[:] = 0
        step.rows, step.positions[:] = IMAGES, np.arange(IMAGES)
        scheduler = self._scheduler_of(case, parameters)
        super().__init__(manager, parameters, scheduler, step, recompute)

    def _scheduler_of(self, case: Case, parameters: Parameters) -> Scheduler:
        g, images = ImageBuilder(), Tensor("images", (Domain.ROWS, self.images.shape[1]))
        tensors = {
            p.name: Tensor(p.name, p.shape, WeightFormat.F32 if len(p.shape) == 2 else "f32")
            for p in parameters
        }
        key = Tensor("key", (2,), "i32")
        start = Image(images, case.height, case.width, case.channels)
        window = Window(case.height, case.width, case.channels, 1, 1)
        mixed = g.conv("first", start, tensors["first"], None, window)
        features = case.body(g, mixed, tensors, key)
        logits = g.linear("logits", features, (tensors["head"],), (tensors["head bias"],))
        graph, loss, labels = with_loss(g.graph(logits), logits)
        bound: dict[Tensor, Operand] = {t: parameters[name].value for name, t in tensors.items()}
        bound |= {images: Rows(self.images), labels: self.labels}
        bound[key] = Indices(np.array([5, 6], np.int32))
        gradients: dict[Tensor, Matrix | Vector] = {
            t: parameters[name].gradient for name, t in tensors.items()
        }
        limits = Limits(rows=IMAGES, positions=16, blocks=1)
        return Scheduler(graph, loss, limits, bound, gradients)

    def forward(self) -> None:
        """Losses are in program.losses."""
        self.program.forward(self.step)

    def gradients(self) -> F32:
        """All gradients of the sum of the losses, flat."""
        self.program.weights.data[:] = 1.0
        self.forward()
        self.program.backward(self.step)
        return self.parameters.gradients
