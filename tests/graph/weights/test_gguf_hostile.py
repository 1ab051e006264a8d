"""Broken and hostile GGUF files: a typed error that names what is wrong, before anything is
allocated.
"""

from __future__ import annotations

import contextlib
import gc
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.errors import CorruptFileError, ModelFileError, UnsupportedModelError
from rebar.graph.weights import open_model
from tests.graph.weights.hostile import refused
from tests.tiny import tiny_gguf, tiny_model
from tests.tiny.gguf_bytes import Key, Tensor, gguf_bytes, key_bytes, text
from tests.tiny.model import gguf_keys, gguf_tensors

MODEL = tiny_model("llama", layers=2, width=32, heads=2, kv_heads=1, mlp_width=32)
KEYS = gguf_keys(MODEL.config)
TENSORS = gguf_tensors(MODEL)
Q = "blk.0.attn_q.weight"
ARCH: Key = ("general.architecture", "str", "llama")


def opened(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    open_model(path)


def head(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def with_key(key: Key) -> list[Key]:
    return [*(k for k in KEYS if k[0] != key[0]), key]


def with_tensor(name: str, **changes: object) -> list[Tensor]:
    return [replace(t, **changes) if t.name == name else t for t in TENSORS]  # type: ignore[arg-type]


def without(*names: str) -> list[Key]:
    return [key for key in KEYS if key[0] not in names]


U64 = (1 << 64) - 1
COUNTS = {
    "tensors": head(U64, 0),
    "keys": head(0, 1 << 62),
    "key": head(0, 1) + struct.pack("<Q", 1 << 40) + b"x" * 64,
    "claims 9223": head(0, 1) + text("k") + struct.pack("<IQ", 8, 1 << 63) + b"x" * 64,
    "values": head(0, 1) + text("k") + struct.pack("<IIQ", 9, 0, 1 << 40) + b"x" * 64,
    "strings": head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 40) + b"x" * 64,
    "leaves": head(0, 1) + text("k") + struct.pack("<IIQQQ", 9, 8, 2, 1 << 62, 1 << 63) + b"x" * 64,
    "leaves the file": head(0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 99) + b"x" * 64,
    "dimensions": head(1, 0) + text("t" * 8) + struct.pack("<I", 1 << 31) + b"\0" * 64,
    "name": head(1, 0) + text("t" * 1000) + struct.pack("<I", 1) + b"\0" * 64,
}


@pytest.mark.parametrize("what", COUNTS)
def test_counts_and_lengths_are_not_trusted(tmp_path: Path, what: str) -> None:
    """A-f1: A 160-byte file made readers allocate gigabytes."""
    with refused(what, CorruptFileError):
        opened(tmp_path, COUNTS[what])


def test_nested_arrays(tmp_path: Path) -> None:
    """A-f1: a thousand arrays in arrays."""
    raw = head(0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000
    with refused("array of arrays", UnsupportedModelError):
        opened(tmp_path, raw)


@pytest.mark.parametrize("kind", [13, 250])
def test_unknown_value_types(tmp_path: Path, kind: int) -> None:
    for body in (struct.pack("<I", kind), struct.pack("<IIQ", 9, kind, 1)):
        with refused("unknown type", CorruptFileError):
            opened(tmp_path, head(0, 1) + text("k") + body + b"\0" * 64)


def test_truncated_anywhere(tmp_path: Path) -> None:
    """A-f1: Every length below 512, 20 lengths further on and the last byte: never a struct.error
    or IndexError.
    """
    raw = gguf_bytes(KEYS, TENSORS)
    rng = np.random.default_rng(0)
    sizes = [*range(1, 512), *rng.integers(512, len(raw), 20).tolist(), len(raw) - 1]
    path = tmp_path / "cut.gguf"
    for size in sizes:
        path.write_bytes(raw[:size])
        with pytest.raises(ModelFileError):
            open_model(path)


def test_empty_file(tmp_path: Path) -> None:
    with refused("no model file"):
        opened(tmp_path, b"")


@pytest.mark.parametrize("raw", [b"GGUF\0\0\0\3" + b"\0" * 16, b"GGUF\0\0\0\2" + b"\xff" * 64])
def test_big_endian_files_are_told_apart(tmp_path: Path, raw: bytes) -> None:
    """A-f4: such a file's counts were read backwards."""
    with refused("big-endian", UnsupportedModelError):
        opened(tmp_path, raw)


@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_versions(tmp_path: Path, version: int) -> None:
    with refused(f"version {version}", UnsupportedModelError):
        opened(tmp_path, gguf_bytes(KEYS, TENSORS, version=version))


DAMAGED: dict[str, tuple[list[Tensor], type[ModelFileError], str]] = {
    "product wraps": (with_tensor(Q, dims=(2, 1 << 63)), CorruptFileError, "leave the file"),
    "zero": (with_tensor(Q, dims=(0, 4)), CorruptFileError, "dimension of 0"),
    "nine dims": (with_tensor(Q, dims=(1,) * 9), CorruptFileError, "9 dimensions"),
    "far offset": (with_tensor(Q, offset=1 << 63), CorruptFileError, "leave the file"),
    "odd offset": (with_tensor(Q, offset=33), CorruptFileError, "alignment"),
    "overlap": (with_tensor(Q, offset=0), CorruptFileError, "overlap"),
    "part blocks": (with_tensor(Q, dims=(33, 32), type=2), CorruptFileError, "whole Q4_0 blocks"),
    "unknown type": (with_tensor(Q, type=250), UnsupportedModelError, "number 250"),
    "known to ggml": (with_tensor(Q, type=10), UnsupportedModelError, "Q2_K.*Q4_K"),
    "too large": (with_tensor(Q, dims=(1 << 20, 1 << 20)), CorruptFileError, "leave the file"),
    "other shape": (with_tensor(Q, dims=(32, 16)), CorruptFileError, "shape"),
    "transposed": (with_tensor("blk.1.ffn_down.weight", dims=(16, 64)), CorruptFileError, "shape"),
    "twice": ([*TENSORS, TENSORS[2]], CorruptFileError, "twice"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_the_tensor_table_is_not_trusted(tmp_path: Path, what: str) -> None:
    """A-f2: The product of dims once wrapped to 0, an offset once pointed past the end; the message
    names the tensor.
    """
    tensors, kind, match = DAMAGED[what]
    name = "blk.1.ffn_down" if what == "transposed" else "blk.0.attn_" if what == "overlap" else ""
    with refused(match, kind):
        opened(tmp_path, gguf_bytes(KEYS, tensors))
    with pytest.raises(kind, match=name or "blk.0.attn_q.weight|blk.0.attn_norm"):
        open_model(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("u32", 0), ("u32", 3), ("u32", 1 << 30), ("u32", 4), ("i32", 32), ("str", "32"),
        ("bool", True), ("[u32]", [32]),
    ],
)  # fmt: skip
def test_alignment_rules(tmp_path: Path, kind: str, value: object) -> None:
    """A-f3: 0 divided by, 2^30 padded, a text taken for a number."""
    with refused(r"general\.alignment", CorruptFileError):
        opened(tmp_path, gguf_bytes([("general.alignment", kind, value), *KEYS], TENSORS))


def test_a_key_twice(tmp_path: Path) -> None:
    """A-f3: which of two values holds?"""
    keys = [("general.alignment", "u32", 32), ("general.alignment", "u32", 64), *KEYS]
    with refused("twice", CorruptFileError):
        opened(tmp_path, gguf_bytes(keys, TENSORS))


WRONG_KEYS: dict[str, tuple[list[Key], str]] = {
    "a million layers": (with_key(("llama.block_count", "u32", 10**6)), "says 1000000 layers"),
    "fewer layers": (with_key(("llama.block_count", "u32", 1)), "says 1 layers"),
    "no layers key": (without("llama.block_count"), "missing"),
    "text for a number": (with_key(("llama.block_count", "str", "2")), "not a non-neg"),
    "negative": (with_key(("llama.embedding_length", "i32", -1)), "not a non-neg"),
    "no heads": (with_key(("llama.attention.head_count", "u32", 0)), "heads is 0"),
    "huge heads": (with_key(("llama.attention.head_count", "u64", 1 << 40)), "heads is"),
    "kv does not divide": (with_key(("llama.attention.head_count_kv", "u32", 3)), "do not divide"),
    "other widths": (with_key(("llama.embedding_length", "u32", 64)), "shape"),
    "odd rotation": (with_key(("llama.rope.dimension_count", "u32", 7)), "rotated"),
    "long rotation": (with_key(("llama.rope.dimension_count", "u32", 64)), "rotated"),
    "no epsilon": (without("llama.attention.layer_norm_rms_epsilon"), "missing"),
    "epsilon is no number": (
        with_key(("llama.attention.layer_norm_rms_epsilon", "f32", float("nan"))), "finite"),
    "theta": (with_key(("llama.rope.freq_base", "f32", -1.0)), "impossible numbers"),
    "architecture": (with_key(("general.architecture", "str", "mamba")), "mamba.*llama, qwen2"),
    "yarn": ([*KEYS, ("llama.rope.scaling.type", "str", "yarn")], "yarn"),
    "long values": (with_key(("llama.attention.value_length", "u32", 8)), "different lengths"),
    "experts": ([*KEYS, ("llama.expert_count", "u32", 8)], "mixture of experts"),
    "parts": ([*KEYS, ("split.count", "u16", 3)], "3 parts"),
    "tokenizer": (with_key(("tokenizer.ggml.model", "str", "rwkv")), "rwkv"),
    "too few types": (with_key(("tokenizer.ggml.token_type", "[i32]", [1])), "1 entries"),
    "too many tokens": (with_key(("tokenizer.ggml.tokens", "[str]", ["x"] * 513)), "513 tokens"),
    "no tokens": (without("tokenizer.ggml.tokens"), "0 tokens"),
    "numbers for tokens": (with_key(("tokenizer.ggml.tokens", "[u32]", [1])), "array of strings"),
    "strings for types": (with_key(("tokenizer.ggml.token_type", "[str]", ["1"])), "of numbers"),
    "token not UTF-8": (
        with_key(("tokenizer.ggml.tokens", "[str]", [b"\xff", *["x"] * 511])), "not UTF-8"),
    "no merges": (without("tokenizer.ggml.merges"), "merges"),
    "bos outside": (with_key(("tokenizer.ggml.bos_token_id", "u32", 512)), "512"),
    "template is a number": (with_key(("tokenizer.chat_template", "u32", 1)), "not a string"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_KEYS)
def test_keys_are_checked(tmp_path: Path, what: str) -> None:
    """A-f2: counts of layers and the like that the tensors contradict."""
    keys, match = WRONG_KEYS[what]
    with refused(match):
        opened(tmp_path, gguf_bytes(keys, TENSORS))


def test_missing_and_foreign_tensors_are_named(tmp_path: Path) -> None:
    for name in ("token_embd.weight", "output_norm.weight", Q):
        with refused(f"{name}.*missing", CorruptFileError):
            opened(tmp_path, gguf_bytes(KEYS, [t for t in TENSORS if t.name != name]))
    foreign = Tensor("blk.0.ffn_gate_inp.weight", (32,), 0, b"\0" * 128)
    with refused("ffn_gate_inp", UnsupportedModelError):
        opened(tmp_path, gguf_bytes(KEYS, [*TENSORS, foreign]))
    with refused("missing", CorruptFileError):
        opened(tmp_path, gguf_bytes(KEYS, []))


@pytest.mark.parametrize(
    "divisors", [[1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 8.0], [8.0] * 8, [1.0] * 7]
)
def test_unknown_rope_divisors_are_refused(tmp_path: Path, divisors: list[float]) -> None:
    """Scalings other than Llama 3's come in the same tensor; taken for it they would be
    silently wrong.
    """
    data = np.array(divisors, dtype="<f4").tobytes()
    extra = Tensor("rope_freqs.weight", (len(divisors),), 0, data)
    with refused("divisors", UnsupportedModelError):
        opened(tmp_path, gguf_bytes(KEYS, [*TENSORS, extra]))


def test_rope_divisors_of_one_are_no_scaling(tmp_path: Path) -> None:
    extra = Tensor("rope_freqs.weight", (8,), 0, np.ones(8, dtype="<f4").tobytes())
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(KEYS, [*TENSORS, extra]))
    assert open_model(tmp_path / "m.gguf").config.rope.scaling == "none"


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "archive or a pickle"),
        (b"\x80\x02}q\0", "archive or a pickle"),
        (struct.pack("<Q", 2) + b"{}", "its folder is the model"),
        (b"#!/bin/sh", "no model file"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, raw: bytes, match: str) -> None:
    with refused(match, UnsupportedModelError):
        opened(tmp_path, raw)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", Path("a\0b")):
        with pytest.raises(ModelFileError, match="cannot be opened"):
            open_model(path)


def test_a_quantized_norm_is_refused(tmp_path: Path) -> None:
    tensors = with_tensor("output_norm.weight", type=8, data=b"\0" * 34)
    with refused("final_norm.*Q8_0", UnsupportedModelError):
        opened(tmp_path, gguf_bytes(KEYS, tensors))


def test_a_key_that_is_not_utf_8(tmp_path: Path) -> None:
    with refused("not UTF-8", CorruptFileError):
        opened(tmp_path, head(0, 1) + text(b"\xff\xfe") + struct.pack("<I", 8) + text("v"))


def test_strings_without_end_take_little_time(tmp_path: Path) -> None:
    """A file of nothing but empty strings: the count is refused above a limit, not walked for
    minutes.
    """
    count = (1 << 22) + 1
    raw = head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, count) + b"\0" * (8 * count)
    with refused("strings", CorruptFileError):
        opened(tmp_path, raw)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 3000), value=st.integers(0, 255), more=st.binary(max_size=9))
