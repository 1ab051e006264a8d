"""A run that goes on is the run that was never stopped: the same bits, whatever learns, wherever it
was cut, however often it was killed; and a run of other settings does not go on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebar.cli.main import main
from rebar.cli.run_log import LOG, read_curves
from rebar.cli.training_run import CHECKPOINTS
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.checkpoint_file import read_checkpoint
from tests.cli.test_finetune import BOOK, chats
from tests.dataflow.images.test_images import DIGITS
from tests.tiny import tiny_gguf

Capture = pytest.CaptureFixture[str]
SAVING = ["--checkpoint-every", "1", "--keep", "99", "--threads", "1", "--json"]
# Three windows an epoch, of two micro-batches each.
CHATS = ["--batch", "4", "--batch-tokens", "32"]
PATIENT = ["--eval-split", "0.25", "--eval-every", "1", "--patience", "3"]
TRAIN = ["--layers", "1", "--width", "64", "--heads", "2", "--kv-heads", "1", "--mlp-width", "64"]
TRAIN += ["--context", "32", "--tokenizer", "bytes", "--batch", "4", "--batch-tokens", "64"]
IMAGES = ["--stages", "8", "--batch", "700", "--batch-tokens", "500", "--dropout", "0.3"]


def finetune(folder: Path, *words: str, rate: str = "0.02", epochs: str = "3") -> list[str]:
    words = (*words, "--rate", rate, "--epochs", epochs)
    return ["finetune", str(tiny_gguf(folder)), "--data", chats(folder), *CHATS, *words]


def train(folder: Path) -> list[str]:
    (folder / "book.txt").write_text(BOOK.read_text()[:1500])
    return ["train", str(folder / "book.txt"), *TRAIN, "--epochs", "2", "--warmup", "3"]


TOLD = "samples", "loss", "rate", "gradient_norm", "tokens", "skipped"
RUNS: dict[str, tuple[Callable[[Path], list[str]], list[str]]] = {
    "adapter": (finetune, ["adapter_model.safetensors", "adapter_config.json"]),
    "adapter, sgd": (
        lambda folder: finetune(folder, "--optimizer", "sgd", "--schedule", "linear"),
        ["adapter_model.safetensors"],
    ),
    "adapter, until nothing gets better": (
        lambda folder: finetune(folder, *PATIENT, epochs="9", rate="0.2"),
        ["adapter_model.safetensors"],
    ),
    "all weights": (
        lambda folder: finetune(folder, "--full", "--weight-decay", "0.1"),
        ["model.rebar"],
    ),
    "from nothing": (train, ["model.rebar"]),
    "images": (
        lambda _: ["train-images", str(DIGITS), *IMAGES, "--epochs", "3", "--eval-every", "2"],
        ["model.rebar"],
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the test's own."""
    monkeypatch.setenv("REBAR_CACHE", str(tmp_path / "cache"))


def told(capsys: Capture, *words: str) -> dict[str, Any]:
    """The JSON of a successful command."""
    assert main(words) == 0, capsys.readouterr().err
    done: dict[str, Any] = json.loads(capsys.readouterr().out)
    return done


def step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def cut(whole: Path, to: Path, step: int) -> Path:
    """A copy of the run as it stood after that step, killed before its end."""
    shutil.copytree(whole, to / whole.name)
    for path in (to / whole.name).iterdir():
        if path.is_file() and path.name != LOG:
            path.unlink()
    for path in (to / whole.name / CHECKPOINTS).glob("*.safetensors"):
        if step_of(path) > step:
            path.unlink()
    return to / whole.name


def curve(run: Path) -> dict[int, tuple[Any, ...]]:
    """Of each step what no clock knows: samples, loss, rate, norm; the later line counts."""
    found: dict[int, tuple[Any, ...]] = {}
    for line in (run / LOG).read_text().splitlines():
        e = json.loads(line)
        if e["event"] == "step":
            found[e["step"]] = tuple(e[name] for name in TOLD)
    return found


