"""The engine's benchmark on a tiny model: every figure is there, and errors keep their type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebar.errors import MemoryBudgetError, ModelFileError
from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.insight import bench
from tests.tiny.model import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("bench"), "llama", "Q8_0", context_length=1024)


def test_one_line_of_facts(model: Path) -> None:
    facts = bench.bench_engine(model, RunnerOptions(threads=1, kv_tokens=2048), repeats=2)
    line = json.dumps(facts, allow_nan=False)
    assert "\n" not in line
    for name in ("prefill512_tok_s", "decode1_tok_s", "decode8_tok_s"):
        low, high = facts["spread"][name]
        assert 0 < low <= facts[name] <= high
    assert facts["load_s"] > 0
    assert 10 < facts["peak_rss_mb"] < 1000
    assert facts["decode1_ceiling_tok_s"] > facts["decode1_tok_s"]
    assert (facts["threads"], facts["model"], facts["engine"]) == (1, model.name, "rebar")
    assert facts["isa"]
    assert facts["version"]


def test_prompts_longer_than_a_step_go_in_several(model: Path) -> None:
    said: list[str] = []
    options = RunnerOptions(threads=1, kv_tokens=2048, max_rows=100)
    facts = bench.measure(model, options, 1, said.append)
    assert facts["prefill512_tok_s"] > 0
    assert said == [f"loading {model.name}", *facts["spread"]]


def test_an_error_of_the_measuring_process_keeps_its_type(model: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        bench.bench_engine(nothing)
    with pytest.raises(MemoryBudgetError) as raised:
        bench.bench_engine(model, RunnerOptions(memory=1 << 20))
    assert raised.value.needed > raised.value.available


def test_the_embedding_is_read_only_where_it_is_the_head(tmp_path: Path) -> None:
    tied = open_model(tiny_gguf(tmp_path, "llama", "F32"))
    untied = open_model(tiny_gguf(tmp_path, "qwen2", "F32"))
    assert "head.weight" not in tied.tensors
    assert "head.weight" in untied.tensors
    assert bench.weight_bytes(tied) == bench.weight_bytes(untied)
