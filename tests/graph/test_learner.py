"""A whole tiny model learns: gradients against central differences, and what must change no bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.errors import InputError, MemoryBudgetError, ShapeError, TrainingError
from rebar.graph.backward import RECOMPUTE
from rebar.graph.batch import NOT_ASKED, Batch
from rebar.graph.explosion import QUIET_STEPS, Quiet
from rebar.graph.gradients import Gradients
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.node import Node, Values
from rebar.graph.parameters import Parameter, fill
from rebar.graph.weights import ModelFile, open_model
from tests.graph import slopes
from tests.tiny import tiny_gguf

FAMILIES = ("llama", "qwen2", "gemma3")
SMALL = LearnerOptions(device="ref", max_rows=32, max_sequences=4, memory=1 << 30)
# Windows that cut, a cap on scores and logits: everything a decoder can have.
GEMMA = {
    "sliding_window": 5,
    "sliding_pattern": 2,
    "logit_softcap": 30.0,
    "attention_softcap": 20.0,
}


def tiny(folder: Path, family: str) -> ModelFile:
    model = open_model(tiny_gguf(folder, family, "F32", seed=1))
    changes: dict[str, Any] = GEMMA if family == "gemma3" else {}
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **changes))


def texts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(3, 500, n).tolist() for n in lengths]


def learner(model: ModelFile, **changes: Any) -> Learner:
    return open_learner(model, dataclasses.replace(SMALL, **changes))


def flat(of: Parameter, what: str) -> np.ndarray:
    return slopes.flat(of.value if what == "value" else of.gradient)


def check_slopes(model: Learner) -> None:
    """Every parameter's gradient is the slope of the loss, in float64 throughout."""
    memory, batch = slopes.wide_memory(model.device), Batch.of(*texts(9, 1, 13))
    model.run(batch, 1.0)

    def losses() -> slopes.F64:
        model.evaluate(batch)
        return memory.wide(model.program.losses.data[: batch.tokens])

    slopes.check_parameters(memory, model.parameters, losses)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_s_gradient_is_the_slope_of_the_loss(tmp_path: Path, family: str) -> None:
    check_slopes(learner(tiny(tmp_path, family), device="ref64"))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_s_gradient_over_quantized_weights_is_the_slope_of_the_loss(
    tmp_path: Path, family: str
) -> None:
    """Weights are read as the values they stand for; that activations are rounded to int8 counts
    as the identity, so the slope is that of the function without.
    """
    model = open_model(tiny_gguf(tmp_path, family, "Q4_1"))
    spec = LoraSpec(4, 6.0, ("all-linear",))
    opened = learner(model, mode="lora", lora=spec, device="ref64")
    random = np.random.default_rng(3)
    for parameter in opened.parameters:
        if "lora_B" in parameter.name:  # zero at first, and A would have no gradient
            fill(
                parameter.value,
                random.standard_normal(parameter.shape, np.float32) * np.float32(0.125),
            )
    check_slopes(opened)


@pytest.mark.parametrize("fused", [True, False])
def test_what_is_computed_again_changes_no_bit_and_takes_less(tmp_path: Path, fused: bool) -> None:
    results, sizes = set(), []
    for recompute in RECOMPUTE:
        model = learner(tiny(tmp_path, "gemma3"), recompute=recompute, fused=fused)
        loss = model.run(Batch.of(*texts(20, 12)), 1 / 30)
        results.add((model.parameters.gradients.tobytes(), loss))
        sizes.append(model.device.pool("arena").budget)
    assert len(results) == 1
    assert sizes[0] > sizes[1] > sizes[2]
    needs = model.arena_bytes()
    assert [model.device.pool("arena").budget >= n for n in needs.values()] == [False, False, True]
    # Room for the least of them and half of what more the others would take.
    taken = sum(pool.budget for pool in model.device.stats().pools)
    tight = taken + (needs["none"] - needs["layer"]) // 2
    with pytest.raises(MemoryBudgetError, match=r"--recompute \(none 1, cheap \d, "):
        learner(tiny(tmp_path, "gemma3"), fused=fused, memory=tight, recompute="none")


