"""Hidden states instead of ids: the same bits beside anything, and those of the specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.graph import Row, Runner, RunnerOptions, Sampled, load_runner
from rebar.graph.weights import open_model
from tests.graph.test_runner import FAMILIES, IDS, SMALL, open_tiny, sequence
from tests.tiny.model import tiny_gguf, tiny_model


def states(runner: Runner, ids: list[int], *, chunk: int = 1000) -> list[Sampled]:
    """Of every position, `chunk` positions a step."""
    s, answers = sequence(runner, ids), list[Sampled]()
    for first in range(0, len(ids), chunk):
        count = min(chunk, len(ids) - first)
        answers += runner.step([Row(s, first, count, range(first, first + count), hidden=True)])[0]
    runner.kv.release(s.blocks)
    return answers


def floats(answers: list[Sampled]) -> NDArray[np.float32]:
    return np.array([np.frombuffer(answer.hidden, np.float32) for answer in answers])


@pytest.mark.parametrize("family", FAMILIES)
def test_they_equal_the_specification_to_rounding(tmp_path: Path, family: str) -> None:
    """As logits do (test_runner.py): f16 keys and values may move by one step of 2^-11."""
    model = open_tiny(tmp_path, family)
    got = floats(states(load_runner(model, SMALL), IDS))
    slow = RunnerOptions(device="ref", memory=64 << 20, max_rows=48)
    want = floats(states(load_runner(model, slow), IDS))
    assert got.shape == (len(IDS), 64)
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_head_times_them(tmp_path: Path, family: str) -> None:
    """They are what the head reads. In float32 the product of 64 terms rounds 64 times at most."""
    runner = load_runner(open_model(tiny_gguf(tmp_path, family)), SMALL)
    s = sequence(runner, IDS)
    runner.step([Row(s, 0, len(IDS), range(len(IDS)))])
    logits = runner.logits(len(IDS))
    hidden = floats(states(runner, IDS))
    head = _head(family)
    product = hidden.astype(np.float64) @ head.astype(np.float64).T
    bound = 64 * 2**-24 * (np.abs(hidden) @ np.abs(head).T).max()
    assert np.abs(product - logits).max() <= bound


def _head(family: str) -> NDArray[np.float32]:
    model = tiny_model(family)
    name = "embed.weight" if model.config.tied_head else "head.weight"
    return model.values[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_neighbours_and_fusion_change_no_bit(tmp_path: Path, family: str) -> None:
    """100 positions with room for 64 at a time, beside rows that sample and rows that want
    nothing: the same bytes as one position a step.
    """
    model = open_tiny(tmp_path, family, "Q8_0")
    runner = load_runner(model, RunnerOptions(memory=64 << 20, max_rows=256))
    ids = [int(i) for i in np.random.default_rng(1).integers(3, 500, 100)]
    alone = states(runner, ids, chunk=1)
    assert states(runner, ids) == alone
    assert states(runner, ids, chunk=33) == alone
    assert states(load_runner(model, RunnerOptions(memory=64 << 20), fused=False), ids) == alone
    embedded, talker, reader = (sequence(runner, ids) for _ in range(3))
    rows = [
        Row(talker, 0, 70, range(69)),
        Row(embedded, 0, 100, range(100), hidden=True),
        Row(reader, 0, 5, range(0)),
    ]
    scores, mixed, nothing = runner.step(rows)
    assert mixed == alone
    assert nothing == []
    assert scores == runner.step([Row(talker, 0, 70, range(69))])[0]


def test_watched_equals_compiled(tmp_path: Path) -> None:
    """Node by node the head runs as well; the states must outlive it."""
    runner = load_runner(open_tiny(tmp_path, "gemma3", "Q8_0"), SMALL)
    s = sequence(runner, IDS)
    row = Row(s, 0, 40, range(40), hidden=True)
    assert runner.step([row], observers=[]) == runner.step([row])


def test_what_is_no_number_is_an_error_of_its_own_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(open_tiny(tmp_path), SMALL)
    s = sequence(runner, IDS)
    good = runner.step([Row(s, 0, 8, range(8), hidden=True)])[0]
    real = runner._run

    def poison(*given: Any) -> None:
        real(*given)
        runner._pass.hidden[3, 5] = np.nan

    monkeypatch.setattr(runner, "_run", poison)
    bad = runner.step([Row(s, 0, 8, range(8), hidden=True)])[0]
    assert bad[3].error is not None
    assert bad[:3] + bad[4:] == good[:3] + good[4:]
