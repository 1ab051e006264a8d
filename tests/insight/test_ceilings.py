"""What a step cannot avoid, counted by hand for a small model, and the least time for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rebar.graph import ModelFile
from rebar.graph.weights import open_model, packed_nbytes
from rebar.insight.ceilings import ModelWork, Peaks, Slice, Work
from tests.tiny.model import tiny_gguf

# tiny_config: 2 layers, width 64, 4 heads of 16 on 2 KV heads, MLP 128, vocabulary 512, tied.
QKV = [(64, 64), (32, 64), (32, 64)]
AFTER = [(64, 64), (128, 64), (128, 64), (64, 128)]  # of the last layer only for wanted rows
ALL_ROWS, WANTED = [*QKV, *QKV, *AFTER], [*AFTER, (512, 64)]
KV = 2 * 2 * 16 * 2  # keys and values of two heads of 16 in f16


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return open_model(tiny_gguf(tmp_path_factory.mktemp("tied"), "llama", "Q8_0"))


def test_weights_and_operations_of_a_row(tied: ModelFile) -> None:
    model = ModelWork.of(tied, KV)
    for work, shapes in ((model.layers, ALL_ROWS), (model.head, WANTED)):
        operations = sum(2 * n * k for n, k in shapes)
        assert work == Work(sum(packed_nbytes("Q8_0", n, k) for n, k in shapes), operations)


def test_float_weights_are_float_operations(tmp_path: Path) -> None:
    model = ModelWork.of(open_model(tiny_gguf(tmp_path, "llama", "F16")), KV)
    assert model.layers.int8 == model.head.int8 == 0
    assert model.layers.f32 == sum(2 * n * k for n, k in ALL_ROWS)


def test_an_embedding_that_is_not_the_head_is_not_read(tmp_path: Path, tied: ModelFile) -> None:
    untied = open_model(tiny_gguf(tmp_path, "qwen2", "Q8_0"))
    assert "head.weight" in untied.tensors
    assert ModelWork.of(untied, KV).head == ModelWork.of(tied, KV).head


def test_a_step_reads_weights_once_and_multiplies_per_row(tied: ModelFile) -> None:
    model = ModelWork.of(tied, KV)
    one, eight = model.step([Slice(0)]), model.step([Slice(0)] * 8)
    assert one.nbytes == model.layers.nbytes + model.head.nbytes + 2 * KV
    assert eight.nbytes - one.nbytes == 7 * 2 * KV
    assert eight.int8 == 8 * one.int8
    assert eight.f32 == 8 * one.f32


def test_a_prompt_wants_one_row_of_the_head_and_attends_in_a_triangle(tied: ModelFile) -> None:
    model = ModelWork.of(tied, KV)
    work = model.step([Slice(0, count=10)])
    assert work.int8 == 10 * model.layers.int8 + model.head.int8
    assert work.f32 == 2 * 4 * 4 * 16 * sum(range(1, 11))
    assert work.nbytes == model.layers.nbytes + model.head.nbytes + 2 * 10 * KV
    unwanted = model.step([Slice(0, count=10, wanted=0)])
    assert work + Work() == unwanted + model.head


def test_a_window_bounds_what_is_read(tied: ModelFile) -> None:
    model = ModelWork.of(tied, KV)
    config = replace(tied.config, sliding_window=4, sliding_pattern=2)  # layer 1 sees everything
    work = replace(model, config=config).step([Slice(99)])
    assert work.nbytes == model.layers.nbytes + model.head.nbytes + (4 + 100) * KV
    assert work.f32 == 4 * 4 * 16 * (4 + 100)
    slices = replace(model, config=config).step([Slice(90, count=10, wanted=0)])
    assert slices.nbytes == model.layers.nbytes + (13 + 100) * KV
    assert slices.f32 == 4 * 4 * 16 * (10 * 4 + sum(range(91, 101)))


def test_the_longer_of_reading_and_computing_counts() -> None:
    peaks = Peaks(read=lambda nbytes: 10.0 if nbytes > 100 else 100.0, int8=20.0, f32=5.0)
    assert peaks.floor(Work(nbytes=1000, int8=20, f32=5)) == (100.0, "memory")
    assert peaks.floor(Work(nbytes=100, int8=200, f32=50)) == (20.0, "arithmetic")


def test_of_two_measurements_the_higher_counts() -> None:
    best = Peaks(lambda n: 5.0, 7.0, 1.0).best(Peaks(lambda n: n / 10, 6.0, 2.0))
    assert (best.read(10), best.read(100), best.int8, best.f32) == (5.0, 10.0, 7.0, 2.0)