def test_windows_cut_into_micro_batches_learn_the_same(tmp_path: Path) -> None:
    """A-j1: one batch of 8, 8 of 1, 4 of 2, 2 of 4, some targets not asked, one sequence not at
    all; the scale is that of the whole window, known before.

    Gradients are float32 sums over 60 rows in other orders: some 60 eps of the largest addend.
    """
    pairs = Batch.of(*texts(1, 9, 3, 14, 2, 5, 21, 5)).sequences
    for _, targets in pairs[1::2]:
        targets[1::3] = NOT_ASKED
    pairs[2][1][:] = NOT_ASKED
    asked = Batch(pairs).tokens
    scale = 1 / asked
    gradients, totals = [], []
    for size in (8, 1, 2, 4):
        model = learner(tiny(tmp_path, "llama"), max_rows=64, max_sequences=8)
        losses = [model.run(Batch(pairs[i : i + size]), scale) for i in range(0, 8, size)]
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        gradients.append(model.parameters.gradients.copy())
        totals.append(total)
    assert {t.tokens for t in totals} == {asked} == {41}
    for gradient, total in zip(gradients, totals, strict=True):
        assert np.abs(gradient - gradients[0]).max() <= 1e-5 * np.abs(gradients[0]).max()
        assert abs(total.total - totals[0].total) <= 1e-6 * totals[0].total


def test_a_batch_without_a_supervised_token_adds_nothing(tmp_path: Path) -> None:
    """A-j2: 0 / 0 once poisoned all weights of a trainer."""
    model = learner(tiny(tmp_path, "llama"))
    model.run(Batch.of(*texts(9)), 1.0)
    before = model.parameters.gradients.copy()
    for batch in (Batch.of([5], [7]), Batch(())):
        assert model.run(batch, 1.0).tokens == 0
        assert model.run(batch, 1.0).mean == 0.0
    assert (model.parameters.gradients == before).all()


def test_pieces_of_the_head_and_unasked_targets(tmp_path: Path) -> None:
    """Targets that are not asked weigh nothing, wherever they stand; a head over pieces of 8 rows
    is the head over all.
    """
    model = learner(tiny(tmp_path, "llama"), max_rows=32)
    whole = Batch.of(*texts(30))
    (ids, targets), masked = whole.sequences[0], np.full(30, -100, np.int32)
    masked[11] = targets[11]
    one = model.run(Batch(((ids, masked),)), 1.0)
    assert one.tokens == 1
    assert 0 < one.total < model.evaluate(whole).total


class Seen:
    """What an observer is told."""

    def __init__(self) -> None:
        self.forward: list[str] = []
        self.backward: list[str] = []

    def after_forward(self, node: Node, values: Values) -> None:
        self.forward.append(node.name)

    def after_backward(self, node: Node, gradients: Gradients) -> None:
        self.backward.append(node.name)


def test_a_watched_run_gives_the_same_bits(tmp_path: Path) -> None:
    model, seen = learner(tiny(tmp_path, "llama")), Seen()
    batch = Batch.of(*texts(9, 4))
    first = model.run(batch, 0.5)
    gradients = model.parameters.gradients.copy()
    model.parameters.zero_gradients()
    assert model.run(batch, 0.5, [seen]) == first
    assert (model.parameters.gradients == gradients).all()
    assert seen.forward == [n.name for n in model.graph.order]
    assert seen.backward[0] == "loss"
    assert seen.backward[-1] == "embedding"


def test_gradients_can_be_seen_clamped_replaced_and_stopped(tmp_path: Path) -> None:
    model, batch, seen = learner(tiny(tmp_path, "llama")), Batch.of(*texts(9)), []
    model.on_gradient("layers.0.after_mlp", lambda g: seen.append(g.copy()))
    model.run(batch, 1.0)
    assert seen[0].shape == (9, 64)
    model.clamp("layers.0.after_mlp", 1e-3)
    model.on_gradient("layers.0.after_mlp", lambda g: seen.append(g.copy()))
    model.run(batch, 1.0)
    assert (seen[1] == seen[0]).all()
    assert (seen[2] == np.clip(seen[0], -np.float32(1e-3), np.float32(1e-3))).all()
    model.release("layers.0.after_mlp")
    model.on_gradient("layers.0.after_mlp", lambda g: np.zeros_like(g))
    model.parameters.zero_gradients()
    model.run(batch, 1.0)
    for parameter in model.parameters:  # nothing came through to what is before
        if ".layers.0." in parameter.name:
            assert not flat(parameter, "gradient").any()
        elif ".layers.1." in parameter.name:
            assert flat(parameter, "gradient").any()


class Spoils:
    """Puts a value into the gradient of a tensor, as a broken node would."""

    def __init__(self, value: float) -> None:
        self.value = np.float32(value)

    def __call__(self, gradient: np.ndarray) -> None:
        gradient[0, 0] = self.value


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_found_at_the_node_that_made_it(tmp_path: Path, value: float) -> None:
    """A norm gets it from a weight on the way forward; a gradient from a node on the way back."""
    model, batches = learner(tiny(tmp_path, "llama")), [Batch.of(*texts(9)), Batch.of(*texts(4))]
    flat(model.parameters["model.layers.1.input_layernorm.weight"], "value")[3] = value
    found = model.find_explosion(batches, 1.0, step=7)
    assert (found.node, found.step) == ("layers.1.attention_norm", 7)
    assert not np.isfinite(found.magnitude)
    assert "step 7: its output at node layers.1.attention_norm" in str(found)
    assert not model.parameters.gradients.any()

    model = learner(tiny(tmp_path, "llama"))
    model.on_gradient("layers.1.after_attention", Spoils(value))
    found = model.find_explosion(batches, 1.0, step=8)
    assert found.node == "layers.1.attention_out"  # fused: the product that also adds the residual


