"""Broken and hostile Hugging Face folders: nothing outside the folder is opened, nothing
pickled is read.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.errors import CorruptFileError, MissingFileError, ModelFileError, UnsupportedModelError
from rebar.graph.weights import open_model
from rebar.graph.weights.safetensors import read_safetensors
from tests.graph.weights.hostile import refused
from tests.tiny import tiny_hf, tiny_model
from tests.tiny.hf import bpe_json, hf_values, safetensors_bytes, spm_json, write_json

INDEX = "model.safetensors.index.json"


def header(text: bytes, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(**changes: object) -> bytes:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    return header(json.dumps({"t": entry}).encode())


BROKEN: dict[str, tuple[bytes, str]] = {
    "length of all ones": (b"\xff" * 8 + b"{}", "a header of"),
    "length of the file": (struct.pack("<Q", 18) + b"{}" + b"\0" * 8, "a header of 18"),
    "length 0": (struct.pack("<Q", 0) + b"\0" * 8, "unreadable"),
    "length above the limit": (struct.pack("<Q", 100_000_001) + b"{}", "a header of"),
    "seven bytes": (b"\0" * 7, "cannot hold"),
    "a list": (header(b"[]"), "unreadable"),
    "not UTF-8": (header(b'{"\xff\xfe": 1}'), "unreadable|described"),
    "cut JSON": (header(b'{"t": {"dtype": "F32"'), "unreadable"),
    "nested": (header(b'{"t":' * 50_000), "unreadable"),
    "backwards": (tensor(data_offsets=[8, 4]), "negative"),
    "negative": (tensor(data_offsets=[-1, 4]), "negative"),
    "text offset": (tensor(data_offsets=["0", 4]), "described"),
    "three offsets": (tensor(data_offsets=[0, 4, 8]), "described"),
    "float offset": (tensor(data_offsets=[0.5, 8]), "described"),
    "huge offset": (tensor(data_offsets=[0, 1 << 70]), "described|needs"),
    "past the end": (tensor(shape=[4], data_offsets=[0, 16]), "the file has 8"),
    "shape too large": (tensor(shape=[1000, 1000], data_offsets=[0, 4]), "needs 4000000"),
    "shape wraps": (tensor(shape=[1 << 62, 4], data_offsets=[0, 0]), "needs"),
    "many dimensions": (tensor(shape=[1 << 60] * 1000), "1000 dimensions"),
    "negative shape": (tensor(shape=[-2, -1]), "negative"),
    "a number": (tensor(shape=[], data_offsets=[0, 4]), "the file has|single number"),
    "empty": (tensor(shape=[0, 4], data_offsets=[0, 0]), "the file has|empty"),
    "type": (tensor(dtype="F8_XXX"), "F8_XXX.*F32, F16, BF16"),
    "hole": (tensor(shape=[1], data_offsets=[4, 8]), "hole"),
    "rest": (tensor(shape=[1], data_offsets=[0, 4]), "the file has 8"),
    "unknown field": (tensor(extra=1), "described"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_headers_are_not_trusted(tmp_path: Path, what: str) -> None:
    """A-f5: eight bytes of length made a reader allocate what they said."""
    raw, match = BROKEN[what]
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with refused(match):
        read_safetensors(path)


def test_overlapping_tensors(tmp_path: Path) -> None:
    entries = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}
    path = tmp_path / "x.safetensors"
    path.write_bytes(header(json.dumps(entries).encode()))
    with refused("overlap", CorruptFileError):
        read_safetensors(path)


def test_empty_file(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path)
    (folder / "model.safetensors").write_bytes(b"")
    with refused("is empty", MissingFileError):
        open_model(folder)


def test_truncated_anywhere(tmp_path: Path) -> None:
    raw = safetensors_bytes(hf_values(tiny_model("llama", layers=1, width=8, heads=2, kv_heads=1)))
    path = tmp_path / "x.safetensors"
    for size in [*range(1, 300, 3), *range(300, len(raw), len(raw) // 50)]:
        path.write_bytes(raw[:size])
        with pytest.raises(ModelFileError):
            read_safetensors(path)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 900), more=st.binary(min_size=1, max_size=9))
def test_changed_bytes_give_tensors_or_a_typed_error(tmp_path: Path, at: int, more: bytes) -> None:
    raw = bytearray(
        safetensors_bytes(hf_values(tiny_model("llama", layers=1, width=8, heads=2, kv_heads=1)))
    )
    raw[at : at + len(more)] = more
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    try:
        found = read_safetensors(path)
    except ModelFileError:
        return
    assert sum(t.data.nbytes for t in found.values()) < len(raw)


def sharded(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = tiny_hf(tmp_path, shards=2)
    return folder, json.loads((folder / INDEX).read_text("utf-8"))


@pytest.mark.parametrize(
    "target",
    [
        "../other/model.safetensors", "sub/../../x.safetensors", "sub/x.safetensors",
        "a\0b.safetensors", "..", "", ".safetensors/..", "model.bin", "a\\b.safetensors",
        "/ABSOLUTE",
    ],
)  # fmt: skip
def test_an_index_cannot_leave_its_folder(tmp_path: Path, target: str) -> None:
    """A-f6: The file it names is a valid one and must not even be opened: its access time stays."""
    folder, index = sharded(tmp_path)
    other = tmp_path / "other" / "model.safetensors"
    other.parent.mkdir()
    other.write_bytes(safetensors_bytes(hf_values(tiny_model("llama"))))
    os.utime(other, (0, 0))
    name = str(other) if target == "/ABSOLUTE" else target
    index["weight_map"]["model.norm.weight"] = name
    write_json(folder / INDEX, index)
    with refused("no file name of this folder", CorruptFileError):
        open_model(folder)
    assert other.stat().st_atime == 0


def test_a_pipe_in_place_of_a_shard_does_not_block(tmp_path: Path) -> None:
    folder, index = sharded(tmp_path)
    shard = folder / sorted(set(index["weight_map"].values()))[0]
    shard.unlink()
    os.mkfifo(shard)
    with refused("not a regular file", MissingFileError):
        open_model(folder)


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
             "chat_template.jinja", "model.safetensors"],
)  # fmt: skip
def test_a_pipe_in_place_of_any_file_does_not_block(tmp_path: Path, file: str) -> None:
    folder = tiny_hf(tmp_path)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with refused("not a regular file", MissingFileError):
        open_model(folder)


def test_a_pipe_in_place_of_a_model_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with refused("not a regular file", MissingFileError):
        open_model(tmp_path / "model.gguf")


@pytest.mark.parametrize("value", [5, None, ["x"], {"a": "b"}])
def test_index_values_must_be_names(tmp_path: Path, value: object) -> None:
    """A-f6: what is no name is no file."""
    folder, index = sharded(tmp_path)
    index["weight_map"]["model.norm.weight"] = value
    write_json(folder / INDEX, index)
    with refused("is no index", CorruptFileError):
        open_model(folder)


def test_missing_and_extra_are_named(tmp_path: Path) -> None:
    """A-f6: a shard that lacks what the index says, or brings more."""
    folder, index = sharded(tmp_path)
    first, second = sorted(set(index["weight_map"].values()))
    in_first = next(name for name, file in index["weight_map"].items() if file == first)
    moved = {"weight_map": index["weight_map"] | {in_first: second}}
    write_json(folder / INDEX, moved)
    with refused("has, against the index|lacks", CorruptFileError):
        open_model(folder)
    write_json(folder / INDEX, index)
    (folder / first).unlink()
    with refused(f"shard {first} is missing", MissingFileError):
        open_model(folder)


def test_one_name_in_two_shards(tmp_path: Path) -> None:
    """A-f4: both were accepted, and the last one won."""
    folder, index = sharded(tmp_path)
    first, second = sorted(set(index["weight_map"].values()))
    (folder / second).write_bytes((folder / first).read_bytes())
    with refused("lacks", CorruptFileError):
        open_model(folder)


class Marker:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (self.path, 0o755)


def test_pickles_are_refused_and_never_run(tmp_path: Path) -> None:
    """A-f8: unpickling runs what the file says."""
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Marker(marker))
    folder = tiny_hf(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bomb)
    with refused("pickled weights.*never read", UnsupportedModelError):
        open_model(folder)
    with refused("pickle.*never read", UnsupportedModelError):
        open_model(folder / "pytorch_model.bin")
    (folder / "optimizer.pt").write_bytes(bomb)
    (folder / "model.safetensors").write_bytes(bomb)
    with refused("header", ModelFileError):
        open_model(folder)
    with zipfile.ZipFile(folder / "model.safetensors", "w") as archive:
        archive.writestr("data.pkl", bomb)
    with refused("archive of pickled weights", UnsupportedModelError):
        open_model(folder)
    assert not marker.exists()


def test_an_empty_folder(tmp_path: Path) -> None:
    with refused(r"config\.json cannot be opened", MissingFileError):
        open_model(tmp_path)


CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "family": ({"model_type": "mamba"}, "mamba.*llama, qwen2"),
    "quantized": ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    "text width": ({"hidden_size": "64"}, "not as it must be"),
    "true layers": ({"num_hidden_layers": True}, "not as it must be"),
    "no width": ({"hidden_size": None}, "hidden_size is missing"),
    "million layers": ({"num_hidden_layers": 10**6}, "layers is 1000000"),
    "other layers": ({"num_hidden_layers": 3}, r"layers\.2\.input_layernorm\.weight' is missing"),
    "fewer layers": ({"num_hidden_layers": 1}, "does not have"),
    "zero heads": ({"num_attention_heads": 0}, "heads is 0"),
    "negative heads": ({"num_attention_heads": -4}, "heads is -4"),
    "odd head": ({"head_dim": 15}, "rotated dimensions"),
    "huge": ({"intermediate_size": 1 << 62}, "mlp_width is"),
    "beyond 64 bits": ({"intermediate_size": 1 << 70}, "mlp_width is"),
    "vocabulary": ({"vocab_size": 500}, "shape"),
    "epsilon": ({"rms_norm_eps": 0}, "epsilon"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
    "factor": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "impossible numbers"),
    "activation": ({"hidden_act": "relu"}, "relu"),
    "MLP biases": ({"mlp_bias": True}, "biases in the MLP"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONFIGS)
def test_config_is_checked(tmp_path: Path, what: str) -> None:
    changes, match = CONFIGS[what]
    folder = tiny_hf(tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", config | changes)
    with refused(match):
        open_model(folder)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b'{"a":' * 30_000, b"nul"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_unreadable_json(tmp_path: Path, file: str, raw: bytes) -> None:
    folder = tiny_hf(tmp_path)
    (folder / file).write_bytes(raw)
    with refused("not as it must be", CorruptFileError):
        open_model(folder)


TOKENIZERS: dict[str, tuple[dict[str, object], str]] = {
    "ids beyond": ({"added_tokens": [{"id": 512, "content": "x"}]}, "reach 512"),
    "negative": ({"added_tokens": [{"id": -1, "content": "x"}]}, "reach"),
    "one id twice": ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}, "one id"),
    "no tokens": ({"model": {"type": "BPE", "vocab": {}}, "added_tokens": []}, "reach -1"),
    "text ids": ({"model": {"type": "BPE", "vocab": {"a": "0"}}}, "unreadable"),
    "no type": ({"model": {}}, "not supported"),
    "merges of three": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b", "c"]]}}, "unreadable"),
}  # fmt: skip


@pytest.mark.parametrize("what", TOKENIZERS)
def test_tokenizer_tables_are_checked(tmp_path: Path, what: str) -> None:
    changes, match = TOKENIZERS[what]
    folder = tiny_hf(tmp_path)
    write_json(folder / "tokenizer.json", bpe_json("llama") | changes)
    with refused(match):
        open_model(folder)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]}},
    ],
)
def test_unknown_pipelines_of_sentencepiece_kind(tmp_path: Path, parts: dict[str, object]) -> None:
    folder = tiny_hf(tmp_path, "gemma3")
    write_json(folder / "tokenizer.json", spm_json() | parts)
    with refused("not supported", UnsupportedModelError):
        open_model(folder)


def test_a_template_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with refused("not UTF-8", CorruptFileError):
        open_model(folder)


def test_layer_types_without_a_pattern(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path, "gemma3", layers=4)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    full, window = "full_attention", "sliding_attention"
    for kinds in (
        [full, window, window, full],
        [window, full, window],
        [window, full, full, window],
    ):
        write_json(folder / "config.json", config | {"layer_types": kinds})
        with refused("no repeated pattern", UnsupportedModelError):
            open_model(folder)


def test_an_index_without_end(tmp_path: Path) -> None:
    folder, _ = sharded(tmp_path)
    with (folder / INDEX).open("wb") as sink:
        sink.truncate((1 << 24) + 1)
    with pytest.raises(CorruptFileError, match="is larger than 16777216 bytes"):
        open_model(folder)
