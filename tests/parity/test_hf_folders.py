"""Folders written here, opened by transformers: the same logits, ids, texts and templates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from rebar.dataflow.models import convert, write_folder
from rebar.dataflow.text import ChatTemplate, Tokenizer
from rebar.graph import ModelFile, Row, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.lora import read_adapter
from rebar.graph.lora.merge import merged
from rebar.graph.models.config import RopeConfig
from rebar.graph.weights import WeightType, hf_writer, open_model
from rebar.graph.weights.hf_writer import JSONS
from tests.parity.mixed_text import mixed_text
from tests.tiny import tiny_gguf
from tests.tiny.adapter import tiny_adapter

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::FutureWarning")]

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 500, 40)]
FAMILIES = ("llama", "qwen2", "gemma3")
LLAMA3 = RopeConfig(500_000.0, 32, "llama3", 8.0, 1.0, 4.0, 64)


def theirs(folder: Path, ids: list[int]) -> NDArray[np.float64]:
    """Logits of every position, in float64 of the weights as they are stored."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        out = model(torch.tensor([ids])).logits[0]
    return np.asarray(out.double().numpy(), np.float64)


def ours(model: ModelFile, ids: list[int]) -> NDArray[np.float32]:
    """The same, computed without rounding (ref64)."""
    runner = load_runner(
        model, RunnerOptions(device="ref64", memory=1 << 30, max_rows=64, kv_tokens=64)
    )
    s = Sequence.of(ids, len(ids) + 1, SamplingParams(temperature=0.0))
    s.blocks = runner.kv.allocate(-(-len(ids) // 16))
    runner.step([Row(s, 0, len(ids), range(len(ids)))])
    found = runner.logits(len(ids)).copy()
    runner.close()
    return found


def close(got: NDArray[np.float32], want: NDArray[np.float64]) -> None:
    """As in test_adapters_peft.py: some hundred roundings of 2^-24 in a chain, of what is stored in
    float32 (weights, rotation tables, logits).
    """
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def packed(folder: Path, family: str, types: WeightType, **changes: Any) -> ModelFile:
    target = folder / "model.rebar"
    convert(tiny_gguf(folder, family, types, head_dim=32, **changes), target)
    return open_model(target)


@pytest.mark.parametrize("types", ["F32", "Q4_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_theirs(tmp_path: Path, family: str, types: WeightType) -> None:
    """Of float weights and of quantized ones, whose values a folder holds exactly; windows of 16
    positions are shorter than the prompt.
    """
    model = packed(tmp_path, family, types)
    assert write_folder(model, tmp_path / "out") == "F32"
    close(ours(model, IDS), theirs(tmp_path / "out", IDS))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_adapter_is_in_them(tmp_path: Path, family: str) -> None:
    model = packed(tmp_path, family, "F32")
    adapter = read_adapter(tiny_adapter(tmp_path / "a", model.config, size=0.5), model.config)
    whole = merged(model, adapter)
    write_folder(whole, tmp_path / "out")
    want = theirs(tmp_path / "out", IDS)
    close(ours(whole, IDS), want)
    assert np.abs(ours(model, IDS) - want).max() > 0.01 * np.abs(want).max(), "void"


@pytest.mark.parametrize("rope", [LLAMA3, RopeConfig(10_000.0, 32, "linear", 4.0)])
def test_scaled_rotations_are_theirs(tmp_path: Path, rope: RopeConfig) -> None:
    """Told in the words of transformers 4, which 5 understands."""
    base = packed(tmp_path, "llama", "F32")
    model = replace(base, config=replace(base.config, rope=rope))
    write_folder(model, tmp_path / "out")
    want = theirs(tmp_path / "out", IDS)
    close(ours(model, IDS), want)
    assert np.abs(ours(base, IDS) - want).max() > 0.01 * np.abs(want).max(), "void"


def test_all_of_smollm2(smollm2_path: Path, tmp_path: Path) -> None:
    """A real model of 30 layers, whose quantized weights a folder of float32 holds exactly."""
    model = open_model(smollm2_path)
    write_folder(model, tmp_path / "out")
    ids = Tokenizer.of(model).encode("It was the best of times, it was the worst of times, it was")
    got, want = ours(model, ids), theirs(tmp_path / "out", ids)
    close(got, want)
    assert (got.argmax(axis=1) == want.argmax(axis=1)).all()


@pytest.mark.parametrize("name", ["smollm2", "qwen05", "gemma3"])
def test_the_tokenizer_is_theirs(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three real models, by AutoTokenizer: ids of text of all kinds, with control tokens in it
    as transformers takes them, text of ids, the template, what begins and ends a text.
    """
    monkeypatch.setattr(hf_writer, "_write_weights", lambda *_: None)
    model = open_model(request.getfixturevalue(f"{name}_path"))
    write_folder(model, tmp_path / "out")
    assert set(JSONS) < {path.name for path in (tmp_path / "out").iterdir()}
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    mine = Tokenizer.of(model)
    for text in [*mixed_text(200_000, seed=5), "<|im_start|>user\nhi<|im_end|>", "a<eos>b  c"]:
        ids = reference.encode(text)
        assert mine.encode(text, special=True) == ids
        assert reference.decode(ids, skip_special_tokens=True) == mine.decode(
            ids, skip_special=True
        )
    assert (reference.bos_token_id, reference.eos_token_id) == (mine.bos_id, mine.eos_id)
    ends = transformers.GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert {*(ends if isinstance(ends, list) else [ends])} == mine.end_ids
    if model.chat_template is not None:
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
        said = reference.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert said == ChatTemplate(model.chat_template, mine).render(turns)
