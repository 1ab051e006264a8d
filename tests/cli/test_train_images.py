"""rebar train-images: what it writes, says and refuses; a run that was cut in two is one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.cli.main import main
from rebar.cli.run_log import LOG, PLOT
from rebar.graph.weights.classifier import open_classifier
from tests.dataflow.images.test_images import DIGITS, folder_of
from tests.tiny.classifier import LABELS, tiny_classifier
from tests.tiny.png import gray_png

Capture = pytest.CaptureFixture[str]
SMALL = ["--stages", "8,16", "--threads", "1", "--batch", "32", "--batch-tokens", "16", "--json"]


def told(capsys: Capture, *words: str) -> tuple[dict[str, Any], str]:
    """The JSON of a successful command, and what it said beside."""
    assert main(words) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_a_classifier_learns_and_is_written(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "digits"
    words = ["train-images", str(DIGITS), "--out", str(out), "--steps", "30", "--eval-every", "15"]
    done, err = told(capsys, *words, *SMALL)
    assert "1,438 images of 8 x 8 x 1, 10 labels" in err
    assert done["held_out_loss_best"] < done["held_out_loss_before"] - 0.1
    assert done["held_out_right"].endswith(" of 359")
    assert done["learned_images"] == 30 * 32
    file = open_classifier(out / "model.rebar")
    assert file.config.labels == tuple("0123456789")
    assert (file.name, file.provenance["source"]) == ("digits", "digits.npz")
    assert (out / PLOT).read_text().startswith("<svg")
    events = [json.loads(line)["event"] for line in (out / LOG).read_text().splitlines()]
    assert events.count("step") == 30
    assert main([*words, *SMALL]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_run_that_goes_on_writes_the_same_bits(tmp_path: Path, capsys: Capture) -> None:
    """From the checkpoint of step 3, as if what came later had been lost: order, augmentation and
    dropout are addressed by place and step, so the same weights come out.
    """
    out = tmp_path / "run"
    words = ["train-images", str(DIGITS), "--out", str(out), "--steps", "8", *SMALL]
    words += ["--checkpoint-every", "3", "--keep", "9", "--dropout", "0.3", "--seed", "5"]
    told(capsys, *words)
    whole = (out / "model.rebar").read_bytes()
    (out / "model.rebar").unlink()
    for saved in (out / "checkpoints").iterdir():
        if "checkpoint-00000003" not in saved.name:
            saved.unlink()
    _, err = told(capsys, *words, "--resume")
    assert "step 3, from checkpoint-00000003" in err
    assert (out / "model.rebar").read_bytes() == whole


def test_folders_of_files_and_faults(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "set").mkdir()
    folder = folder_of(tmp_path / "set", 40)
    words = ["train-images", str(folder), "--steps", "2", *SMALL]
    done, _ = told(capsys, *words, "--out", str(tmp_path / "a"))
    assert done["held_out_right"].endswith(" of 8")
    (folder / "3" / "broken.png").write_bytes(b"GIF89a")
    assert main([*words, "--out", str(tmp_path / "b")]) == 2
    assert "broken.png: The image is a GIF" in capsys.readouterr().err


def test_what_is_no_image_is_passed_over_when_asked_for(tmp_path: Path, capsys: Capture) -> None:
    """Also where it is the first of all, which tells the size, or held out: both once ended the run
    whatever --on-error said. And what has no such name is told, where it was left out in silence.
    """
    (tmp_path / "set").mkdir()
    folder = folder_of(tmp_path / "set", 40)
    words = ["train-images", str(folder), "--steps", "2", "--out", str(tmp_path / "a"), *SMALL]
    for label in "0123456789":
        (folder / label / "000000.png").write_bytes(gray_png(np.zeros((5, 5), np.uint8))[:50])
        (folder / label / "more.jpg").write_bytes(b"x")
    (folder / "1" / "SHOUTED.PNG").write_bytes(gray_png(np.zeros((8, 8), np.uint8)))
    done, err = told(capsys, *words, "--on-error", "skip")
    assert "51 images of 8 x 8 x 1" not in err
    assert "files that are no .png, passed over: 10; the first: " in err
    assert "files that are no such images, passed over: 10; " in err
    held = int(str(done["held_out_right"]).split(" of ")[1])
    assert 0 < held <= 10


def test_a_wrong_image_is_told_before_any_is_learned_from(tmp_path: Path, capsys: Capture) -> None:
    """The last of all, and not held out: it once ended the run in the middle of an epoch."""
    (tmp_path / "set").mkdir()
    folder = folder_of(tmp_path / "set", 40)
    (folder / "9" / "zzz.png").write_bytes(gray_png(np.zeros((9, 8), np.uint8)))
    assert main(["train-images", str(folder), "--out", str(tmp_path / "a"), *SMALL]) == 2
    assert "zzz.png: The image has 9 rows of 8 pixels" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.npz"], "no set of images"),
        ([str(DIGITS), "--stages", "8,x"], "no list of numbers"),
        ([str(DIGITS), "--stages", "0"], "cannot be"),
        ([str(DIGITS), "--dropout", "1"], "no share below 1"),
        ([str(DIGITS), "--eval-split", "0"], "leave nothing on one side"),
        ([str(DIGITS), "--degrees", "300"], "of 300 degrees"),
    ],
)
def test_what_is_refused(words: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["train-images", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_held_out_images_of_their_own(tmp_path: Path, capsys: Capture) -> None:
    """Of the same labels; others are refused."""
    with np.load(DIGITS) as file:
        arrays = {name: file[name] for name in file.files}
    held = tmp_path / "held.npz"
    np.savez(held, **{name: a[:50] if name != "names" else a for name, a in arrays.items()})
    words = ["train-images", str(DIGITS), "--eval-data", str(held), "--steps", "2", *SMALL]
    done, err = told(capsys, *words, "--out", str(tmp_path / "a"))
    assert done["held_out_right"].endswith(" of 50")
    assert "1,797 images" in err
    np.savez(held, images=arrays["images"][:5], labels=np.arange(5))
    assert main([*words, "--out", str(tmp_path / "b")]) == 2
    assert "other labels" in capsys.readouterr().err


def test_a_classifier_is_inspected_and_refused_where_text_is_wanted(
    tmp_path: Path, capsys: Capture
) -> None:
    path = str(tiny_classifier(tmp_path))
    done, _ = told(capsys, "inspect", path, "--json")
    assert (done["format"], done["config"]["labels"]) == ("classifier", list(LABELS))
    assert done["parameters"] == sum(np.prod(t["shape"]) for t in done["tensors"])
    assert main(["generate", "hello", "--model", path]) == 2
    assert "is an image classifier, not a language model" in capsys.readouterr().err
