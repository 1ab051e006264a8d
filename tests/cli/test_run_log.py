from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rebar.cli.run_log import LOG, RunLog, draw, read_curves
from rebar.cli.training_display import SHORT_BAR, STOPPING, Display, clock, words
from rebar.cli.training_flags import TrainingFlags
from rebar.cli.training_run import again
from rebar.errors import InputError
from rebar.graph.trainer import StepRecord


def test_the_later_line_of_a_step_counts_and_a_cut_one_does_not(tmp_path: Path) -> None:
    """A run that was killed after step 3 goes on from a checkpoint of step 1."""
    log = RunLog(tmp_path / "new")
    for step, loss in ((1, 4.0), (2, 9.0), (3, math.nan)):
        log.write("step", {"step": step, "loss": loss})
    log.write("evaluation", {"step": 2, "loss": 3.5})
    log.close()
    log = RunLog(tmp_path / "new")
    log.write("step", {"step": 2, "loss": 3.0})
    log.close()
    path = tmp_path / "new" / LOG
    path.write_text(path.read_text() + '{"event": "step", "st')
    assert read_curves(path) == ({1: 4.0, 2: 3.0}, {2: 3.5})
    picture = ET.parse(draw(tmp_path / "new", "a run")).getroot()
    assert picture.tag.endswith("svg")


def test_half_a_line_of_a_killed_run_does_not_swallow_the_next(tmp_path: Path) -> None:
    """The first event of the run that went on was appended to the half line, and lost with it."""
    (tmp_path / LOG).write_bytes('{"event": "step", "é'.encode()[:-1])
    log = RunLog(tmp_path)
    assert log.begun
    log.write("evaluation", {"step": 4, "loss": 1.5})
    log.close()
    assert read_curves(tmp_path / LOG) == ({}, {4: 1.5})


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    first = RunLog(tmp_path)
    with pytest.raises(InputError, match="a run is writing to"):
        RunLog(tmp_path)
    first.close()
    assert not (tmp_path / LOG).exists()  # nothing was written: the folder holds no run
    RunLog(tmp_path).close()


def record(step: int, seconds_left: float | None) -> StepRecord:
    return StepRecord(
        step=step, loss=3.25, tokens=9, rate=1.25e-4, gradient_norm=1.0, seconds=2.0,
        tokens_per_second=12_345.0, left=seconds_left, skipped=0, peak_rss=987_600_000, pools=1,
        samples=(1,),
    )  # fmt: skip


def test_a_narrow_terminal_gets_one_line() -> None:
    """A bar of 10 and a space before it; longer runs than these have the bar cut, not the words."""
    said = words(record(9_999, 10_000.0), 10_000, narrow=True)
    assert said == "step 9999/10000  loss 3.2500  12,345 tokens/s  987.6 MB  2:46:40 left"
    assert len(said) + SHORT_BAR + 1 <= 80
    assert "rate 0.00013" in words(record(1, None), None)
    assert "  12,345 images/s  " in words(record(1, None), None, "images")


def test_elsewhere_than_on_a_terminal_there_are_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last step, and what comes two seconds after the line before."""
    now = [100.0]
    monkeypatch.setattr("rebar.cli.training_display.time.monotonic", lambda: now[0])
    shown, silent = Display(True), Display(False)
    for display in (shown, silent):
        with display.until(3):
            display.evaluating(1, 3)
            now[0] += 2
            display.evaluating(2, 3)
            display.evaluation(0, 4.5)
            for step in (1, 2, 3):
                display.step(record(step, 0.0))
            display.stopping()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == [
        "held out: 2 of 3 batches",
        "step 0",
        "step 1/3",
        "step 3/3",
        STOPPING,
    ]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        RunLog(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0:00"), (59.6, "1:00"), (754, "12:34"), (10930, "3:02:10")]
)
def test_times_for_people(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def test_the_command_that_goes_on_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./run` starts a program that the shell does not find by its name: the command it was told to
    paste ended in "rebar: command not found".
    """
    rebar = tmp_path / "rebar"
    rebar.write_text("")
    rebar.chmod(0o755)
    words = [str(rebar), "finetune", "m", "--out", "a folder"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert again(words) == "rebar finetune m --out 'a folder' --resume"
    monkeypatch.setenv("PATH", "/nowhere")
    assert again(words) == f"{rebar} finetune m --out 'a folder' --resume"
    assert again([str(rebar), "train", "--resume", "x"]) == f"{rebar} train --resume x"
    assert again(["/src/__main__.py", "train"]) == f"{sys.executable} -m rebar train --resume"


def test_several_ranks_go_on_as_several() -> None:
    many = again(["rebar", "train", "x"], ranks=3)
    assert many == "torchrun --nproc-per-node 3 -m rebar train x --resume"


@pytest.mark.parametrize(
    ("asked", "here", "threads"),
    [(None, None, None), (None, "1", None), (None, "x", None), (3, "2", 3), (None, "9999", 1)],
)
def test_ranks_of_one_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, here: str | None, threads: int | None
) -> None:
    """torchrun says how many there are; each once took all cores, and they took them in turns."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert TrainingFlags(threads=asked).own_threads == threads