def test_changed_bytes_give_a_model_or_a_typed_error(
    tmp_path: Path, at: int, value: int, more: bytes
) -> None:
    raw = bytearray(gguf_bytes(KEYS, TENSORS))
    raw[at : at + 1 + len(more)] = bytes([value]) + more
    path = tmp_path / "changed.gguf"
    path.write_bytes(raw)
    with contextlib.suppress(ModelFileError):
        assert open_model(path).config.family == "llama"


def test_the_old_model_stays_readable_when_a_new_file_fails(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path))
    before = bytes(model.tensors["embed.weight"].data[:64])
    with pytest.raises(ModelFileError):
        opened(tmp_path, COUNTS["tensors"])
    assert bytes(model.tensors["embed.weight"].data[:64]) == before


def test_the_writer_of_these_tests_is_sound(tmp_path: Path) -> None:
    """The undamaged twin of every file above opens; else the tests would prove nothing."""
    opened(tmp_path, gguf_bytes(KEYS, TENSORS))
    assert key_bytes(ARCH).startswith(struct.pack("<Q", 20))


def test_nothing_is_left_behind_by_refused_files(tmp_path: Path) -> None:
    """A mapping holds a file descriptor: after many refusals there are as many as before."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        for raw in (COUNTS["tensors"], gguf_bytes(KEYS, TENSORS[:-1])):
            (tmp_path / str(number)).write_bytes(raw)
            with pytest.raises(ModelFileError):
                open_model(tmp_path / str(number))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