def test_a_gradient_above_a_limit_names_the_node(tmp_path: Path) -> None:
    model, batch = learner(tiny(tmp_path, "llama")), [Batch.of(*texts(9))]
    largest = model.find_explosion(batch, 1.0, step=1)
    assert largest.magnitude > 0
    assert model.find_explosion(batch, 1.0, 1, largest.magnitude).magnitude == largest.magnitude
    model.on_gradient("layers.0.gate_up", Spoils(1e9))
    assert model.find_explosion(batch, 1.0, 1, 1e6).node == "layers.0.gate_up"


def test_a_parameter_without_a_gradient_is_named() -> None:
    quiet, none, some = Quiet(), np.zeros(9000, np.float32), np.zeros(9000, np.float32)
    some[8999] = 1e-30
    for step in range(1, QUIET_STEPS):
        assert quiet.check([("a", some), ("b", none)], step) == ("b",)
    with pytest.raises(TrainingError, match="step 9: no gradient has reached b for 4 steps"):
        quiet.check([("a", some), ("b", none)], 9)
    quiet.check([("a", some), ("b", some)], 10)
    quiet.check([("a", some), ("b", none)], 11)


def test_a_graph_that_is_cut_is_an_error(tmp_path: Path) -> None:
    model = learner(tiny(tmp_path, "llama"))
    with pytest.raises(ShapeError, match=r"no gradient would reach layers\.0\.q"):
        model.stop("layers.0.attention")
    with pytest.raises(ShapeError, match=r"no node or tensor 'layers\.7"):
        model.stop("layers.7.attention")


def test_frozen_parts_cost_nothing(tmp_path: Path) -> None:
    """Only the last layer learns: nothing before it has a gradient, and no launch makes one."""
    everything = learner(tiny(tmp_path, "llama"))
    frozen = ("model.embed_tokens", "model.layers.0.*", "model.norm")
    model = learner(tiny(tmp_path, "llama"), frozen=frozen)
    assert all(".layers.1." in name for name in model.parameters.names)
    assert len(model.program) < 0.8 * len(everything.program)
    assert model.device.pool("arena").budget < everything.device.pool("arena").budget
    batch = Batch.of(*texts(9))
    assert model.run(batch, 1.0) == everything.run(batch, 1.0)
    for parameter in model.parameters:
        same = flat(everything.parameters[parameter.name], "gradient")
        assert (flat(parameter, "gradient") == same).all()
    with pytest.raises(ShapeError, match="nobody needs the gradient"):
        model.clamp("layers.0.after_mlp", 1.0)
    with pytest.raises(InputError, match="all weights are frozen"):
        learner(tiny(tmp_path, "llama"), frozen=("*",))


def test_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = learner(tiny(tmp_path, "llama"), max_context=16)
    for batch, message in (
        (Batch.of(*texts(12, 12, 12)), "rows 36; the learner was opened for 32"),
        (Batch.of(*texts(1, 1, 1, 1, 1)), "sequences 5"),
        (Batch.of(*texts(17)), "context 17"),
        (Batch.of([5, 512]), "outside the vocabulary"),
        (Batch.of([-1, 5]), "outside the vocabulary"),
    ):
        with pytest.raises(InputError, match=message):
            model.run(batch, 1.0)
    with pytest.raises(InputError, match="as many targets as ids"):
        Batch(((np.zeros(2, np.int32), np.zeros(3, np.int32)),))
    with pytest.raises(InputError, match="Give int32"):
        Batch(((np.zeros(2), np.zeros(2)),))  # type: ignore[arg-type]


def test_a_short_batch_may_follow_a_long_one(tmp_path: Path) -> None:
    """The logit rows of the batch before stayed in the step: where they lay beyond the rows of the
    next, native code refused it ("a logit row is outside the step"); the reference did not look.
    """
    model = learner(tiny(tmp_path, "llama"), device="cpu", threads=1)
    long, short = Batch.of(*texts(20)), Batch.of(*texts(3))
    first = model.run(short, 1.0)
    model.run(long, 1.0)
    assert model.run(short, 1.0) == first
