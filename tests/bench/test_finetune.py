"""The bench of LoRA steps: what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.harness import Command, Facts

from bench import finetune


def test_it_prints_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed a list of lines, brackets and all."""

    def rounds(engines: dict[str, Command], _count: int) -> dict[str, list[Facts]]:
        assert list(engines) == ["rebar"], "no peer is here"
        return {
            "rebar": [{"tokens_s": 900.0, "peak_mb": 900.0}] * 3,
            "torch": [{"tokens_s": 300.0, "peak_mb": 3000.0}],
        }

    monkeypatch.setattr(finetune, "rounds", rounds)
    monkeypatch.setattr(sys, "argv", ["finetune", str(tmp_path), "model.gguf", "folder"])
    finetune.main()
    said = capsys.readouterr().out.splitlines()
    assert said[2:] == [
        "| LoRA step, tokens/s | at least 1.5 x torch | 900 | 300 | 3.00 x | yes |",
        "| LoRA step, peak MB | at most 0.5 x torch | 900 | 3,000 | 0.30 x | yes |",
    ]
