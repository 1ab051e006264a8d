"""What a trainer saves and takes back, beyond the bits of a run that goes on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rebar.errors import TrainingError
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.trainer import TrainerOptions
from tests.graph.line import Line, Points, Source, points
from tests.graph.test_trainer import trainer, values


def test_a_held_out_loss_that_is_no_number_is_no_best(tmp_path: Path) -> None:
    """It cannot be written into a checkpoint, and nothing would ever be better."""
    far = Points(np.zeros((1, 5), np.float32), np.full(1, np.inf, np.float32))
    options = TrainerOptions(evaluate_every=1, patience=3)
    made = trainer(Source(points(64)), options, folder=tmp_path, held_out=[far])
    records = list(made.run())
    assert [r.evaluation for r in records] == [math.inf] * 3
    assert made.progress.best is None
    assert CheckpointStore(tmp_path).newest() is not None


def test_a_best_that_is_gone_is_told_and_the_last_stays(tmp_path: Path) -> None:
    """Once nothing was said, and the summary told of a best that was not what was written."""
    told: list[str] = []
    apart = points(32, seed=3)
    held = [Points(apart.x, apart.y * np.float32(0.5))]
    options = TrainerOptions(evaluate_every=2, patience=3)
    source = Source(points(64), epochs=9)
    made = trainer(source, options, folder=tmp_path, held_out=held)
    made.store = CheckpointStore(tmp_path, warn=told.append)
    for record in made.run():
        last = values(made)
        if record.evaluation is not None and record.step > made.progress.best_step:
            for path in made.store.paths("best"):
                path.write_bytes(b"gone")
    assert values(made) == last
    assert f"the parameters of step {made.progress.best_step}, the best, are not in" in told[-1]


def test_a_learner_of_other_settings_does_not_go_on(tmp_path: Path) -> None:
    source = Source(points(8))
    list(trainer(source, folder=tmp_path).run())
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    other = trainer(Source(points(8)))
    other.learner = Line(base="another")
    with pytest.raises(TrainingError, match="learner base was None, is another"):
        other.resume(saved)
