"""A model as a Hugging Face folder: what is written is what is read, to the bit, or nothing is
written. (What transformers makes of it: tests/parity/test_hf_folders.py.)
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.dataflow.models import convert, write_folder
from rebar.dataflow.text import Tokenizer
from rebar.errors import InputError, ModelFileError, UnsupportedModelError
from rebar.graph.lora import read_adapter
from rebar.graph.lora.merge import merged
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.weights import ModelFile, hf_writer, open_model
from rebar.graph.weights.hf_config_writer import hf_config
from rebar.graph.weights.hf_writer import FILES, FloatType, FolderType
from rebar.graph.weights.layout import floats
from rebar.graph.weights.model_file import StoredTensor, TokenizerData, WeightType
from rebar.graph.weights.pack import is_matrix
from rebar.graph.weights.provenance import merged_digests
from rebar.graph.weights.values import dense
from tests.tiny import tiny_config, tiny_gguf, tiny_hf
from tests.tiny.adapter import tiny_adapter

FAMILIES = ("llama", "qwen2", "gemma3")
TEXTS = [
    "Hello, world 123",
    " two  spaces\n\nand\tmore ",
    "naïve café ▁ \U0001f600",
    "<|im_start|>ab",
]


def packed(folder: Path, family: str = "llama", types: WeightType = "F32") -> ModelFile:
    target = folder / f"{family}-{types}.rebar"
    convert(tiny_gguf(folder, family, types, head_dim=32), target)
    return open_model(target)


def values_of(tensor: StoredTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return dense(tensor) if is_matrix(tensor.shape) else floats(tensor, tensor.name)


@pytest.mark.parametrize("types", ["F32", "BF16", "Q4_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read(tmp_path: Path, family: str, types: WeightType) -> None:
    """Description, every weight, text to ids and back, template and ends of an answer; from the
    packed file and from the GGUF file, whose rows of q and k stand in another order.
    """
    model = packed(tmp_path, family, types)
    mine = Tokenizer.of(model)
    for i, source in enumerate((model, open_model(next(tmp_path.glob("*.gguf"))))):
        folder = tmp_path / f"folder{i}"
        write_folder(source, folder)
        assert {path.name for path in folder.iterdir()} <= FILES
        read = open_model(folder)
        assert windows(read.config) == windows(model.config)
        assert read.tensors.keys() == model.tensors.keys()
        for name, tensor in model.tensors.items():
            assert (values_of(read.tensors[name]) == values_of(tensor)).all(), name
        theirs = Tokenizer.of(read)
        for text in TEXTS:
            for special in (False, True):
                ids = mine.encode(text, special=special)
                assert theirs.encode(text, special=special) == ids
                assert theirs.decode(ids) == mine.decode(ids)
        assert (theirs.end_ids, theirs.bos_id) == (mine.end_ids, mine.bos_id)
        assert read.chat_template == model.chat_template


def windows(c: DecoderConfig) -> tuple[object, ...]:
    """Of a description whose pattern is longer than its layers, any longer one is the same."""
    return [c.window_of(layer) for layer in range(c.layers)], replace(c, sliding_pattern=1)


@pytest.mark.parametrize(
    ("types", "kind", "due"),
    [
        ("BF16", "auto", "F32"),  # the tiny model's norms are not of 8 bits
        ("F16", "F16", "F16"),
        ("F32", "BF16", "BF16"),
        ("Q8_0", "auto", "F32"),
    ],
)
def test_all_weights_have_one_type(
    tmp_path: Path, types: WeightType, kind: FolderType, due: FloatType
) -> None:
    """transformers computes in one type: auto is F16 or BF16 only where that changes no weight."""
    model = packed(tmp_path, "gemma3", types)
    assert write_folder(model, tmp_path / "out", kind=kind) == due
    read = open_model(tmp_path / "out")
    assert {t.type for t in read.tensors.values() if is_matrix(t.shape)} == {due}
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    assert described["torch_dtype"] == names[due]


def test_auto_keeps_a_short_type_that_holds_everything(tmp_path: Path) -> None:
    """As the usual model of bfloat16 comes, norms too: it goes as it came."""
    model = packed(tmp_path, "gemma3", "BF16")
    norms = {
        name: replace(t, data=np.ones(t.shape, np.float32).view(np.uint8))
        for name, t in model.tensors.items()
        if not is_matrix(t.shape)
    }
    whole = replace(model, tensors={**model.tensors, **norms})
    assert write_folder(whole, tmp_path / "out") == "BF16"


def test_what_the_type_cannot_hold_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = packed(tmp_path)
    large = np.full(model.tensors["final_norm.weight"].shape, 1e6, np.float32)
    large_norm = replace(model.tensors["final_norm.weight"], data=large.view(np.uint8))
    whole = replace(model, tensors={**model.tensors, "final_norm.weight": large_norm})
    with pytest.raises(InputError, match="F16 ends at 65504"):
        write_folder(whole, tmp_path / "place" / "out", kind="F16")
    assert not list((tmp_path / "place").iterdir())


def test_a_place_that_is_taken_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced is only what may have been written here, and only when the new one is whole."""
    model, out = packed(tmp_path), tmp_path / "out"
    out.mkdir()
    write_folder(model, out)
    with pytest.raises(InputError, match=r"is not empty.*--force"):
        write_folder(model, out)
    before = (out / "model.safetensors").stat().st_ino

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(hf_writer, "_write_weights", full)
        with pytest.raises(ModelFileError, match="the disk has no room"):
            write_folder(model, out, replace=True)
    assert (out / "model.safetensors").stat().st_ino == before
    write_folder(model, out, replace=True)
    assert (out / "model.safetensors").stat().st_ino != before
    (out / "my-notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'my-notes.txt', which is no file of such"):
        write_folder(model, out, replace=True)
    with pytest.raises(InputError, match="is no folder"):
        write_folder(model, out / "my-notes.txt", replace=True)
    assert not list(tmp_path.glob(".out.*"))


