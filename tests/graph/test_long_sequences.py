"""Sequences long enough that attention's gradient is cut in parts (native/rebar_training.h): what
must change no bit, and what they cost.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rebar import _native
from rebar.errors import ShapeError
from rebar.graph.backward import RECOMPUTE
from rebar.graph.batch import Batch
from rebar.graph.learner import Learner, LearnerOptions, open_learner
from rebar.graph.weights import open_model
from rebar.hal import KVFormat, Rows
from rebar.hal.launches_backward import AttentionGradient
from tests.graph.harness import storage
from tests.tiny import tiny_gguf

EPS = float(np.finfo(np.float32).eps)
LONG, SHORT, CONTEXT = 530, 40, 600


def learner(folder: Path, **changes: object) -> Learner:
    """Layers with windows beside others."""
    path = tiny_gguf(folder, "gemma3", "F32", seed=1, context_length=CONTEXT)
    fields: dict[str, object] = {"threads": 1, "memory": 1 << 30, "max_rows": CONTEXT} | changes
    return open_learner(open_model(path), LearnerOptions(**fields))  # type: ignore[arg-type]


def ids(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(count).integers(3, 500, count)]


def gradients(model: Learner, *lengths: int) -> np.ndarray:
    model.run(Batch.of(*(ids(n) for n in lengths)), 1.0)
    return model.parameters.gradients.copy()


def test_threads_instruction_sets_and_recomputation_change_no_bit(tmp_path: Path) -> None:
    found = {
        gradients(learner(tmp_path, isa=isa, threads=threads), LONG, SHORT).tobytes()
        for isa in _native.isas()
        for threads in (1, 3)
    }
    found |= {
        gradients(learner(tmp_path, recompute=choice), LONG, SHORT).tobytes()
        for choice in RECOMPUTE
    }
    assert len(found) == 1


def test_a_sequence_adds_what_it_adds_alone(tmp_path: Path) -> None:
    """Beside the reference, which knows no parts; and a short one's bits do not depend on how long
    others may be. Sums of 570 rows in float32: as many eps of the largest element.
    """
    ours, exact = (learner(tmp_path, device=d, threads=2) for d in ("cpu", "ref"))
    got, want = (gradients(model, LONG, SHORT) for model in (ours, exact))
    assert np.abs(got - want).max() <= (LONG + SHORT) * EPS * np.abs(want).max()
    ours.parameters.zero_gradients()
    narrow = learner(tmp_path, max_context=SHORT)
    assert (gradients(ours, SHORT) == gradients(narrow, SHORT)).all()


def test_only_who_may_meet_long_sequences_has_room_for_parts(tmp_path: Path) -> None:
    """One part beside the first, [dk | dv] of the 2 kv heads of 16: 256 bytes a row."""
    assert [_native.attention_parts(n) for n in (511, 512, 767, 768, 5000)] == [0, 1, 1, 2, 3]
    rooms = {
        context: [n.rooms for n in learner(tmp_path, max_context=context).graph.order if n.rooms]
        for context in (500, CONTEXT)
    }
    assert rooms[500] == []
    (own,), *_ = rooms[CONTEXT]
    assert own.width == 64
    q, kv = Rows(np.zeros((4, 32), np.float32)), Rows(np.zeros((4, 16), np.float32))
    cache = storage(2, 1, 16, KVFormat.F32)
    with pytest.raises(ShapeError, match="width of parts differs: 0, 32"):
        AttentionGradient(q, cache, q, q, q, kv, kv, 2, 512, 1.0).check()
