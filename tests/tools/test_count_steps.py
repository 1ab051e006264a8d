"""The guard by instruction counts: what passes, what does not, and that it says how to go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.count_steps import complaints, remarks

from tools import count_steps

RECORDED = {"prompt": 2_000_000, "one": 100_000, "eight": 500_000}


def test_a_tenth_more_passes_and_a_bit_more_does_not() -> None:
    assert complaints(RECORDED, RECORDED) == []
    assert complaints(RECORDED | {"one": 110_000}, RECORDED) == []
    (line,) = complaints(RECORDED | {"one": 110_001}, RECORDED)
    assert line.startswith("step one: 110,001 instructions, +10% over the 100,000 on record")


def test_rows_must_share_work_even_without_a_record() -> None:
    assert complaints(RECORDED, None) == []
    (line,) = complaints(RECORDED | {"eight": 701_000}, None)
    assert "eight rows cost 7.0 x one row" in line
    (line,) = complaints(RECORDED | {"prompt": 64 * 81_000}, None)
    assert "a row of a prompt costs 0.81 x one" in line


def test_a_missing_record_and_better_counts_are_said() -> None:
    assert remarks(RECORDED, None, "gcc 99") == ["no record for gcc 99: ratios alone were checked"]
    assert remarks(RECORDED, RECORDED, "gcc 12") == []
    (line,) = remarks(RECORDED | {"eight": 400_000}, RECORDED, "gcc 12")
    assert "(eight)" in line


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run(binary: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, count_steps.__file__, str(binary), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_machine_without_the_instruction_set_is_told(tmp_path: Path) -> None:
    done = run(script(tmp_path / "binary", "exit 3"))
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "left out")


def test_a_regression_fails_and_says_how_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole script with a valgrind of its own: twice the instructions of any record."""
    binary = script(tmp_path / "binary", "echo gcc 12")
    script(tmp_path / "valgrind", 'echo "==1== Collected : 900000000" >&2')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = run(binary)
    assert done.returncode == 1
    for step in count_steps.STEPS:
        assert f"step {step}: 900,000,000 instructions" in done.stdout
    assert f"python tools/count_steps.py {binary} --record" in done.stdout


def test_a_step_that_fails_is_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "valgrind", 'echo "==1== Collected : 0" >&2')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(subprocess.CalledProcessError):
        count_steps.count(tmp_path / "binary", "one")
