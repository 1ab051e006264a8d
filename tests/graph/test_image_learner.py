"""An image classifier learns: gradients, what must change no bit, and digits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.data import DataPipeline
from rebar.dataflow.images import (
    Augment,
    DecodeImages,
    ImageBatches,
    held_out,
    open_images,
    split,
)
from rebar.errors import InputError, ShapeError
from rebar.graph.backward import RECOMPUTE
from rebar.graph.image_batch import ImageBatch
from rebar.graph.image_learner import ImageLearner, ImageLearnerOptions, open_image_learner
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.optimizer import AdamW, Optimizer
from rebar.graph.schedules import Schedule
from rebar.graph.trainer import StepRecord, Trainer, TrainerOptions
from tests.graph import slopes
from tests.graph.harness import DEVICES

DIGITS = Path(__file__).parents[1] / "data" / "digits.npz"
SMALL = ConvNetConfig(6, 6, 3, ("a", "b", "c"), stages=(8, 36), dropout=0.3)


def learner(config: ConvNetConfig = SMALL, device: str = "ref", **changes: object) -> ImageLearner:
    kind, *rest = device.split(":")
    isa, threads = (rest[0], int(rest[1])) if rest else (None, 1)
    options = ImageLearnerOptions(
        max_rows=8,
        device=kind,
        isa=isa,
        threads=threads,
        memory=256 << 20,
        **changes,  # type: ignore[arg-type]
    )
    return open_image_learner(config, options)


def batch(count: int = 6, first: int = 0, key: tuple[int, int] = (3, 4)) -> ImageBatch:
    random = np.random.default_rng(1)
    images = random.standard_normal((20, SMALL.values), dtype=np.float32)
    labels = random.integers(0, 3, 20).astype(np.int32)
    part = slice(first, first + count)
    return ImageBatch(images[part], labels[part], key, first)


def test_every_parameter_s_gradient_is_the_slope_of_the_loss() -> None:
    """In float64 throughout."""
    model = learner(device="ref64")
    memory = slopes.wide_memory(model.device)
    model.run(batch(), 1.0)

    def losses() -> slopes.F64:
        model.run(batch(), 0.0)
        return memory.wide(model.program.losses.data[:6])

    slopes.check_parameters(memory, model.parameters, losses)


def test_all_instruction_sets_and_threads_learn_the_same_bits() -> None:
    found = set()
    for device in DEVICES[1:]:
        model = learner(device=device)
        loss = model.run(batch(), 0.25)
        found.add((model.parameters.gradients.tobytes(), loss))
    assert len(found) == 1


def test_what_is_computed_again_changes_no_bit_and_takes_less() -> None:
    results, sizes = set(), []
    for recompute in RECOMPUTE:
        model = learner(recompute=recompute)
        loss = model.run(batch(), 1.0)
        results.add((model.parameters.gradients.tobytes(), loss))
        sizes.append(model.device.pool("arena").budget)
    assert len(results) == 1
    assert sizes[2] < sizes[0]


def test_a_window_cut_into_batches_drops_and_learns_the_same() -> None:
    """Rows are addressed in their window. Sums of float32 gradients go in another order only where
    a batch ends: none, for they go over images ascending from what stands there.
    """
    whole, cut, otherwise = (learner(device="cpu") for _ in range(3))
    loss = whole.run(batch(8), 1.0)
    parts = [cut.run(batch(3, 0), 1.0), cut.run(batch(5, 3), 1.0)]
    assert math.isclose(sum(p.total for p in parts), loss.total, rel_tol=1e-6)
    assert (whole.parameters.gradients == cut.parameters.gradients).all()
    otherwise.run(batch(8, key=(3, 5)), 1.0)
    assert (whole.parameters.gradients != otherwise.parameters.gradients).any()


def test_evaluation_is_the_network_as_it_serves() -> None:
    """Nothing drops, whatever the key; the loss is that of the served logits."""
    model = learner(device="cpu")
    loss = model.evaluate(batch())
    assert loss == model.evaluate(batch(key=(9, 9)))
    logits = model.classifier.classify(batch().images).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(6), batch().labels]).sum()
    assert math.isclose(loss.total, expected, rel_tol=1e-12)
    assert model.right(batch()) == int((logits.argmax(axis=1) == batch().labels).sum())


def test_gradients_can_be_watched_and_stopped() -> None:
    model, seen = learner(), []
    model.on_gradient("stages.0.pool", lambda g: seen.append(g.copy()))
    model.run(batch(), 1.0)
    assert seen[0].shape == (6, 3 * 3 * 8)
    with pytest.raises(ShapeError, match=r"stages\.0\.conv0\.weight"):
        model.stop("stages.0.pool")


def test_the_node_that_made_what_is_no_number_is_named() -> None:
    model, bad = learner(), batch()
    bad.images[2, 5] = np.inf
    error = model.find_explosion([bad], 1.0, 7)
    assert (error.node, error.step) == ("stages.0.conv0", 7)
    assert not model.parameters.gradients.any()


def test_batches_that_do_not_fit_are_refused() -> None:
    model, good = learner(), batch(3)
    with pytest.raises(InputError, match="opened for 8"):
        model.run(batch(9), 1.0)
    with pytest.raises(InputError, match="images of 5 values"):
        model.run(ImageBatch(good.images[:, :5].copy(), good.labels), 1.0)
    for wrong in (3, -1):
        with pytest.raises(InputError, match=r"labels outside 0 \.\. 2"):
            model.evaluate(ImageBatch(good.images, np.full(3, wrong, np.int32)))
    with pytest.raises(InputError, match="Give float32"):
        ImageBatch(good.images.astype(np.float64), good.labels)
    with pytest.raises(InputError, match="a label for each image"):
        ImageBatch(good.images, good.labels[:2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ()}, "cannot be"),
        ({"height": 0}, "cannot be"),
        ({"channels": 2}, "1 or 3 channels"),
        ({"height": 4096, "width": 4096}, "pixels"),
        ({"labels": ("a",)}, "two or more labels"),
        ({"labels": ("a", "a")}, "name of its own"),
        ({"dropout": 1.0}, "no share below 1"),
        ({"low": 2.0}, "cannot be"),
    ],
)
def test_networks_that_cannot_be(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"height": 8, "width": 8, "channels": 1, "labels": ("a", "b")}
    with pytest.raises(ShapeError, match=message):
        ConvNetConfig(**(fields | changes))  # type: ignore[arg-type]


Begun = tuple[ImageLearner, Iterator[StepRecord], Trainer[ImageBatch]]


def digits(steps: int) -> Begun:
    learn, held = split(open_images(DIGITS), 0.2, seed=0)
    config = ConvNetConfig(8, 8, 1, learn.labels, stages=(32, 64))
    model = open_image_learner(config, ImageLearnerOptions(threads=2, memory=256 << 20))
    pipeline = DataPipeline(learn, [DecodeImages(8, 8, 1, learn.where), Augment(0)], seed=0)
    source = ImageBatches(pipeline, config, samples=64, rows=64, epochs=50)
    optimizer = Optimizer(model.device, model.parameters, AdamW(), 1.0)
    schedule = Schedule("cosine", 3e-3, steps, 10)
    options = TrainerOptions(steps=steps)
    trainer = Trainer(
        model, optimizer, schedule, source, options, held_out=held_out(held, config, 64)
    )
    return model, trainer.run(), trainer


def test_digits_are_learned() -> None:
    """The promise of the README, 97 % of 359 held-out images, in half of its steps. Every bit is
    fixed, so no run has less.
    """
    model, records, trainer = digits(240)
    last = list(records)[-1]
    right = sum(model.right(b) for b in trainer.held_out)
    assert right >= 0.97 * 359, right
    assert last.evaluation is not None
    assert last.evaluation < 0.15


def test_two_runs_are_the_same_run() -> None:
    found = set()
    for _ in range(2):
        model, records, _ = digits(5)
        losses = tuple(r.loss for r in records)
        found.add((losses, model.parameters.values.tobytes()))
    assert len(found) == 1
