"""The benchmark on a tiny model: every figure beside its ceiling; errors keep their type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebar.errors import DeviceError, InputError, MemoryBudgetError, ModelFileError
from rebar.graph import RunnerOptions, load_runner
from rebar.graph.weights import open_model
from rebar.insight import bench
from rebar.insight.ceilings import Peaks, Work
from rebar.insight.figures import FIGURES, EngineBench, Figure, chosen
from tests.tiny.model import tiny_gguf

NAMES = [
    "prefill128", "prefill512", "prefill2048", "decode1", "decode1_at1024", "decode1_at4096",
    "decode4", "decode8", "decode16", "decode32",
]  # fmt: skip


def silent(_line: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("bench"), "llama", "Q8_0", context_length=1100)


def test_one_line_of_facts(model: Path) -> None:
    said: list[str] = []
    options = RunnerOptions(threads=1, kv_tokens=2400)
    facts = bench.bench_engine(model, options, repeats=2, report=said.append)
    assert "\n" not in json.dumps(facts, allow_nan=False)
    assert list(facts["figures"]) == [n for n in NAMES if n not in facts["skipped"]]
    for figure in facts["figures"].values():
        assert 0 < figure["low"] <= figure["tok_s"] <= figure["high"]
        assert figure["share"] == pytest.approx(figure["tok_s"] / figure["ceiling_tok_s"], abs=1e-2)
        assert figure["limit"] in ("memory", "arithmetic")
    assert facts["load_s"] > 0
    assert 10 < facts["peak_rss_mb"] < 1000
    assert facts["plan_mb"]["kv"] > 0
    assert all(value > 0 for value in facts["ceilings"].values())
    assert (facts["threads"], facts["model"], facts["engine"]) == (1, model.name, "rebar")
    assert facts["isa"]
    assert facts["version"]
    assert said == ["ceilings, before", "ceilings, after"]
    lines = bench.table(facts)
    for name in NAMES:
        assert sum(line.startswith(f"{name} ") for line in lines) == 1


def test_what_a_model_cannot_do_is_skipped_with_the_reason(model: Path) -> None:
    options = RunnerOptions(threads=1, kv_tokens=1100, max_rows=8)
    figures = [f for f in FIGURES if f.name in ("prefill2048", "decode1", "decode16", "decode32")]
    facts = bench.measure(model, options, figures, 1, silent).facts
    assert facts["skipped"] == {
        "prefill2048": "a context of 1,100 positions; it takes 2,049",
        "decode16": "a step takes 8 sequences",
        "decode32": "the KV cache has 69 free blocks; it takes 128",
    }


def test_prompts_longer_than_a_step_go_in_several(model: Path) -> None:
    options = RunnerOptions(threads=1, kv_tokens=2048, max_rows=100)
    measured = bench.measure(model, options, chosen(("prefill512",)), 1, silent)
    assert measured.runs["prefill512"][0] > 0
    steps = measured.work["prefill512"]
    assert len(steps) == 6
    assert steps[5].int8 > 12 / 100 * steps[0].int8  # the last has 12 rows, and the head
    position = 2 * 2 * 2 * 16 * 2  # keys and values of 2 heads of 16 in f16, in 2 layers
    read = [work.nbytes - min(512, 100 * (i + 1)) * position for i, work in enumerate(steps)]
    assert read[0] == read[4] < read[5] == measured.weights.nbytes


def test_runs_leave_the_cache_as_it_was(model: Path) -> None:
    runner = load_runner(open_model(model), RunnerOptions(threads=1, kv_tokens=1100))
    free = runner.kv.free_blocks
    runs = EngineBench(runner).run(Figure("some", rows=3, depth=20, steps=4), 3)
    assert len(runs) == 3
    assert runner.kv.free_blocks == free
    runner.close()


def test_figures_are_chosen_by_name_or_by_its_beginning() -> None:
    assert [f.name for f in chosen(())] == NAMES
    assert [f.name for f in chosen(("decode1",))] == ["decode1"]
    assert [f.name for f in chosen(("decode1_at",))] == ["decode1_at1024", "decode1_at4096"]
    assert [f.name for f in chosen(("decode32", "prefill"))] == [*NAMES[:3], "decode32"]
    with pytest.raises(InputError, match="no figure is called 'rows'") as raised:
        chosen(("rows",))
    assert all(name in str(raised.value) for name in NAMES)


def test_a_ceiling_is_the_sum_of_the_steps_floors() -> None:
    measured = bench.Measured({}, weights=Work(nbytes=50))
    measured.runs["prefill128"] = [30.0, 10.0, 20.0]
    measured.tokens["prefill128"] = 80
    measured.work["prefill128"] = [Work(nbytes=100), Work(int8=30)]
    peaks = Peaks(read=lambda nbytes: 100.0, int8=10.0, f32=10.0)
    facts = bench.beside(measured, peaks)
    assert facts["figures"]["prefill128"] == {
        "tok_s": 20.0, "low": 10.0, "high": 30.0, "ceiling_tok_s": 20.0, "share": 1.0,
        "limit": "arithmetic",
    }  # fmt: skip


def test_an_error_of_the_measuring_process_keeps_its_type(model: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        bench.bench_engine(nothing, report=silent)
    with pytest.raises(MemoryBudgetError) as raised:
        bench.bench_engine(model, RunnerOptions(memory=1 << 20), report=silent)
    assert raised.value.needed > raised.value.available
    with pytest.raises(InputError, match="--repeats 1"):
        bench.bench_engine(model, repeats=0, report=silent)
    with pytest.raises(DeviceError, match="1 to 256 threads, not 0"):
        bench.bench_engine(model, RunnerOptions(threads=0), report=silent)
