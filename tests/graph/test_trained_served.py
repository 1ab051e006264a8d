"""What was trained is what is served: the adapter of a learner, written and read as a PEFT folder,
gives the logits of the learner's own evaluation, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rebar.graph import (
    ModelFile,
    Node,
    Row,
    Runner,
    RunnerOptions,
    SamplingParams,
    Sequence,
    Values,
    load_runner,
)
from rebar.graph.batch import Batch
from rebar.graph.gradients import Gradients
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora import LoraSpec, read_adapter, write_adapter
from rebar.graph.nodes import CrossEntropy
from rebar.graph.parameters import dense
from rebar.graph.weights import WeightType, open_model
from tests.graph.harness import F32
from tests.tiny import tiny_gguf
from tests.tiny.adapter import tiny_adapter

RANDOM = np.random.default_rng(11)
TEXTS = [RANDOM.integers(3, 500, n).astype(np.int32) for n in (40, 23, 7)]
SPECS = [
    LoraSpec(4, 8.0, ("all-linear",)),
    LoraSpec(3, 6.0, ("q_proj", "v_proj"), rslora=True),
    LoraSpec(20, 4.0, ("down_proj", "o_proj")),
]


class Logits:
    """Keeps the logits of every piece of rows as the loss reads them."""

    def __init__(self) -> None:
        self.seen: list[F32] = []

    def after_forward(self, node: Node, values: Values) -> None:
        if isinstance(node, CrossEntropy):
            self.seen.append(values.rows(node.logits).data.copy())

    def after_backward(self, node: Node, gradients: Gradients) -> None:
        pass


def trained(model: ModelFile, spec: LoraSpec, threads: int = 2) -> tuple[Learner, F32]:
    """After three steps down the gradient; and the logits of all positions that have a target."""
    options = LearnerOptions(
        mode="lora", lora=spec, max_rows=128, max_sequences=4, threads=threads, memory=256 << 20
    )
    learner, batch, watch = open_learner(model, options), Batch.of(*TEXTS), Logits()
    asked = sum(len(text) - 1 for text in TEXTS)
    parameters = learner.parameters
    losses = []
    for _ in range(3):
        parameters.zero_gradients()
        losses.append(learner.run(batch, 1 / asked).mean)
        parameters.values[:] -= np.float32(0.3) * parameters.gradients
    assert losses[2] < losses[0], "void: nothing was learned"
    learner.run(batch, 0.0, [watch])
    return learner, np.concatenate(watch.seen)[:asked]


def served(runner: Runner, slot: int, text: np.ndarray[tuple[int], np.dtype[np.int32]]) -> F32:
    """Logits of all positions but the last, cut into steps of some length."""
    s = Sequence.of(text.tolist(), len(text) + 1, SamplingParams(temperature=0.0))
    s.blocks, s.adapter = runner.kv.allocate(runner.kv.blocks_for(len(text) + 1)), slot
    found = []
    for first in range(0, len(text) - 1, 16):
        count = min(16, len(text) - 1 - first)
        runner.step([Row(s, first, count, range(first, first + count))])
        found.append(runner.logits(count))
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("family", "types"), [("llama", "Q8_0"), ("qwen2", "Q4_1"), ("gemma3", "F32")]
)
@pytest.mark.parametrize("spec", SPECS, ids=["all", "q and v", "down and out"])
def test_the_served_bits_are_the_trained_ones(
    tmp_path: Path, family: str, types: WeightType, spec: LoraSpec
) -> None:
    """Trained on whole sequences in one step, on other threads, in slot 0 of a table of its own
    rank; served through the file, in another slot, beside another adapter, cut into steps.
    """
    model = open_model(tiny_gguf(tmp_path, family, types, head_dim=32))
    learner, logits = trained(model, spec)
    matrices = {p.name: dense(p.value) for p in learner.parameters}
    write_adapter(tmp_path / "out", spec, matrices, base="tiny")
    options = RunnerOptions(threads=1, memory=64 << 20, max_rows=48, max_adapters=2, max_rank=32)
    runner = load_runner(model, options)
    assert runner.adapters is not None
    other = tiny_adapter(tmp_path / "other", model.config, r=8, seed=4)
    runner.adapters.load(read_adapter(other, model.config))
    slot = runner.adapters.load(read_adapter(tmp_path / "out", model.config))
    got = np.concatenate([served(runner, slot, text) for text in TEXTS])
    assert got.tobytes() == logits.tobytes()
    base = np.concatenate([served(runner, -1, text) for text in TEXTS])
    assert base.tobytes() != logits.tobytes(), "void: the adapter does nothing"
