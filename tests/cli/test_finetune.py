"""rebar finetune and rebar train on tiny models: what they write, what they say, how they stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rebar.cli.main import main
from rebar.cli.run_log import LOG, PLOT, RunLog, read_curves
from rebar.graph.lora import read_adapter
from rebar.graph.weights import open_model
from tests.tiny import tiny_gguf

Capture = pytest.CaptureFixture[str]
BOOK = Path(__file__).parents[1] / "data" / "northanger_abbey.txt"
ALONE = ["--threads", "1", "--json"]
FAST = ["--batch", "4", "--batch-tokens", "64", "--rate", "0.01", *ALONE]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny random model, and a cache of the test's own."""
    monkeypatch.setenv("REBAR_CACHE", str(tmp_path / "cache"))
    return str(tiny_gguf(tmp_path))


def chats(folder: Path, count: int = 12, said: str = "the other") -> str:
    """A file of conversations."""
    lines = [
        {"messages": [{"role": "user", "content": f"number {i}"},
                      {"role": "assistant", "content": f"{said} {i}"}]}
        for i in range(count)
    ]  # fmt: skip
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def told(capsys: Capture, *words: str) -> tuple[dict[str, Any], str]:
    """The JSON of a successful command, and what it said beside."""
    assert main(words) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_an_adapter_learns_and_is_written(model: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(out), "--epochs", "8"]
    words += ["--eval-split", "0.2", "--eval-every", "5", "--lora-r", "4", "--lora-targets", "q,v"]
    done, err = told(capsys, *words, *FAST)
    assert "r 4, scale = alpha / r = 16 / 4 = 4" in err
    assert done["held_out_loss_best"] < done["held_out_loss_before"] - 0.5
    losses, held_out = read_curves(out / LOG)
    assert sorted(losses) == list(range(1, done["steps"] + 1))
    assert sorted(held_out)[:2] == [0, 5]
    assert (out / PLOT).read_text().startswith("<svg")
    adapter = read_adapter(out, open_model(Path(model)).config)
    assert {place.part for place in adapter.parts} == {"q", "v"}
    assert adapter.rank == 4
    first = json.loads((out / LOG).read_text().splitlines()[0])
    assert first["event"] == "start"
    assert first["lora_r"] == 4


def test_a_second_run_needs_a_folder_of_its_own(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(tmp_path / "out")]
    told(capsys, *words, "--steps", "1", *FAST)
    assert main([*words, "--steps", "1", *FAST]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*words, "--steps", "1", "--resume", "--seed", "1", *FAST]) == 2
    assert "is of another run" in capsys.readouterr().err


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """Without --resume the folder held a run already, with it there was no checkpoint: the folder
    was good for nothing.
    """
    words = ["finetune", model, "--data", chats(tmp_path), "--epochs", "2", *FAST]
    told(capsys, *words, "--out", str(tmp_path / "whole"))
    cut = tmp_path / "cut"
    cut.mkdir()
    lines = (tmp_path / "whole" / LOG).read_text().splitlines(keepends=True)
    (cut / LOG).write_text("".join(lines[:3]) + lines[3][:20])
    _, err = told(capsys, *words, "--out", str(cut), "--resume")
    assert "resume     from the beginning: no checkpoint was written yet" in err
    name = "adapter_model.safetensors"
    assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert read_curves(cut / LOG) == read_curves(tmp_path / "whole" / LOG)
    events = [json.loads(line)["event"] for line in (cut / LOG).read_text().splitlines()[4:]]
    assert events[0] == "start"
    assert main([*words, "--out", str(tmp_path / "other"), "--resume"]) == 2
    assert "holds no run to go on with" in capsys.readouterr().err


def test_a_folder_in_which_a_run_is_at_work_is_left_alone(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """Two runs wrote to one log and swept each other's checkpoints."""
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(tmp_path / "out"), *FAST]
    other = RunLog(tmp_path / "out")
    assert main(words) == 2
    assert "a run is writing to" in capsys.readouterr().err
    other.close()
    told(capsys, *words)


def test_a_full_disk_ends_a_run_with_its_next_step(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """It was reported as a fault of Rebar, with the advice to see a doctor."""
    out = tmp_path / "out"
    out.mkdir()
    (out / LOG).symlink_to("/dev/full")
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(out), *FAST]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "No space left on device. The run ended, the last checkpoint" in err
    assert "--resume" in err


@pytest.mark.parametrize(
    "wrong",
    [
        "--steps=0",
        "--epochs=0",
        "--batch=0",
        "--batch-tokens=0",
        "--rate=0",
        "--rate=nan",
        "--warmup=-1",
        "--clip=nan",
        "--weight-decay=-1",
        "--eval-split=1",
        "--eval-split=-0.5",
        "--eval-every=-1",
        "--checkpoint-every=-1",
        "--keep=0",
        "--patience=0",
        "--patience=2",
        "--lora-r=0",
        "--lora-alpha=nan",
        "--lora-targets=",
        "--max-context=0",
    ],
)
def test_a_setting_out_of_range_is_named_before_anything_is_read(
    model: str, tmp_path: Path, capsys: Capture, wrong: str
) -> None:
    """--steps 0 ended in "no token of the data is supervised", --eval-split -0.5 held out samples
    from the wrong end, --max-context 0 was the default: after the data had been read.
    """
    out = tmp_path / "out"
    assert main(["finetune", model, "--data", chats(tmp_path), "--out", str(out), wrong]) == 2
    err = capsys.readouterr().err
    assert "data  " not in err
    assert wrong.split("=")[0].removeprefix("--lora-").strip("s") in err
    assert not out.exists()


