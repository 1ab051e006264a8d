"""Hugging Face folders: values, description and tokenizer equal what was written and what the
GGUF twin says.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.models.config import RopeConfig
from rebar.graph.weights import TokenizerData, open_model
from rebar.graph.weights.safetensors import read_safetensors
from tests.graph.weights.reference import values_of
from tests.tiny import tiny_gguf, tiny_hf, tiny_model
from tests.tiny.hf import (
    QWEN2_PATTERN,
    FloatType,
    bpe_json,
    hf_name,
    hf_values,
    safetensors_bytes,
    write_json,
)

FAMILIES = ("llama", "qwen2", "gemma3")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
def test_values_and_description_come_back(tmp_path: Path, family: str, shards: int) -> None:
    written = tiny_model(family, seed=5)
    model = open_model(tiny_hf(tmp_path, family, seed=5, shards=shards))
    assert model.format == "safetensors"
    assert model.config == written.config
    assert set(model.tensors) == set(written.values)
    stored = hf_values(written)
    for name, values in written.values.items():
        if (
            family == "gemma3" and "norm" in name
        ):  # w - 1 is stored: the 1 comes back as f32 adds it
            values = stored[hf_name(name, family)] + np.float32(1)
        np.testing.assert_array_equal(values_of(model.tensors[name]), values, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gguf_twin_says_the_same(tmp_path: Path, family: str) -> None:
    ours, twin = open_model(tiny_hf(tmp_path, family)), open_model(tiny_gguf(tmp_path, family))
    # A GGUF key holds the epsilon in f32.
    assert replace(ours.config, norm_eps=twin.config.norm_eps) == twin.config
    assert ours.chat_template == twin.chat_template
    assert ours.tokenizer is not None
    assert twin.tokenizer is not None
    # The GGUF twin of the BPE calls its fillers unused; tokenizer.json cannot. Its spm has no
    # merges.
    for field in (
        "kind",
        "pre",
        "tokens",
        "bos_id",
        "eos_id",
        "end_ids",
        "add_bos",
        "add_space_prefix",
        "unknown_id",
    ):
        assert getattr(ours.tokenizer, field) == getattr(twin.tokenizer, field), field
    if family != "gemma3":
        assert ours.tokenizer.merges == twin.tokenizer.merges
    else:
        assert ranked(ours.tokenizer) == ranked(twin.tokenizer)


def ranked(data: TokenizerData) -> list[int]:
    """Ids of the tokens that merges make, best first: only the order of scores means anything."""
    assert data.scores is not None
    merged = [i for i, kind in enumerate(data.types) if kind == 1 and data.scores[i] > -1000]
    return sorted(merged, key=lambda i: -data.scores[i] if data.scores else 0)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_types(tmp_path: Path, kind: FloatType) -> None:
    folder = tiny_hf(tmp_path, "qwen2", kind)
    model = open_model(folder)
    assert {t.type for t in model.tensors.values() if len(t.shape) == 2} == {kind}
    assert {t.type for t in model.tensors.values() if len(t.shape) == 1} == {"F32"}
    if kind != "BF16":  # NumPy has no bfloat16, so the reference cannot read it
        theirs = load_file(folder / "model.safetensors")
        np.testing.assert_array_equal(
            model.tensors["layers.0.gate.weight"].data,
            theirs["model.layers.0.mlp.gate_proj.weight"].view(np.uint8).ravel(),
        )


def test_what_the_reference_writes_is_read(tmp_path: Path) -> None:
    values: dict[str, NDArray[Any]] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(5, dtype=np.float16),
    }
    save_file(values, tmp_path / "x.safetensors", metadata={"format": "np"})
    found = read_safetensors(tmp_path / "x.safetensors")
    assert {name: t.shape for name, t in found.items()} == {"b": (2, 3), "a": (5,)}
    for name, array in values.items():
        assert bytes(found[name].data) == array.tobytes()


def test_unaligned_tensors_are_copied_into_place(tmp_path: Path) -> None:
    """Other writers do not pad their header; f16 weights then began at odd addresses."""
    folder = tiny_hf(tmp_path, "llama", "F16")
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    odd = raw[8 : 8 + length].rstrip() + b" "
    odd += b" " * (len(odd) % 2 == 0)
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(odd)) + odd + raw[8 + length :]
    )
    for tensor in open_model(folder).tensors.values():
        assert tensor.data.ctypes.data % 2 == 0


def edit(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    found |= changes
    path.write_text(json.dumps({k: v for k, v in found.items() if v != "DELETE"}), "utf-8")


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": LLAMA3}, RopeConfig(1e4, 16, "llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeConfig(1e4, 16, "linear", 2.0)),
        ({"rope_scaling": None, "rope_theta": 5e5}, RopeConfig(5e5, 16)),
        ({"rope_theta": "DELETE", "rope_parameters": {"rope_theta": 7e4}}, RopeConfig(7e4, 16)),
        ({"rope_theta": "DELETE", "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
         RopeConfig(5e5, 16, "llama3", 8.0, 1.0, 4.0, 8192)),
    ],
)  # fmt: skip
def test_rope_forms(tmp_path: Path, changes: dict[str, object], expected: RopeConfig) -> None:
    folder = tiny_hf(tmp_path)
    edit(folder, "config.json", **changes)
    assert open_model(folder).config.rope == expected


def test_gemma3_rope_by_layer_type(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path, "gemma3", layers=6)
    edit(
        folder, "config.json",
        rope_theta="DELETE", rope_local_base_freq="DELETE", sliding_window_pattern="DELETE",
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    )  # fmt: skip
    config = open_model(folder).config
    assert config.rope == RopeConfig(1e6, 16, "linear", 8.0)
    assert config.rope_local == RopeConfig(2e4, 16)
    assert config.sliding_pattern == 6


def test_a_model_with_pictures_gives_its_text_part(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path, "gemma3")
    text = json.loads((folder / "config.json").read_text("utf-8"))
    values = hf_values(tiny_model("gemma3"))
    renamed = {f"language_model.{name}": array for name, array in values.items()}
    renamed["vision_tower.patch.weight"] = np.ones((2, 2), dtype=np.float32)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(renamed))
    write_json(
        folder / "config.json",
        {"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 5]},
    )
    model = open_model(folder)
    assert model.config == tiny_model("gemma3").config
    assert "vision_tower.patch.weight" not in model.tensors


def test_head_dim_that_is_not_width_over_heads(tmp_path: Path) -> None:
    model = open_model(tiny_hf(tmp_path, head_dim=10, heads=3, kv_heads=1))
    assert model.config.head_dim == 10
    assert model.tensors["layers.0.q.weight"].shape == (30, 64)


@pytest.mark.parametrize(("tie", "head"), [(True, None), (True, "same")])
def test_tied_heads(tmp_path: Path, tie: bool, head: str | None) -> None:
    """A-f7: with a redundant head or without."""
    folder = tiny_hf(tmp_path, tied_head=tie)
    values = hf_values(tiny_model("llama", tied_head=True))
    if head:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    (folder / "model.safetensors").write_bytes(safetensors_bytes(values))
    model = open_model(folder)
    assert model.config.tied_head
    assert "head.weight" not in model.tensors


def test_a_missing_head_is_an_error(tmp_path: Path) -> None:
    """A-f7: Servers have run with a random head: healthy to look at, and every answer was noise."""
    folder = tiny_hf(tmp_path, tied_head=True)
    edit(folder, "config.json", tie_word_embeddings=False)
    with pytest.raises(CorruptFileError, match=r"lm_head\.weight is missing"):
        open_model(folder)


def test_a_head_that_differs_beside_a_tie_is_an_error(tmp_path: Path) -> None:
    """A-f7: which of the two is meant?"""
    folder = tiny_hf(tmp_path, tied_head=False)
    edit(folder, "config.json", tie_word_embeddings=True)
    with pytest.raises(CorruptFileError, match="differs from it"):
        open_model(folder)


def tokenizer_with(folder: Path, **parts: object) -> None:
    write_json(folder / "tokenizer.json", bpe_json("llama") | parts)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
LLAMA3_SPLIT = {
    "type": "Split", "behavior": "Isolated", "invert": False,
    "pattern": {"Regex": QWEN2_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)},
}  # fmt: skip
DIGITS = {"type": "Digits", "individual_digits": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([BYTE_LEVEL], "gpt-2"),
        ([DIGITS, BYTE_LEVEL], "smollm"),
        ([LLAMA3_SPLIT, NO_REGEX], "llama-bpe"),
    ],
)
def test_pre_tokenizers_are_recognised(tmp_path: Path, parts: list[object], name: str) -> None:
    folder = tiny_hf(tmp_path)
    tokenizer_with(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": parts})
    assert (tokenizer := open_model(folder).tokenizer) is not None
    assert tokenizer.pre == name


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            LLAMA3_SPLIT | {"pattern": {"Regex": r"\s+"}}, BYTE_LEVEL | {"use_regex": False}]}},
        {"normalizer": {"type": "Lowercase"}},
        {"model": {"type": "Unigram", "vocab": []}},
    ],
)  # fmt: skip
def test_unknown_pipelines_are_refused(tmp_path: Path, parts: dict[str, object]) -> None:
    """A fallback to GPT-2's expression gave other ids and no warning."""
    folder = tiny_hf(tmp_path)
    tokenizer_with(folder, **parts)
    with pytest.raises(UnsupportedModelError, match="not supported"):
        open_model(folder)


def test_templates(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path)
    listed = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    edit(folder, "tokenizer_config.json", chat_template=listed)
    assert open_model(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J", "utf-8")
    assert open_model(folder).chat_template == "J"


def test_end_ids_from_generation_config(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 7]})
    assert (tokenizer := open_model(folder).tokenizer) is not None
    assert tokenizer.end_ids == (0, 2, 7)
