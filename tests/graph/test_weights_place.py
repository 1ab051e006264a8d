"""Where weights are read: in the mapped file, or in a copy with huge pages; the same bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.models import convert
from rebar.graph import ModelFile, RunnerOptions, load_runner, loader, plan_memory
from rebar.graph.weights import open_model
from rebar.hal import huge_pages
from tests.graph.test_runner import IDS, SMALL, logits
from tests.tiny import tiny_gguf


@pytest.fixture(params=["llama", "qwen2"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> ModelFile:
    target = tmp_path / "tiny.rebar"
    convert(tiny_gguf(tmp_path, request.param, "Q4_1"), target)
    return open_model(target)


def test_a_copy_gives_the_same_bits_and_is_planned(packed: ModelFile) -> None:
    mapped = load_runner(packed, dataclasses.replace(SMALL, weights="mapped"))
    copied = load_runner(packed, dataclasses.replace(SMALL, weights="copied"))
    assert np.array_equal(logits(mapped, IDS), logits(copied, IDS))
    assert mapped.plan.of("mapped") > 0 == copied.plan.of("mapped")
    assert copied.plan == plan_memory(packed, dataclasses.replace(SMALL, weights="copied"), 0)
    used = {p.name: p.used for p in copied.device.stats().pools}
    assert used["weights"] >= mapped.plan.of("mapped")
    assert used["weights"] <= copied.plan.of("weights") + (64 << 10)


@pytest.mark.parametrize(
    ("file_has_them", "system_has_them", "expected"),
    [(True, True, False), (False, True, True), (False, False, False)],
)
def test_auto_copies_only_where_that_gains_huge_pages(
    packed: ModelFile,
    monkeypatch: pytest.MonkeyPatch,
    file_has_them: bool,
    system_has_them: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(huge_pages, "hold_mapped", lambda _view: file_has_them)
    monkeypatch.setattr(huge_pages, "system_has_huge_pages", lambda: system_has_them)
    assert loader.must_copy(packed, RunnerOptions()) is False  # a tiny file gains nothing
    monkeypatch.setattr(huge_pages, "LEAST", 1)
    assert loader.must_copy(packed, RunnerOptions()) is expected
    assert loader.must_copy(packed, RunnerOptions(weights="mapped")) is False
    assert loader.must_copy(packed, RunnerOptions(weights="copied")) is True
    runner = load_runner(packed, SMALL)
    assert (runner.plan.of("mapped") == 0) is expected
    assert runner.plan.total <= plan_memory(packed, SMALL, 0).total + (64 << 10)


def test_a_file_that_must_be_packed_is_neither(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path, "llama", "Q8_0"))
    assert loader.must_copy(model, RunnerOptions(weights="copied")) is False