def test_a_folder_says_what_was_merged_into_it(tmp_path: Path) -> None:
    """Written out, read in and converted, a model forgot it, and the same adapter went in twice."""
    model = packed(tmp_path)
    adapter = read_adapter(tiny_adapter(tmp_path / "a", model.config), model.config)
    write_folder(merged(model, adapter), tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again.rebar")
    convert(tmp_path / "again.rebar", tmp_path / "third.rebar")
    for place in ("out", "again.rebar", "third.rebar"):
        found = open_model(tmp_path / place)
        assert merged_digests(found) == (adapter.digest,)
        with pytest.raises(InputError, match="already"):
            merged(found, adapter)


@pytest.mark.parametrize(
    "note", ["ab", "x" * 64, "a" * 64 + "  " + "b" * 64, " ".join(["a" * 64] * 257), ""]
)
def test_notes_of_a_stranger_are_not_kept(tmp_path: Path, note: str) -> None:
    """Megabytes of them would have made a .rebar file whose header is too long to be opened."""
    write_folder(packed(tmp_path), tmp_path / "out")
    weights = tmp_path / "out" / "model.safetensors"
    whole = weights.read_bytes()
    nbytes = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + nbytes])
    header["__metadata__"]["merged_adapters"] = note
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + nbytes :])
    assert merged_digests(open_model(tmp_path / "out")) == ()
    weights.write_bytes(whole)


NO_TOKENS = TokenizerData("bpe", "gpt-2", ["a"], [1])
LLAMA3 = RopeConfig(500_000.0, 16, "llama3", 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "config",
    [
        tiny_config("llama", rope=LLAMA3, tied_head=False),
        tiny_config("llama", rope=RopeConfig(10000.0, 16, "linear", 4.0)),
        tiny_config("llama", qkv_bias=True),
        tiny_config("gemma3", logit_softcap=30.0, attention_softcap=50.0, layers=13),
        tiny_config("gemma3", sliding_window=None),
        tiny_config("gemma3", attention_scale=168**-0.5, rope=RopeConfig(1e6, 16, "linear", 8.0)),
    ],
    ids=["llama3", "linear", "biases", "caps", "no-window", "scales"],
)
def test_a_description_survives(config: DecoderConfig) -> None:
    """hf_config itself reads back what it wrote and compares; here it must not refuse."""
    written = hf_config(config, NO_TOKENS, "F32")
    assert written["model_type"] == {"gemma3": "gemma3_text"}.get(
        config.family, "qwen2" if config.qkv_bias else config.family
    )


@pytest.mark.parametrize(
    "config",
    [
        tiny_config("llama", rope=RopeConfig(10000.0, 8)),
        tiny_config("llama", attention_softcap=50.0),
        tiny_config("llama", embedding_scale=2.0),
        tiny_config("gemma3", embedding_scale=1.0),
        tiny_config("qwen2", sliding_window=16, sliding_pattern=2),
    ],
    ids=["half-rotated", "cap", "scaled", "unscaled", "windows"],
)
def test_what_transformers_has_no_words_for_is_refused(config: DecoderConfig) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no words for .* Write the model as"):
        hf_config(config, NO_TOKENS, "F32")


def test_a_folder_of_the_hub_comes_back(tmp_path: Path) -> None:
    """tokenizer.json and all: ours of theirs reads as theirs does."""
    for family in FAMILIES:
        source = open_model(tiny_hf(tmp_path, family))
        write_folder(source, tmp_path / family)
        read = open_model(tmp_path / family)
        assert source.tokenizer is not None
        assert read.tokenizer is not None
        for field in ("kind", "pre", "tokens", "types", "end_ids", "bos_id", "eos_id", "add_bos"):
            assert getattr(read.tokenizer, field) == getattr(source.tokenizer, field)
        ours, theirs = Tokenizer.of(read), Tokenizer.of(source)
        assert [ours.encode(t) for t in TEXTS] == [theirs.encode(t) for t in TEXTS]