def end_of(run: Path) -> tuple[Any, ...]:
    """All that the last checkpoint holds, but for where it came from."""
    saved = read_checkpoint(CheckpointStore(run / CHECKPOINTS).paths()[0])
    state = {key: value for key, value in saved.state.items() if key != "provenance"}
    return state, {name: array.tobytes() for name, array in saved.arrays.items()}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_cut_anywhere_is_the_run_never_stopped(
    kind: str, tmp_path: Path, capsys: Capture
) -> None:
    """A-j3: in the middle of an epoch, at its end, in the second one: what is written, the samples
    and losses of each step, and parameters, states, position and progress of the last checkpoint
    are those of a run that was never stopped.
    """
    command, written = RUNS[kind]
    words, whole = [*command(tmp_path), *SAVING], tmp_path / "whole" / "run"
    told(capsys, *words, "--out", str(whole))
    last = step_of(CheckpointStore(whole / CHECKPOINTS).paths()[0])
    assert last > 4, "cuts in two epochs"
    if kind.endswith("better"):
        assert end_of(whole)[0]["progress"]["waited"] == 3, "it ended early"
    for step in sorted({1, last // 2, last - 1, last}):
        run = cut(whole, tmp_path / str(step), step)
        told(capsys, *words, "--out", str(run), "--resume")
        assert end_of(run) == end_of(whole), step
        assert curve(run) == curve(whole)
        assert read_curves(run / LOG) == read_curves(whole / LOG)
        for name in written:
            assert (run / name).read_bytes() == (whole / name).read_bytes(), (step, name)


def test_a_run_of_many_kills_is_the_run_of_none(tmp_path: Path, capsys: Capture) -> None:
    """A-j3: `kill -9` where a step was just told and its checkpoint is being written: what is found
    is of that step or of the one before, and in the end no bit tells of the kills.
    """
    words = ["train-images", str(DIGITS), *IMAGES, "--epochs", "4", *SAVING]
    told(capsys, *words, "--out", str(tmp_path / "whole" / "run"))
    run = tmp_path / "killed" / "run"
    command = [sys.executable, "-m", "rebar", *words, "--out", str(run)]
    for step in (2, 4, 7):
        killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while reached(run) < step:
                assert killed.poll() is None, "it ended by itself"
        finally:
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
        found = CheckpointStore(run / CHECKPOINTS).newest()
        assert found is not None
        assert found.state["progress"]["step"] >= reached(run) - 1
        command += ["--resume"] if "--resume" not in command else []
    told(capsys, *words, "--out", str(run), "--resume")
    assert end_of(run) == end_of(tmp_path / "whole" / "run")
    assert (run / "model.rebar").read_bytes() == (
        tmp_path / "whole" / "run" / "model.rebar"
    ).read_bytes()


def reached(run: Path) -> int:
    """The last step that the log tells of."""
    return max(read_curves(run / LOG)[0], default=0) if (run / LOG).exists() else 0


OTHERS: dict[str, tuple[list[str], str]] = {
    "another scale": (["--lora-alpha", "32"], "learner adapter scale was 2.0, is 4.0"),
    "another rule of it": (["--rslora"], "learner adapter scale was 2.0, is 5.6"),
    "another cache": (["--kv", "f32"], "learner kv was f16, is f32"),
    "another schedule": (["--warmup", "2"], "schedule warmup was 0, is 2"),
    "other parameters": (["--lora-targets", "q"], "parameters was a list of 8, is a list of 4"),
    "another order": (["--seed", "1"], "seed was 0, is 1"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_run_does_not_go_on(kind: str, tmp_path: Path, capsys: Capture) -> None:
    """--lora-alpha, --rslora, --kv and the base model once changed without a word, and the run went
    on as another one.
    """
    words, run = [*finetune(tmp_path), *SAVING], str(tmp_path / "run")
    told(capsys, *words, "--out", run)
    changed, said = OTHERS[kind]
    assert main([*words, *changed, "--out", run, "--resume"]) == 2
    assert said in capsys.readouterr().err


def test_another_base_does_not_go_on(tmp_path: Path, capsys: Capture) -> None:
    """Of equal shapes, and so with an adapter that fits."""
    words, run = [*finetune(tmp_path), *SAVING], str(tmp_path / "run")
    told(capsys, *words, "--out", run)
    words[1] = str(tiny_gguf(tmp_path, seed=7))
    assert main([*words, "--out", run, "--resume"]) == 2
    assert "learner frozen weights was" in capsys.readouterr().err


def test_another_network_does_not_go_on(tmp_path: Path, capsys: Capture) -> None:
    words = ["train-images", str(DIGITS), *IMAGES, "--steps", "1", *SAVING]
    words += ["--out", str(tmp_path / "run")]
    told(capsys, *words)
    changed = [word.replace("0.3", "0.2") for word in words]
    assert main([*changed, "--resume"]) == 2
    assert "learner network dropout was 0.3, is 0.2" in capsys.readouterr().err
