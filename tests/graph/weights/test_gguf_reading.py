"""Sound GGUF files: what is read equals what was written, and what the gguf package reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from rebar.graph.models.config import RopeConfig
from rebar.graph.weights import open_model
from rebar.graph.weights.gguf_config import llama3_divisors
from rebar.graph.weights.gguf_model import rope_rows
from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.types import FORMATS, stored_nbytes
from tests.graph.weights.reference import values_of
from tests.tiny import tiny_gguf, tiny_model
from tests.tiny.gguf_bytes import Tensor, gguf_bytes
from tests.tiny.model import gguf_keys, gguf_tensors

FAMILIES = ("llama", "qwen2", "gemma3")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_and_the_description_come_back(tmp_path: Path, family: str) -> None:
    written = tiny_model(family, seed=3)
    model = open_model(tiny_gguf(tmp_path, family, seed=3))
    assert model.format == "gguf"
    assert model.name == f"Tiny {family}"
    # f32 keys hold the epsilon, rounded; everything else is exact.
    assert model.config.norm_eps == float(np.float32(written.config.norm_eps))
    assert model.config == replace(written.config, norm_eps=model.config.norm_eps)
    assert list(model.tensors) == list(written.values)
    for name, values in written.values.items():
        np.testing.assert_array_equal(values_of(model.tensors[name]), values, err_msg=name)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_each_type_is_read_as_the_reference_reads_it(tmp_path: Path, kind: WeightType) -> None:
    """The rounding error bounds the quantizer of the tests as well: half a step of the
    coarsest group.
    """
    path = tiny_gguf(tmp_path, "qwen2", kind, width=256)
    written = tiny_model("qwen2", width=256)
    model = open_model(path)
    theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for name, stored in (
        ("layers.0.gate.weight", "blk.0.ffn_gate.weight"),
        ("embed.weight", "token_embd.weight"),
    ):
        tensor = model.tensors[name]
        assert tensor.type == kind
        np.testing.assert_array_equal(tensor.data, theirs[stored].data.view(np.uint8).ravel())
        # 4 bits over a range of at most 2 * 5 sigma, sigma 1/16: a step is 0.042, K scales add a
        # 1/63 of it.
        bound = 0.05 if kind.startswith(("Q4", "Q5", "Q6")) else 0.005
        assert np.abs(values_of(tensor) - written.values[name]).max() < bound


def test_vectors_are_f32_whatever_the_file_holds(tmp_path: Path) -> None:
    model = tiny_model("llama")
    tensors = [
        Tensor(t.name, t.dims, 1, np.frombuffer(t.data, "<f4").astype("<f2").tobytes())
        if len(t.dims) == 1
        else t
        for t in gguf_tensors(model)
    ]
    path = tmp_path / "half.gguf"
    path.write_bytes(gguf_bytes(gguf_keys(model.config), tensors))
    norm = open_model(path).tensors["final_norm.weight"]
    assert norm.type == "F32"
    expected = model.values["final_norm.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(norm.data.view("<f4"), expected)


@pytest.mark.parametrize(("head_dim", "dim"), [(16, 16), (16, 8), (6, 4), (80, 80)])
def test_rope_rows_undo_the_converter(head_dim: int, dim: int) -> None:
    """The converter's permutation (llama.cpp, LlamaModel.permute), written out by index."""
    order = rope_rows(3 * head_dim, head_dim, dim)
    for head in range(3):
        for pair in range(dim // 2):
            for half in range(2):
                assert (
                    order[head * head_dim + half * dim // 2 + pair]
                    == head * head_dim + 2 * pair + half
                )
        rest = np.arange(head * head_dim + dim, (head + 1) * head_dim)
        np.testing.assert_array_equal(order[rest], rest)


def test_llama_biases_are_put_in_rope_order(tmp_path: Path) -> None:
    written = tiny_model("llama", qkv_bias=True)
    model = open_model(tiny_gguf(tmp_path, "llama", qkv_bias=True))
    bias = model.tensors["layers.1.q.bias"].data.view("<f4")
    np.testing.assert_array_equal(bias, written.values["layers.1.q.bias"])


def test_llama3_scaling_is_recognised_by_its_divisors(tmp_path: Path) -> None:
    model = tiny_model("llama")
    rope = RopeConfig(theta=10000.0, dim=16, scaling="llama3", factor=8.0)
    divisors = llama3_divisors(rope).astype("<f4")
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    extra = Tensor("rope_freqs.weight", (8,), 0, divisors.tobytes())
    path = tmp_path / "scaled.gguf"
    path.write_bytes(gguf_bytes(gguf_keys(model.config), [*gguf_tensors(model), extra]))
    assert open_model(path).config.rope == rope


def test_linear_scaling(tmp_path: Path) -> None:
    model = tiny_model("gemma3")
    keys = [*gguf_keys(model.config), ("gemma3.rope.scaling.type", "str", "linear"),
            ("gemma3.rope.scaling.factor", "f32", 8.0)]  # fmt: skip
    path = tmp_path / "scaled.gguf"
    path.write_bytes(gguf_bytes(keys, gguf_tensors(model)))
    config = open_model(path).config
    assert (config.rope.scaling, config.rope.factor) == ("linear", 8.0)
    assert config.rope_local == RopeConfig(theta=10000.0, dim=16)


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    model = tiny_model("llama")
    for version, alignment in ((2, 32), (3, 64), (3, 4096)):
        path = tmp_path / f"{version}-{alignment}.gguf"
        keys = [*gguf_keys(model.config), ("general.alignment", "u32", alignment)]
        path.write_bytes(
            gguf_bytes(keys, gguf_tensors(model), version=version, alignment=alignment)
        )
        tensor = open_model(path).tensors["layers.1.down.weight"]
        np.testing.assert_array_equal(values_of(tensor), model.values["layers.1.down.weight"])


def test_nothing_is_copied(tmp_path: Path) -> None:
    """Matrices are views of one read-only mapping."""
    model = open_model(tiny_gguf(tmp_path, "llama", "Q8_0"))
    for tensor in model.tensors.values():
        assert not tensor.data.flags.writeable
        if len(tensor.shape) == 2:
            assert not tensor.data.flags.owndata
            assert tensor.data.nbytes == stored_nbytes(tensor.type, tensor.shape)


def test_end_tokens(tmp_path: Path) -> None:
    assert (tokenizer := open_model(tiny_gguf(tmp_path, "llama")).tokenizer) is not None
    assert tokenizer.end_ids == (0, 2)
    assert (tokenizer := open_model(tiny_gguf(tmp_path, "gemma3")).tokenizer) is not None
    assert tokenizer.end_ids == (1, 5)
    assert tokenizer.add_bos
    assert tokenizer.scores is not None


def test_a_user_defined_token_with_the_text_of_an_end_token_ends_nothing(tmp_path: Path) -> None:
    """Gemma 3's vocabulary has the HTML tag </s> as user-defined token 212; taken for an end token
    it cut every answer that struck text out.
    """
    model = tiny_model("llama")
    keys = [key for key in gguf_keys(model.config) if not key[0].endswith(("tokens", "token_type"))]
    tokens, types = [f"t{i}" for i in range(512)], [1] * 512
    tokens[7], types[7] = "</s>", 4
    tokens[8], types[8] = "<|eot_id|>", 3
    keys += [
        ("tokenizer.ggml.tokens", "[str]", tokens),
        ("tokenizer.ggml.token_type", "[i32]", types),
    ]
    path = tmp_path / "ends.gguf"
    path.write_bytes(gguf_bytes(keys, gguf_tensors(model)))
    assert (tokenizer := open_model(path).tokenizer) is not None
    assert tokenizer.end_ids == (2, 8)
