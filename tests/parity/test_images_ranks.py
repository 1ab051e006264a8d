"""`rebar train-images` in several processes, bare and under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rebar.cli.run_log import LOG, read_curves
from rebar.cli.training_run import CHECKPOINTS
from rebar.graph.checkpoint import CheckpointStore
from tests.cli.test_resume import cut, end_of, step_of
from tests.dataflow.images.test_images import DIGITS
from tests.parity.rank_verbs import ended, free_port, start_ranks

pytestmark = pytest.mark.parity
# 1,438 images to learn from in windows of 90: 16 of them, the last with 88.
WORDS = ["train-images", str(DIGITS), "--stages", "8", "--threads", "1", "--batch", "90"]
WORDS += ["--batch-tokens", "50", "--json", "--checkpoint-every", "1", "--keep", "99"]


def test_three_processes_train_one_network(tmp_path: Path) -> None:
    """A-j5: sixteen windows an epoch for three: the sixth round has one. A second time it is the
    same to the bit. Without dropout, whose draws are a window's, the curve is that of one process
    with windows three times as large, up to the order of sums, until the first epoch's uneven end.
    """
    words = [*WORDS, "--epochs", "2", "--dropout", "0", "--warmup", "3"]
    for name in ("a", "b"):
        done = ended(start_ranks(tmp_path, [*words, "--out", str(tmp_path / name / "run")], 3))
        assert [code for code, *_ in done] == [0, 0, 0], done
        assert [said[1:] for said in done[1:]] == [("", "")] * 2
        assert json.loads(done[0][1])["steps"] == 11
        assert json.loads(done[0][1])["learned_images"] == 2 * 1438
    first, second = (tmp_path / name / "run" for name in ("a", "b"))
    assert end_of(first) == end_of(second)
    assert (first / "model.rebar").read_bytes() == (second / "model.rebar").read_bytes()
    large = ["270" if word == "90" else word for word in words]
    (alone,) = ended(start_ranks(tmp_path, [*large, "--out", str(tmp_path / "one")], 1))
    assert alone[0] == 0, alone
    ours, theirs = read_curves(first / LOG)[0], read_curves(tmp_path / "one" / LOG)[0]
    np.testing.assert_allclose(
        [ours[step] for step in range(1, 6)], [theirs[step] for step in range(1, 6)], rtol=1e-4
    )


def test_ranks_that_go_on_are_the_ranks_never_stopped(tmp_path: Path) -> None:
    """In the middle of an epoch, and in the round that is not whole."""
    words = [*WORDS, "--epochs", "2", "--dropout", "0.3", "--eval-every", "3"]
    whole = tmp_path / "whole" / "run"
    done = ended(start_ranks(tmp_path, [*words, "--out", str(whole)], 3))
    assert [code for code, *_ in done] == [0, 0, 0], done
    for step in (3, 6):
        run = cut(whole, tmp_path / str(step), step)
        done = ended(start_ranks(tmp_path, [*words, "--out", str(run), "--resume"], 3))
        assert [code for code, *_ in done] == [0, 0, 0], done
        assert end_of(run) == end_of(whole)
        assert read_curves(run / LOG) == read_curves(whole / LOG)
        assert (run / "model.rebar").read_bytes() == (whole / "model.rebar").read_bytes()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["--seed", "1"], "settings data is"),
        (["--eval-every", "2"], "settings options evaluate_every is 0 on rank 0, 2 on 1"),
        (["--dropout", "0.5"], "settings learner network dropout is 0.1 on rank 0, 0.5 on 1"),
    ],
)
def test_a_rank_of_another_run_is_told_to_all(tmp_path: Path, other: list[str], said: str) -> None:
    """Its gradients were added to those of another network, and nobody said a word."""
    words = [*WORDS, "--steps", "2", "--out", str(tmp_path / "run")]
    for code, _, err in ended(start_ranks(tmp_path, words, more={1: other})):
        assert code == 2, err
        assert "rank 1 does not train what rank 0 trains" in err
        assert said in err


def test_a_rank_that_fails_at_its_start_ends_all(tmp_path: Path) -> None:
    """A-j5: before they meet, and behind: the others end in time and say so."""
    words = [*WORDS, "--steps", "2", "--out", str(tmp_path / "run")]
    early = start_ranks(tmp_path, words, timeout=5, more={1: ["--eval-data", "nowhere.npz"]})
    first, second = ended(early)
    assert (first[0], second[0]) == (2, 2)
    assert "the 2 ranks did not meet" in first[2]
    late = start_ranks(tmp_path, words, timeout=60, more={1: ["--memory", "100KB"]})
    first, second = ended(late)
    assert (first[0], second[0]) == (2, 2)
    assert "another of the 2 ranks ended" in first[2]
    assert "budget" in second[2]


def test_a_killed_rank_ends_all_and_they_go_on_with_the_same_bits(tmp_path: Path) -> None:
    """A-j5: in the middle of a run, with the time-out far away."""
    words = [*WORDS, "--epochs", "3"]
    whole, run = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    assert [e[0] for e in ended(start_ranks(tmp_path, [*words, "--out", str(whole)]))] == [0, 0]
    ranks = start_ranks(tmp_path, [*words, "--out", str(run)])
    while not CheckpointStore(run / CHECKPOINTS).paths():
        assert ranks[0].poll() is None
    ranks[1].kill()
    (code, _, err), _ = ended(ranks)
    assert code == 2
    assert "rank 0: another of the 2 ranks ended" in err
    assert "--resume" in err
    assert step_of(CheckpointStore(run / CHECKPOINTS).paths()[0]) < 24, "it was killed in time"
    done = ended(start_ranks(tmp_path, [*words, "--out", str(run), "--resume"]))
    assert [code for code, *_ in done] == [0, 0], done
    assert end_of(run) == end_of(whole)


def test_ctrl_c_on_torchrun_saves_and_the_command_it_names_goes_on(tmp_path: Path) -> None:
    """torchrun passes the signal on to every rank; the command to go on with starts as many."""
    words = [*WORDS, "--epochs", "40", "--out", str(tmp_path / "run")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", free_port(), "-m", "rebar"]
    run = subprocess.Popen([*torchrun, *words], stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("step 1/"):
            break
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    told = next(line for line in err.splitlines() if line.startswith("  torchrun"))
    assert told.startswith("  torchrun --nproc-per-node 2 -m rebar train-images")
    assert told.endswith("--resume")
    stopped = step_of(CheckpointStore(tmp_path / "run" / CHECKPOINTS).paths()[0])
    assert 1 <= stopped < 320
    again = subprocess.run(
        [*torchrun, *words, "--steps", "320", "--resume"],
        capture_output=True, text=True, timeout=300, env=os.environ,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"resume     step {stopped}" in again.stderr
