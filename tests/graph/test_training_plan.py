"""What a run says it will take, before it takes it; and what it computes again so that it fits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rebar.errors import MemoryBudgetError
from rebar.graph.backward import RECOMPUTE
from rebar.graph.batch import Batch
from rebar.graph.image_learner import ImageLearnerOptions, open_image_learner
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.memory_plan import SLACK
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.parameters import Parameters, ParameterShape
from rebar.graph.training_plan import TrainingPlan, plan_of
from rebar.graph.weights import ModelFile, open_model
from rebar.hal import Pool
from tests.tiny import tiny_gguf

LORA = LearnerOptions(mode="lora", lora=LoraSpec(4, 8), max_rows=256, max_sequences=8, threads=1)
FULL = dataclasses.replace(LORA, mode="full")
BATCH = Batch.of(list(range(3, 90)), list(range(100, 220)))


def opened(model: ModelFile, options: LearnerOptions, **changes: Any) -> tuple[Learner, list[Any]]:
    """A learner, and what was told on the way: the plan, and every matrix that was read."""
    told: list[Any] = []
    learner = open_learner(
        model,
        dataclasses.replace(options, **changes),
        progress=lambda *progress: told.append(progress),
        planned=told.append,
    )
    return learner, told


@pytest.mark.parametrize("options", [LORA, FULL], ids=["lora", "full"])
def test_the_plan_is_told_first_and_is_what_is_taken(
    tmp_path: Path, options: LearnerOptions
) -> None:
    learner, told = opened(open_model(tiny_gguf(tmp_path)), options, memory=1 << 30)
    plan = told[0]
    assert isinstance(plan, TrainingPlan)
    assert [what for what, *_ in told[1:]] == ["weights"] * (len(told) - 1)
    assert len(told) > 2
    planned = {entry.pool: entry.nbytes for entry in plan.entries}
    taken = {pool.name: pool.budget for pool in learner.device.stats().pools}
    assert set(planned) == set(taken)
    for name, nbytes in planned.items():
        assert nbytes <= taken[name] <= nbytes + 2 * SLACK
    assert plan.lines()[-1].startswith("recompute none: all fits into ")


def test_what_learns_is_not_counted_as_frozen_weights(tmp_path: Path) -> None:
    """A fully trained model was charged for packed copies of weights that nobody made."""
    model = open_model(tiny_gguf(tmp_path))
    frozen, full = (opened(model, o, memory=1 << 30)[1][0] for o in (LORA, FULL))
    pooled = [{e.pool: e.nbytes for e in plan.entries}["weights"] for plan in (frozen, full)]
    assert pooled[0] > 100_000
    assert pooled[1] == 0


def test_the_first_way_that_fits_is_taken_and_changes_no_bit(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path))
    free, told = opened(model, LORA, memory=1 << 30)
    beside = (1 << 30) - free.left
    found = {}
    for recompute, nbytes in told[0].arenas.items():
        learner, told = opened(model, LORA, memory=beside + nbytes + SLACK)
        learner.run(BATCH, 1 / BATCH.tokens)
        found[learner.recompute] = learner.parameters.gradients.tobytes()
        assert learner.recompute == recompute == told[0].recompute
    assert tuple(found) == RECOMPUTE
    assert len(set(found.values())) == 1
    assert "keeping more does not fit" in told[0].lines()[-1]


def test_what_fits_in_no_way_is_refused_in_numbers_before_anything_is_read(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path))
    free, told = opened(model, LORA, memory=1 << 30)
    beside, least = (1 << 30) - free.left, told[0].arenas["layer"]
    told.clear()
    options = dataclasses.replace(LORA, memory=beside + least // 2)
    with pytest.raises(
        MemoryBudgetError, match=r"--batch-tokens.*none \d+, cheap \d+, layer \d+ MB"
    ) as caught:
        open_learner(model, options, progress=lambda *p: told.append(p), planned=told.append)
    assert caught.value.needed == least
    assert caught.value.available == least // 2
    with pytest.raises(MemoryBudgetError, match=r"before its first activation \(parameters"):
        open_learner(model, dataclasses.replace(FULL, memory=1 << 20), planned=told.append)
    assert told == []


def test_parameters_cost_nothing_until_they_are_written() -> None:
    """Values, gradients and states were zeroed at once: a run that is then refused for its arena
    had taken all of that memory, and SGD never lets go of a state it does not have.
    """
    shapes = [ParameterShape("w", (4 << 20,), decay=True)]
    pool = Pool("parameters", Parameters.nbytes(shapes))
    before = resident()
    parameters = Parameters(pool, shapes)
    assert resident() - before < 16 << 20
    parameters.v[:] = 1
    assert resident() - before >= 16 << 20


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_an_image_classifier_has_a_plan() -> None:
    config = ConvNetConfig(8, 8, 1, ("a", "b"), (16,), 0.0)
    learner = open_image_learner(config, ImageLearnerOptions(threads=1, memory=64 << 20))
    plan = plan_of(learner)
    assert {entry.pool for entry in plan.entries} == {"parameters", "images", "arena"}
    assert plan.lines()[-1].startswith("recompute none: all fits")
