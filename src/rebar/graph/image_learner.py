"""ImageLearner: an image classifier whose weights can be trained. run(batch, scale) adds gradients;
the optimizer of graph/optimizer.py does the rest, as for a language model.

A micro-batch is one step whose rows are images, each with a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.backward import Choice, Scheduler
from rebar.graph.classifier import Classifier, image_step, rows_of
from rebar.graph.image_batch import ImageBatch
from rebar.graph.models.convnet import build_convnet, weight_tensors
from rebar.graph.models.image_config import ConvNetConfig, tensor_shapes
from rebar.graph.parameters import Parameters, ParameterShape, fill
from rebar.graph.plan import SLACK
from rebar.graph.recorded import Loss, RecordedLearner, with_loss
from rebar.graph.tensor import Tensor
from rebar.graph.training import GradientObserver
from rebar.hal import DeviceManager, Indices, Limits, Matrix, Operand, Rows, Vector

F32 = NDArray[np.float32]
MAX_WINDOW = 1 << 15
"""Images of a window: their numbers in it are the positions of a step's rows."""


@dataclass(frozen=True, slots=True)
class ImageLearnerOptions:
    """max_rows: images of a micro-batch; None for as many as a server takes in a step. seed: of the
    first weights. recompute, threads, memory, isa, device: as LearnerOptions.
    """

    max_rows: int | None = None
    seed: int = 0
    recompute: Choice = "auto"
    threads: int | None = None
    memory: int | None = None
    isa: str | None = None
    device: str = "cpu"


class ImageLearner(RecordedLearner):
    """Made by open_image_learner; one thread at a time may call it."""

    def __init__(
        self,
        config: ConvNetConfig,
        device: DeviceManager,
        parameters: Parameters,
        max_rows: int,
        recompute: Choice,
    ) -> None:
        self.config = config
        self.max_rows = max_rows
        self._images = np.zeros((max_rows, config.values), np.float32)
        self._labels = np.zeros(max_rows, np.int32)
        self._key = np.zeros(2, np.int32)
        scheduler, step = self._scheduler_of(parameters), image_step(MAX_WINDOW, max_rows)
        weights = {parameter.name: parameter.value for parameter in parameters}
        self.classifier = Classifier(config, device, weights, max_rows)
        """The network as it serves now, over the same weights."""
        # Last, so that the arena is chosen by what is left.
        super().__init__(device, parameters, scheduler, step, recompute)
        self.settings = {"network": asdict(config)}

    def _scheduler_of(self, parameters: Parameters) -> Scheduler:
        tensors = weight_tensors(self.config)
        net = build_convnet(self.config, tensors, training=True)
        graph, loss, labels = with_loss(net.graph, net.logits)
        bound: dict[Tensor, Operand] = {t: parameters[n].value for n, t in tensors.items()}
        bound |= {net.images: Rows(self._images), labels: Indices(self._labels)}
        if net.key is not None:
            bound[net.key] = Indices(self._key)
        gradients: dict[Tensor, Matrix | Vector] = {
            t: parameters[name].gradient for name, t in tensors.items()
        }
        limits = Limits(rows=self.max_rows, positions=MAX_WINDOW, blocks=1)
        return Scheduler(graph, loss, limits, bound, gradients)

    def run(
        self, batch: ImageBatch, scale: float, observers: Sequence[GradientObserver] = ()
    ) -> Loss:
        """Adds scale * gradient of the sum of the losses into `parameters.gradients`. observers:
        given, the step runs node by node and is watched; same bits. Errors: InputError for a batch
        that the learner was not opened for.
        """
        return self._learn(self._bind(batch), scale, observers)

    def evaluate(self, batch: ImageBatch) -> Loss:
        """The loss of the network as it serves: nothing drops, and the sum is in float64."""
        self._check(batch)
        logits = self.classifier.classify(batch.images).astype(np.float64)
        largest = logits.max(axis=1)
        totals = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest
        return Loss(float((totals - logits[np.arange(batch.rows), batch.labels]).sum()), batch.rows)

    def right(self, batch: ImageBatch) -> int:
        """Images whose likeliest label is theirs."""
        self._check(batch)
        return int((self.classifier.classify(batch.images).argmax(axis=1) == batch.labels).sum())

    def _bind(self, batch: ImageBatch) -> int:
        """Fills the step; images in it."""
        self._check(batch)
        count = batch.rows
        self._images[:count] = batch.images
        self._labels[:count] = batch.labels
        self._key[:] = np.array(batch.key, np.uint64).astype(np.uint32).view(np.int32)
        self.step.rows = count
        self.step.positions[:count] = np.arange(batch.first, batch.first + count)
        return count

    def _check(self, batch: ImageBatch) -> None:
        count, labels = batch.rows, batch.labels
        if batch.images.shape[1] != self.config.values:
            raise InputError(
                f"images of {batch.images.shape[1]} values for a network of {self.config.values}. "
                "Scale them to its size."
            )
        if count > self.max_rows or batch.first + count > MAX_WINDOW:
            raise InputError(
                f"a batch of {count} images; the learner was opened for {self.max_rows}, and a "
                f"window for {MAX_WINDOW:,}. Cut the batch, or give a larger max_rows."
            )
        if labels.min() < 0 or labels.max() >= len(self.config.labels):
            raise InputError(f"labels outside 0 .. {len(self.config.labels) - 1}. Mend the data.")


def open_image_learner(
    config: ConvNetConfig, options: ImageLearnerOptions | None = None
) -> ImageLearner:
    """A network with first weights drawn by the seed (He et al., arXiv:1502.01852: normal, variance
    2 / inputs; biases and those of norms 0, their weights 1). Errors: MemoryBudgetError,
    DeviceError.
    """
    options = options or ImageLearnerOptions()
    device = DeviceManager(
        options.device, threads=options.threads, memory=options.memory, isa=options.isa
    )
    shapes = [ParameterShape(name, s, decay=len(s) == 2) for name, s in tensor_shapes(config)]
    parameters = Parameters(
        device.create_pool("parameters", Parameters.nbytes(shapes) + SLACK), shapes
    )
    for number, shape in enumerate(shapes):
        draws = np.random.Generator(np.random.Philox(key=[options.seed, number]))
        fill(parameters[shape.name].value, _first(shape, draws))
    rows = rows_of(config, options.max_rows)
    return ImageLearner(config, device, parameters, rows, options.recompute)


def _first(shape: ParameterShape, draws: np.random.Generator) -> F32:
    if len(shape.shape) == 2:
        deviation = np.sqrt(2.0 / shape.shape[1])
        drawn: F32 = (draws.standard_normal(shape.shape) * deviation).astype(np.float32)
        return drawn
    value = 1.0 if shape.name.endswith(".weight") else 0.0
    return np.full(shape.shape, value, np.float32)
