"""A server of an image classifier: the tiny one, or a scripted one that tells what it was given."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.graph import RunnerOptions
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.weights.classifier import open_classifier
from rebar.service.classifying import ClassifierEngine
from rebar.service.http.lifecycle import TimeLimits
from rebar.service.messages import EngineLimits
from rebar.service.model import NoText, ServedModel
from rebar.service.router import ModelService
from rebar.service.starting import classifier_engine, served_classifier
from tests.service.live import Client, running
from tests.tiny.classifier import CONFIG

F32 = NDArray[np.float32]


def classifier_service(path: Path) -> ModelService:
    """The classifier of a file, in a thread."""
    file = open_classifier(path)
    options = RunnerOptions(threads=1, memory=64 << 20)
    engine, limits = classifier_engine(file, options, max_waiting=256)
    return ModelService.in_thread(served_classifier(file, limits, name="shapes"), engine)


class ScriptedImages:
    """A runner whose logits are the image's first three pixels. steps: the images of each step.
    `before` is called with the images; what it raises, the step raises.
    """

    node_count = 1
    free_bytes = 0

    def __init__(self, max_rows: int = 8) -> None:
        self.max_rows = max_rows
        self.steps: list[F32] = []
        self.before: Callable[[F32], None] = lambda _: None
        self.closed = False

    def classify(self, images: F32) -> F32:
        """One step."""
        self.steps.append(images.copy())
        self.before(images)
        return images[:, :3] * np.float32(4)

    def close(self) -> None:
        """Frees nothing."""
        self.closed = True


def scripted_images(
    runner: ScriptedImages, max_waiting: int = 64, config: ConvNetConfig = CONFIG
) -> ModelService:
    """A service of it, in a thread."""
    limits = EngineLimits(0, 0, 0, runner.max_rows + max_waiting, width=3)
    model = ServedModel("shapes", NoText(), None, limits, classifier=config)
    return ModelService.in_thread(model, ClassifierEngine(runner, config.values))


@contextlib.contextmanager
def classifying(service: ModelService, limits: TimeLimits | None = None) -> Iterator[Client]:
    """A server for it; PROBE before and after."""
    with (
        running(service, limits) as port,
        contextlib.closing(Client(f"http://127.0.0.1:{port}")) as client,
    ):
        yield client
        client.probe()


class Gate:
    """Holds steps back until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, images: F32) -> None:
        """As ScriptedImages.before."""
        self.reached.set()
        assert self._open.wait(10)

    def open(self) -> None:
        """For good."""
        self._open.set()