def test_a_disk_too_small_for_the_checkpoints_is_told_before_the_first(
    model: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of SmolLM2 with their states are 1.6 GB a checkpoint, three for a moment."""
    words = ["finetune", model, "--data", chats(tmp_path), "--steps", "1", *FAST]
    _, err = told(capsys, *words, "--out", str(tmp_path / "roomy"))
    assert "checkpoint" not in err
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr("rebar.cli.training_run.shutil.disk_usage", lambda _: usage)
    _, err = told(capsys, *words, "--out", str(tmp_path / "tight"))
    assert "2 stay; the disk has 50.0 KB: make room for " in err


@pytest.mark.parametrize(
    "asked",
    [["--eval-every", "2"], ["--eval-split", "0.01"], ["--eval-data", "silent"]],
    ids=["no split", "too small a split", "nothing to learn"],
)
def test_evaluations_with_nothing_to_evaluate_on_are_refused(
    model: str, tmp_path: Path, capsys: Capture, asked: list[str]
) -> None:
    """They were left out without a word, and a run with patience never ended early."""
    silent = tmp_path / "silent.jsonl"
    silent.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    asked = [word if word != "silent" else str(silent) for word in asked]
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(tmp_path / "out"), *FAST]
    assert main([*words, *asked]) == 2
    assert "--eval-data" in (err := capsys.readouterr().err) or "silent.jsonl" in err


def test_the_log_says_what_was_decided(model: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(out), *ALONE]
    words += ["--steps", "2", "--lora-r", "4", "--rslora", "--warmup", "9"]
    _, err = told(capsys, *words)
    assert "scale = alpha / sqrt(r) = 16 / sqrt(4) = 8" in err
    assert "rate       0.0002 at the last step, 2: the run is shorter than 9 steps" in err
    assert "\nrecompute none: all fits into " in err
    start = json.loads((out / LOG).read_text().splitlines()[0])
    assert (start["lora_scale"], start["rate"], start["recompute"]) == (8.0, 2e-4, "none")
    assert set(start["planned_bytes"]) >= {"parameters", "arena", "kv"}


def test_what_ended_early_is_written_as_it_was_at_its_best(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(tmp_path / "out"), *ALONE]
    words += ["--epochs", "400", "--eval-split", "0.3", "--eval-every", "5", "--patience", "2"]
    done, err = told(capsys, *words, "--rate", "0.03")
    assert done["steps"] == done["best_step"] + 10 < 400
    assert f"best       step {done['best_step']}, held-out loss " in err
    adapter = (tmp_path / "out" / "adapter_model.safetensors").read_bytes()
    _, err = told(capsys, *words, "--rate", "0.03", "--resume")
    assert f"best       step {done['best_step']}, held-out loss " in err
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == adapter


def test_data_without_an_answer_is_refused(model: str, tmp_path: Path, capsys: Capture) -> None:
    """A-j2: all labels masked."""
    path = tmp_path / "silent.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n' * 3)
    words = ["finetune", model, "--data", str(path), "--out", str(tmp_path / "out"), *FAST]
    assert main([*words, "--steps", "1"]) == 2
    assert "no token of the data is learned: none of its 3 samples" in capsys.readouterr().err


def test_show_batch_marks_what_is_learned(model: str, tmp_path: Path, capsys: Capture) -> None:
    words = ["finetune", model, "--data", chats(tmp_path)]
    assert main([*words, "--show-batch", *FAST]) == 0
    assert "⟦the other" in capsys.readouterr().out
    assert main([*words, *FAST]) == 2
    assert "Give --out" in capsys.readouterr().err


def test_ctrl_c_saves_and_the_rest_has_the_same_bits(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    words = ["finetune", model, "--data", chats(tmp_path), "--epochs", "40", *FAST]
    told(capsys, *words, "--out", str(tmp_path / "whole"))
    command = [sys.executable, "-m", "rebar", *words, "--out", str(tmp_path / "cut")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env=os.environ)  # fmt: skip
    assert run.stderr is not None
    while not run.stderr.readline().startswith("step 1/"):
        assert run.poll() is None, run.stderr.read()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert "Go on with:" in err
    assert err.strip().endswith("--resume")
    stopped = len(read_curves(tmp_path / "cut" / LOG)[0])
    assert 1 <= stopped < 120
    done, err = told(capsys, *words, "--out", str(tmp_path / "cut"), "--resume")
    assert f"resume     step {stopped}" in err
    assert done["steps"] == 120
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert read_curves(tmp_path / "cut" / LOG) == read_curves(tmp_path / "whole" / LOG)


def test_all_weights_can_learn(model: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "full"
    words = ["finetune", model, "--data", chats(tmp_path), "--out", str(out), "--epochs", "4"]
    done, _ = told(capsys, *words, "--full", "--batch", "4", *ALONE, "--rate", "0.001")
    answer, _ = told(capsys, "generate", "number", "--model", done["model"], "--json")
    assert answer["text"]
    losses = read_curves(out / LOG)[0]
    assert losses[max(losses)] < losses[1] - 1


def test_a_model_that_learned_is_written_for_others_too(
    model: str, tmp_path: Path, capsys: Capture
) -> None:
    """The folder that transformers opens gives the answer of the .rebar file, to the bit; the way
    there is looked at before the training, not after it.
    """
    words = ["finetune", model, "--data", chats(tmp_path), "--full", *FAST, "--steps", "2"]
    answers = []
    for form in ("rebar", "hf"):
        done, _ = told(capsys, *words, "--out", str(tmp_path / form), "--as", form)
        more = ["generate", "number 3", "--model", done["model"], "--max-tokens", "12", "--json"]
        answers.append(told(capsys, *more, "--temperature", "0")[0]["text"])
    assert (tmp_path / "hf" / "model" / "config.json").exists()
    assert answers[0] == answers[1]
    told(capsys, *words, "--out", str(tmp_path / "hf"), "--as", "hf", "--resume")
    (tmp_path / "other" / "model").mkdir(parents=True)
    (tmp_path / "other" / "model" / "diary.txt").write_text("dear diary")
    assert main([*words, "--out", str(tmp_path / "other"), "--as", "hf"]) == 2
    assert not (tmp_path / "other" / LOG).exists()
    capsys.readouterr()
    lora = [word for word in words if word != "--full"]
    assert main([*lora, "--out", str(tmp_path / "l"), "--as", "hf"]) == 2
    assert "Give --full too" in capsys.readouterr().err


def test_a_model_is_made_from_nothing(tmp_path: Path, capsys: Capture) -> None:
    """A few steps on an excerpt: it has learned the frequent tokens, and is a model like any."""
    out = tmp_path / "austen"
    words = ["train", str(BOOK), "--out", str(out), "--tokenizer", "bpe:400", "--steps", "40"]
    words += ["--layers", "2", "--width", "64", "--heads", "2", "--kv-heads", "1"]
    words += ["--mlp-width", "128", "--context", "32", *ALONE, "--batch", "8"]
    words += ["--batch-tokens", "256"]
    done, err = told(capsys, *words)
    assert "bigram" in err
    assert done["held_out_loss_best"] < done["held_out_loss_before"] - 0.8
    assert 2 < done["bigram_held_out_loss"] < done["held_out_loss_before"]
    more = ["generate", "Catherine", "--model", done["model"], "--max-tokens", "8", "--json"]
    assert told(capsys, *more)[0]["completion_tokens"] > 0
    assert told(capsys, "inspect", done["model"], "--json")[0]


def test_a_vocabulary_is_learned_from_documents_without_the_json_around_them(
    tmp_path: Path, capsys: Capture
) -> None:
    """It was learned from the bytes of the file: its first tokens were `{"text": "` and escapes."""
    text = "Mrs. Bennet was delighted.\nMr. Bennet was not.\n"
    (tmp_path / "a.txt").write_text(text * 9)
    (tmp_path / "a.jsonl").write_text((json.dumps({"text": text}) + "\n") * 9)
    shown = []
    for name in ("a.txt", "a.jsonl"):
        out = tmp_path / f"{name}-out"
        words = ["train", str(tmp_path / name), "--out", str(out), "--tokenizer", "bpe:280"]
        words += ["--width", "32", "--heads", "2", "--kv-heads", "1", "--layers", "1", *ALONE]
        words += ["--mlp-width", "32", "--context", "16", "--steps", "1", "--eval-split", "0.4"]
        done, _ = told(capsys, *words)
        shown.append(told(capsys, "tokenize", text, "--model", done["model"], "--json")[0])
    assert shown[0] == shown[1]


def test_a_text_too_short_to_hold_out_is_told(tmp_path: Path, capsys: Capture) -> None:
    """Three letters ended in a ValueError of NumPy and the advice to see a doctor."""
    (tmp_path / "t.txt").write_text("abc")
    assert main(["train", str(tmp_path / "t.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "t.txt is too short" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--width", "100"],
        ["--width", "0"],
        ["--heads", "5"],
        ["--heads", "-6"],
        ["--tokenizer", "bpe:9"],
        ["--mlp-width", "33"],
        ["--mlp-width", "0"],
        ["--layers", "0"],
        ["--context", "0"],
    ],
)
def test_sizes_no_kernel_has_are_refused(tmp_path: Path, capsys: Capture, wrong: list[str]) -> None:
    """Half of them ended in an error of Python's, with the advice to see a doctor."""
    assert main(["train", str(BOOK), "--out", str(tmp_path / "o"), *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
