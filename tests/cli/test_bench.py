"""rebar bench: tables for people, one line of JSON for machines, progress apart from both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebar.cli.main import main
from tests.tiny.model import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("model"), "llama", "Q4_1", context_length=256)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REBAR_CACHE", str(tmp_path / "cache"))


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "machine", "--threads", "1", "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert facts["threads"] == 1
    assert {row["pages"] for row in facts["read"]} == {"4 KiB", "2 MiB"}
    assert said.err.splitlines()[0] == "bench: reading, 4 KiB pages, 1 thread"


def test_the_engine_on_the_converted_file(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", "engine", str(model), "--threads", "1", "--repeats", "1", "--only", "decode1"]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["figures"]) == ["decode1"]
    assert facts["model"] in {path.name for path in (tmp_path / "cache/models").iterdir()}
    assert facts["plan_mb"]["mapped"] > 0
    assert main([*words, "--only", "prefill"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[4:]] == [
        "prefill128", "decode1", "prefill512", "prefill2048",
    ]  # fmt: skip
    assert lines[-1].endswith("a context of 256 positions; it takes 2,049")


def test_a_figure_that_is_none(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", str(model), "--only", "rows8"]) == 2
    assert "There are prefill128" in capsys.readouterr().err
