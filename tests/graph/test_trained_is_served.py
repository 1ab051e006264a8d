"""What is trained is what is served: the logits of a training step are those of a server, and the
kernels of the way back give one answer whatever computes them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar import _native
from rebar.graph import Row, Runner, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.batch import Batch
from rebar.graph.gradients import Gradients
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.node import Node, Values
from rebar.graph.parameters import fill
from rebar.graph.weights import ModelFile, open_model
from rebar.graph.weights.fresh import trained_model
from tests.tiny import tiny_gguf

FAMILIES = ("llama", "qwen2", "gemma3")
SMALL = LearnerOptions(threads=2, memory=1 << 30, max_rows=80, max_sequences=4, max_context=48)
LENGTHS = (31, 1, 40)


def texts() -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(3, 500, n).tolist() for n in LENGTHS]


class Logits:
    """Keeps the logits of a run."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def after_forward(self, node: Node, values: Values) -> None:
        if node.name == "logits":
            self.rows.append(values.rows(node.outputs[0]).data.copy())

    def after_backward(self, node: Node, gradients: Gradients) -> None:
        """Nothing to keep."""


def trained_logits(model: Learner) -> np.ndarray:
    watch = Logits()
    batch = Batch.of(*texts())
    model.run(batch, 1.0, [watch])
    return np.concatenate(watch.rows)[: batch.tokens]


def served_logits(runner: Runner) -> np.ndarray:
    found = []
    for ids in texts():
        s = Sequence.of(ids, runner.max_context, SamplingParams(temperature=0.0, logprobs=0))
        s.blocks = runner.kv.allocate(runner.kv.blocks_for(len(ids)))
        for at in range(len(ids) - 1):  # the last id has no target; one by one, as a server decodes
            runner.step([Row(s, at, 1, range(at, at + 1))])
            found.append(runner.logits(1)[0].copy())
        runner.kv.release(s.blocks)
    return np.array(found)


def serve(model: ModelFile) -> Runner:
    return load_runner(model, RunnerOptions(threads=1, memory=64 << 20, max_rows=48))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", ["F32", "Q4_1"])
def test_logits_of_a_training_step_are_a_server_s(tmp_path: Path, family: str, types: str) -> None:
    """Whole sequences beside each other in training, id by id in serving, other threads: one
    answer. Over Q4_1 an adapter is there that adds nothing yet.
    """
    model = open_model(tiny_gguf(tmp_path, family, types))  # type: ignore[arg-type]
    mode: dict[str, Any] = {"mode": "full"} if types == "F32" else {"mode": "lora"}
    learner = open_learner(model, dataclasses.replace(SMALL, **mode))
    assert (trained_logits(learner) == served_logits(serve(model))).all()


def test_a_trained_model_is_served_as_it_was_trained(tmp_path: Path) -> None:
    """Weights that began quantized have moved; the model made of them says what training saw."""
    model = open_model(tiny_gguf(tmp_path, "qwen2", "Q4_1"))
    learner = open_learner(model, SMALL)
    learner.run(Batch.of(*texts()), 0.01)
    learner.parameters.values -= learner.parameters.gradients
    assert (
        trained_logits(learner) == served_logits(serve(trained_model(model, learner.parameters)))
    ).all()


def opened(path: Path, device: str, isa: str | None, threads: int, **changes: Any) -> Learner:
    """With an adapter whose B is not zero, where one learns."""
    options = dataclasses.replace(SMALL, device=device, isa=isa, threads=threads, **changes)
    learner, random = open_learner(open_model(path), options), np.random.default_rng(1)
    for parameter in learner.parameters:
        if "lora_B" in parameter.name:
            fill(parameter.value, random.standard_normal(parameter.shape, np.float32))
    return learner


@pytest.mark.parametrize("mode", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_same_bits_on_every_instruction_set(
    tmp_path: Path, family: str, mode: str
) -> None:
    """And near the reference's, which rounds once where kernels round at each addend: with sums of
    up to 256 products and int8 activations that may fall to the other side of a step (of 1/127 of
    the largest in 32), a few hundredths of the largest gradient with quantized weights, thousandths
    (f16 keys and values) without.
    """
    types = "F32" if mode == "full" else "Q4_1"
    path = tiny_gguf(tmp_path, family, types)  # type: ignore[arg-type]
    changes: dict[str, Any] = {"mode": mode}
    if mode == "lora":
        changes["lora"] = LoraSpec(4, 4.0, ("all-linear",))
    found, batch = [], Batch.of(*texts())
    for isa in _native.isas():
        for threads in (1, 2):
            learner = opened(path, "cpu", isa, threads, **changes)
            loss = learner.run(batch, 1 / batch.tokens)
            found.append((learner.parameters.gradients.tobytes(), loss))
    assert len(set(found)) == 1
    reference = opened(path, "ref", None, 1, **changes)
    loss = reference.run(batch, 1 / batch.tokens)
    tolerance = 5e-3 if mode == "full" else 0.1
    for mine, theirs in zip(learner.parameters, reference.parameters, strict=True):
        got, want = (p.gradient.data.view(np.float32) for p in (mine, theirs))
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max(), mine.name
    assert abs(loss.total - found[0][1].total) < 1e-3 * loss.total


def test_a_cache_in_f32_is_nearer_to_the_function(tmp_path: Path) -> None:
    """Against the reference in float64 throughout: what is left without f16 are sums of at most 256
    float32 products and their chain through two layers, some 100 eps of the largest gradient.
    """
    path, batch = tiny_gguf(tmp_path, "llama", "F32"), Batch.of(*texts())
    exact = opened(path, "ref64", None, 1)
    exact.run(batch, 1 / batch.tokens)
    errors = {}
    for kv in ("f16", "f32"):
        learner = opened(path, "cpu", None, 2, kv=kv)
        learner.run(batch, 1 / batch.tokens)
        off = learner.parameters.gradients - exact.parameters.gradients
        errors[kv] = float(np.linalg.norm(off) / np.linalg.norm(exact.parameters.gradients))
    assert errors["f32"] < 100 * np.finfo(np.float32).eps
    assert errors["f16"] > 10 * errors["f32"]
