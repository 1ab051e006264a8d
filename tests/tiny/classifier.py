"""A tiny image classifier with random weights, as a .rebar file."""

from __future__ import annotations

from pathlib import Path

from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.weights.classifier import write_classifier

LABELS = ("circle", "square", "star")
CONFIG = ConvNetConfig(4, 4, 1, LABELS, stages=(8, 12))


def tiny_classifier(folder: Path, config: ConvNetConfig = CONFIG, name: str = "shapes") -> Path:
    """FOLDER/NAME.rebar."""
    learner = open_image_learner(config, ImageLearnerOptions(threads=1, seed=3, memory=64 << 20))
    path = folder / f"{name}.rebar"
    values = {parameter.name: parameter.value for parameter in learner.parameters}
    write_classifier(path, name, config, values, {"tool": "tests"})
    learner.close()
    return path
