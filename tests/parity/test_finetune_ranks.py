"""`rebar finetune` in two processes, as torchrun would start them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.cli.run_log import LOG, read_curves
from tests.cli.test_finetune import chats
from tests.cli.test_resume import curve, cut, end_of
from tests.parity.rank_verbs import ended, start_ranks
from tests.tiny import tiny_gguf

pytestmark = pytest.mark.parity


def start(folder: Path, model: Path, data: Path, *words: str, size: int = 2) -> list[Any]:
    command = ["finetune", str(model), "--data", str(data), "--threads", "1", "--rate", "0.01"]
    return start_ranks(folder.parent / "cache", [*command, "--out", str(folder), *words], size)


def test_two_processes_train_one_adapter(tmp_path: Path) -> None:
    """Seven windows for two: the last round has one. Only the first speaks and writes; the curve is
    that of one process with windows twice as large, but for how the sum is made, and the last.
    """
    model, data = tiny_gguf(tmp_path), tmp_path / "chat.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"number {i}"},
                      {"role": "assistant", "content": f"the other {i}"}]}
        for i in range(14)
    ]  # fmt: skip
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = ended(start(tmp_path / "two", model, data, "--json", "--batch=2"))
    assert [code for code, *_ in done] == [0, 0], done
    assert json.loads(done[0][1])["steps"] == 4
    assert done[1][1:] == ("", "")
    (alone,) = ended(start(tmp_path / "one", model, data, "--json", "--batch=4", size=1))
    assert alone[0] == 0, alone
    ours, theirs = (read_curves(tmp_path / name / LOG)[0] for name in ("two", "one"))
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-4)
    again = ended(start(tmp_path / "two", model, data))
    assert [code for code, *_ in again] == [2, 2]
    assert all("--resume" in err for *_, err in again)


def test_an_adapter_of_two_processes_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Windows of two micro-batches, cut in the middle of the second epoch."""
    model, data = tiny_gguf(tmp_path), Path(chats(tmp_path, 18))
    words = ["--batch=4", "--batch-tokens=32", "--epochs=3", "--json", "--checkpoint-every=1"]
    words += ["--keep=99", "--eval-split=0.2", "--eval-every=2"]
    whole = tmp_path / "whole" / "run"
    done = ended(start(whole, model, data, *words))
    assert [code for code, *_ in done] == [0, 0], done
    run = cut(whole, tmp_path / "cut", 3)
    done = ended(start(run, model, data, *words, "--resume"))
    assert [code for code, *_ in done] == [0, 0], done
    assert "resume     step 3" in done[0][2]
    assert end_of(run) == end_of(whole)
    assert curve(run) == curve(whole)
    name = "adapter_model.safetensors"
    assert (run / name).read_bytes() == (whole / name).read_bytes()
