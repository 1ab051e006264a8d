"""Classifier: a loaded image classifier. One native call takes any number of images up to max_rows.

The law: the logits of an image depend on its pixels and the weights alone, not on the images
beside it, the threads or the instruction set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.models.convnet import build_convnet, weight_tensors
from rebar.graph.models.image_config import ConvNetConfig, tensor_shapes
from rebar.graph.parameters import view
from rebar.graph.plan import SLACK
from rebar.graph.tensor import Tensor
from rebar.graph.weights.classifier import ClassifierFile
from rebar.graph.weights.pack import final_nbytes
from rebar.hal import (
    BLOCK_POSITIONS,
    DeviceManager,
    Limits,
    Matrix,
    Operand,
    Pool,
    Rows,
    Step,
    Vector,
    aligned,
)

F32 = NDArray[np.float32]
ACTIVATION_BYTES = 64 << 20
"""What the images of a step may take at most, of the input and of the widest layer."""
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """threads, memory, isa, device: as RunnerOptions. max_rows: images of a step; None for as many
    as take 64 MB, at most 64.
    """

    threads: int | None = None
    memory: int | None = None
    isa: str | None = None
    device: str = "cpu"
    max_rows: int | None = None


class Classifier:
    """Made by load_classifier; one thread at a time may call it."""

    def __init__(
        self,
        config: ConvNetConfig,
        device: DeviceManager,
        weights: Mapping[str, Matrix | Vector],
        max_rows: int,
    ) -> None:
        self.config = config
        self.device = device
        self.max_rows = max_rows
        tensors = weight_tensors(config)
        net = build_convnet(config, tensors)
        limits = Limits(rows=max_rows, positions=max_rows, blocks=1)
        self._images = np.zeros((max_rows, config.values), np.float32)
        bound: dict[Tensor, Operand] = {t: weights[name] for name, t in tensors.items()}
        bound[net.images] = Rows(self._images)
        plan = net.graph.plan(limits)
        pool = device.create_pool("images", plan.nbytes + SLACK)
        values = plan.allocate(pool, limits, bound, "activations")
        self.graph = net.graph
        self._program = net.graph.compile(device, values, limits).program
        self._logits = values.rows(net.logits).data
        self._step = image_step(max_rows, max_rows)

    def classify(self, images: F32) -> F32:
        """Logits (n, labels) of images (n, height * width * channels), normalized. ShapeError for
        another width, or more than max_rows.
        """
        count = len(images)
        if images.shape != (count, self.config.values) or count > self.max_rows:
            raise ShapeError(
                f"{images.shape} images for a network of {self.config.values} values and at most "
                f"{self.max_rows} images."
            )
        self._images[:count] = images
        self._step.rows = count
        self._program.run(self._step)
        return np.array(self._logits[:count])

    @property
    def free_bytes(self) -> int:
        """Bytes of the device's budget that nothing holds."""
        return self.device.stats().free

    @property
    def node_count(self) -> int:
        """Nodes of the graph."""
        return len(self.graph.order)

    def close(self) -> None:
        """Gives the pools back."""
        for pool in self.device.stats().pools:
            self.device.release(pool.name)


def image_step(positions: int, rows: int) -> Step:
    """A step of up to `rows` images: all of one sequence, so that a row's position is its number,
    which is below `positions`.
    """
    step = Step(rows, 1, 1, -(-positions // BLOCK_POSITIONS))
    step.ids[:] = 0
    step.tables[:] = 0
    step.sequences[:] = 0
    step.positions[:] = np.arange(rows)
    return step


def rows_of(config: ConvNetConfig, most: int | None) -> int:
    """Images of a step."""
    widest = config.height * config.width * max(config.channels, *config.stages)
    return most or max(1, min(MAX_ROWS, ACTIVATION_BYTES // (4 * widest)))


def weights_nbytes(config: ConvNetConfig) -> int:
    """Bytes of a pool that holds all weights."""
    return sum(aligned(final_nbytes("F32", shape)) for _, shape in tensor_shapes(config)) + SLACK


def load_classifier(file: ClassifierFile, options: ClassifierOptions | None = None) -> Classifier:
    """A classifier from its file. The weights are copied: they are small, and kernels want them in
    lines of 64 bytes. Raises MemoryBudgetError, DeviceError.
    """
    options = options or ClassifierOptions()
    device = DeviceManager(
        options.device, threads=options.threads, memory=options.memory, isa=options.isa
    )
    pool = device.create_pool("weights", weights_nbytes(file.config))
    weights = {
        name: _copied(pool, name, stored.data, stored.shape)
        for name, stored in file.tensors.items()
    }
    return Classifier(file.config, device, weights, rows_of(file.config, options.max_rows))


def _copied(
    pool: Pool, name: str, data: NDArray[np.uint8], shape: tuple[int, ...]
) -> Matrix | Vector:
    flat = pool.allocate(data.nbytes, name).bytes()[: data.nbytes].view(np.float32)
    flat[:] = data.view(np.float32)
    return view(flat, 0, shape)
