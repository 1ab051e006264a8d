from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rebar.cli.run_log import LOG, RunLog, draw, read_curves
from rebar.cli.training_display import clock
from rebar.cli.training_flags import TrainingFlags
from rebar.cli.training_run import again
from rebar.errors import InputError


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


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        RunLog(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0:00"), (59.6, "1:00"), (754, "12:34"), (10930, "3:02:10")]
)
def test_times_for_people(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def test_the_command_that_goes_on_can_be_pasted() -> None:
    command = again(["/bin/rebar", "finetune", "m", "--out", "a folder"])
    assert command == "rebar finetune m --out 'a folder' --resume"
    assert again(["rebar", "train", "--resume", "x"]) == "rebar train --resume x"
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
