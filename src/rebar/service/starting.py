"""What an engine process does first: from the spec a front sent to a warm engine, whatever its
kind; and what the front knows of an image classifier.
"""

from __future__ import annotations

import time
from pathlib import Path

from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.graph.weights.classifier import ClassifierFile, is_classifier, open_classifier
from rebar.hal import SharedMemory
from rebar.service.loading import DEFAULT_MAX_WAITING, load_engine, warm_up
from rebar.service.messages import EngineLimits, EngineSpec
from rebar.service.model import NoText, ServedModel
from rebar.service.worker import Engine


def start_engine(spec: EngineSpec) -> tuple[Engine, EngineLimits]:
    """Loads and warms what the spec names. Raises as load_model and load_classifier do."""
    path = Path(spec.path)
    if is_classifier(path):
        return classifier_engine(open_classifier(path), spec.options, spec.max_waiting)
    loaded = load_engine(
        open_model(path),
        spec.options,
        spec.max_running,
        spec.max_waiting,
        speculation=spec.speculation,
        kept=None if spec.kept is None else SharedMemory(spec.kept),
    )
    warm_up(loaded.engine.runner)
    return loaded.engine, loaded.limits


def classifier_engine(
    file: ClassifierFile, options: RunnerOptions, max_waiting: int = DEFAULT_MAX_WAITING
) -> tuple[Engine, EngineLimits]:
    """An engine that has seen an empty image. Of the options count threads, memory, isa, device."""
    import numpy as np

    from rebar.graph.classifier import ClassifierOptions, load_classifier
    from rebar.service.classifying import ClassifierEngine

    runner = load_classifier(
        file, ClassifierOptions(options.threads, options.memory, options.isa, options.device)
    )
    values = file.config.values
    runner.classify(np.zeros((1, values), np.float32))
    limits = EngineLimits(
        max_context=0,
        kv_tokens=0,
        vocab_size=0,
        max_open=runner.max_rows + max_waiting,
        width=len(file.config.labels),
    )
    return ClassifierEngine(runner, values), limits


def served_classifier(
    file: ClassifierFile,
    limits: EngineLimits,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    source: str = "",
) -> ServedModel:
    """What callers see of it; no weight is read."""
    now = int(time.time())
    return ServedModel(name, NoText(), None, limits, now, aliases, source, file.config)
