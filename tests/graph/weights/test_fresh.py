"""A model from nothing: its first values, and its way into a file that serving opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.dataflow.text.learn_bpe import learn_bpe
from rebar.graph.learner import LearnerOptions, open_learner
from rebar.graph.parameters import dense, fill
from rebar.graph.weights import open_model, verify_digests, write_rebar
from rebar.graph.weights.fresh import fresh_model, trained_model
from rebar.graph.weights.model_file import ModelFile
from tests.tiny.model import tiny_config

TABLES = build_vocabulary(learn_bpe("a few words and a few more words", 257))


def made(seed: int = 0) -> ModelFile:
    config = tiny_config("llama", vocab_size=257, layers=2)
    return fresh_model(config, TABLES, seed=seed, name="new")


def written(model: ModelFile, path: Path) -> bytes:
    write_rebar(model, path, vocabulary=TABLES, provenance={})
    verify_digests(path)
    return path.read_bytes()


def test_first_values_are_of_the_seed_and_as_wide_as_said() -> None:
    """40,000 normal numbers: their deviation is within 1 / sqrt(80,000) = 0.35 % of what it was
    drawn with, times three for good measure.
    """
    model = made()
    values = {n: t.data.view("<f4").reshape(t.shape) for n, t in model.tensors.items()}
    assert (values["layers.0.attention_norm.weight"] == 1).all()
    assert values["layers.1.down.weight"].std() == pytest.approx(0.02 / 2, rel=0.03)
    assert values["embed.weight"].std() == pytest.approx(0.02, rel=0.03)
    assert not np.array_equal(values["layers.0.up.weight"], values["layers.0.gate.weight"])
    same, other = made(), made(seed=1)
    for name, tensor in model.tensors.items():
        assert np.array_equal(tensor.data, same.tensors[name].data)
    name = "layers.0.up.weight"
    assert not np.array_equal(model.tensors[name].data, other.tensors[name].data)


def test_what_was_trained_is_what_is_opened(tmp_path: Path) -> None:
    model = made()
    learner = open_learner(model, LearnerOptions(max_rows=16, device="ref"))
    before = written(model, tmp_path / "before.rebar")
    assert written(trained_model(model, learner.parameters), tmp_path / "same.rebar") == before
    parameter = learner.parameters["model.layers.1.mlp.up_proj.weight"]
    fill(parameter.value, 2 * dense(parameter.value))
    written(trained_model(model, learner.parameters), tmp_path / "after.rebar")
    read = open_model(tmp_path / "after.rebar")
    again = open_learner(read, LearnerOptions(max_rows=16, device="ref")).parameters
    for p in learner.parameters:
        assert np.array_equal(dense(again[p.name].value), dense(p.value))
    assert Tokenizer.of(read).encode("words") == Tokenizer(TABLES).encode("words")
