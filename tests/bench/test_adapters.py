"""The table of what adapters cost: every kind of work with every kind of adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import tiny_gguf

from bench import adapters
from rebar.graph.weights import open_model


def test_a_table_of_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "DEPTH", 20)
    monkeypatch.setattr(adapters, "PROMPT", 64)
    best = adapters.measured(open_model(tiny_gguf(tmp_path)), threads=1, rounds=1)
    assert list(best) == ["1 rows", "8 rows", "32 rows", "prompt of 64"]
    assert len(best["32 rows"]) == 5
    assert list(best["1 rows"]) == ["none", "r 8, q v", "r 16, all"], "four need four rows"
    assert all(took > 0 for times in best.values() for took in times.values())
    assert len(adapters.table(best)) == 6
