"""A whole tiny model of each family: the runner against the specification, and its door."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rebar.errors import (
    ContextLengthError,
    InputError,
    MemoryBudgetError,
    ModelFileError,
    ShapeError,
)
from rebar.graph import (
    ModelFile,
    Node,
    Row,
    Runner,
    RunnerOptions,
    SamplingParams,
    Sequence,
    Values,
    load_runner,
    plan_memory,
)
from rebar.graph.memory_plan import arena_bytes, limits_of, resolve_context
from rebar.graph.weights import open_model
from tests.tiny import tiny_config, tiny_gguf

FAMILIES = ("llama", "qwen2", "gemma3")
SMALL = RunnerOptions(threads=2, memory=64 << 20, max_rows=48)
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 500, 40)]


def open_tiny(folder: Path, family: str = "llama", types: str = "F32", **changes: int) -> ModelFile:
    return open_model(tiny_gguf(folder, family, types, **changes))  # type: ignore[arg-type]


def sequence(runner: Runner, ids: list[int], seed: int = 0) -> Sequence:
    s = Sequence.of(ids, runner.max_context, SamplingParams(temperature=0.0, seed=seed, logprobs=0))
    s.blocks = runner.kv.allocate(runner.kv.blocks_for(min(len(ids) + 8, runner.max_context)))
    return s


def logits(runner: Runner, ids: list[int]) -> np.ndarray:
    s = sequence(runner, ids)
    runner.step([Row(s, 0, len(ids), range(len(ids)))])
    runner.kv.release(s.blocks)
    return runner.logits(len(ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_float_models_equal_the_specification_to_rounding(tmp_path: Path, family: str) -> None:
    """The kernels against NumPy in float64, through both layers, the cache and the windows."""
    model = open_tiny(tmp_path, family)
    got = logits(load_runner(model, SMALL), IDS)
    want = logits(
        load_runner(model, RunnerOptions(device="ref", memory=64 << 20, max_rows=48)), IDS
    )
    # f16 keys and values: rounding before may move a value by one step of 2^-11; the rest is
    # float32 sums of 64..128 terms
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_keys_and_values_equal_the_specification_to_their_step(
    tmp_path: Path, family: str
) -> None:
    """Rounding before may move an int8 by one step, a 127th of the largest of 32 values."""
    model = open_tiny(tmp_path, family)
    got = logits(load_runner(model, dataclasses.replace(SMALL, kv="int8")), IDS)
    slow = RunnerOptions(device="ref", memory=64 << 20, max_rows=48, kv="int8")
    want = logits(load_runner(model, slow), IDS)
    exact = logits(load_runner(model, SMALL), IDS)
    assert np.abs(got - want).max() < 0.01 * np.abs(want).max()
    assert 0 < np.abs(got - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_weight_type_of_a_file_can_be_run(tmp_path: Path, family: str, types: str) -> None:
    runner = load_runner(open_tiny(tmp_path, family, types), SMALL)
    assert np.isfinite(logits(runner, IDS)).all()


@pytest.mark.parametrize("types", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_types(tmp_path: Path, types: str) -> None:
    runner = load_runner(open_tiny(tmp_path, "llama", types, width=256), SMALL)
    assert np.isfinite(logits(runner, IDS)).all()


def test_parts_of_one_format_become_one_product(tmp_path: Path) -> None:
    """q, k, v are one launch; v of another format is one more. Heads of 16 values are no whole
    groups of 32, so attention cannot quantize for the product behind it: one launch a layer.
    """
    floats = load_runner(open_tiny(tmp_path, "llama", "F32"), SMALL).launches
    assert load_runner(open_tiny(tmp_path, "llama", "Q8_0"), SMALL).launches == floats + 2
    mixed = open_model(tiny_gguf(tmp_path, "llama", {"q": "Q8_0", "k": "Q8_0", "v": "Q4_0"}))
    assert load_runner(mixed, SMALL).launches == floats + 2


def test_logits_of_more_positions_than_are_held_at_once(tmp_path: Path) -> None:
    """100 wanted positions with room for 64: the head runs twice over the same hidden rows."""
    model = open_tiny(tmp_path)
    runner = load_runner(model, RunnerOptions(memory=64 << 20, max_rows=128))
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 500, 100)]
    s = sequence(runner, ids)
    (answers,) = runner.step([Row(s, 0, 100, range(100))])
    assert [a.id for a in answers[:99]] == ids[1:]
    t = sequence(runner, ids)
    one_by_one = [runner.step([Row(t, p, 1, range(p, p + 1))])[0][0] for p in range(100)]
    assert one_by_one == answers


def test_watched_equals_compiled(tmp_path: Path) -> None:
    class Names:
        def __init__(self) -> None:
            self.names: list[str] = []

        def after_forward(self, node: Node, values: Values) -> None:
            self.names.append(node.name)

    runner = load_runner(open_tiny(tmp_path, "gemma3", "Q8_0"), SMALL)
    s, watcher = sequence(runner, IDS), Names()
    plain = runner.step([Row(s, 0, 40, range(39, 40))])
    bits = runner.logits(1).tobytes()
    watched = runner.step([Row(s, 0, 40, range(39, 40))], observers=[watcher])
    assert watched == plain
    assert runner.logits(1).tobytes() == bits
    assert watcher.names == [n.name for n in runner.graph.order]


def test_timings_name_every_launch(tmp_path: Path) -> None:
    runner = load_runner(open_tiny(tmp_path), SMALL)
    s = sequence(runner, IDS)
    timings = runner.timings([Row(s, 0, 40, range(0))])
    assert len(timings) == runner.launches
    assert {"matmul", "attention", "rms_norm"} <= {name for name, _ in timings}
    assert all(ns >= 0 for _, ns in timings)


def test_the_door_refuses_what_would_read_elsewhere(tmp_path: Path) -> None:
    runner = load_runner(open_tiny(tmp_path), SMALL)
    s = sequence(runner, IDS)
    with pytest.raises(ShapeError, match="a step of 80 rows of 2 sequences"):
        runner.step([Row(s, 0, 40, range(0)), Row(s, 0, 40, range(0))])
    with pytest.raises(ShapeError, match=r"rows 30\.\.45 of a sequence of 40 ids"):
        runner.step([Row(s, 30, 15, range(0))])
    with pytest.raises(ShapeError, match="wanted positions"):
        runner.step([Row(s, 30, 10, range(29, 30))])
    with pytest.raises(ShapeError, match="wanted positions"):
        runner.step([Row(s, 30, 10, range(39, 41))])
    s.blocks = s.blocks[:1]
    with pytest.raises(ShapeError, match="a sequence of 1 blocks does not reach position 40"):
        runner.step([Row(s, 0, 40, range(0))])
    s.blocks = [999, 0, 1]
    with pytest.raises(ValueError, match="a block number is outside the cache"):
        runner.step([Row(s, 0, 40, range(0))])
    s.blocks = [0, 1, 2]
    s.tokens[3] = 512
    with pytest.raises(ValueError, match="a token id is outside the vocabulary"):
        runner.step([Row(s, 0, 40, range(0))])
    long = Sequence.of([5] * 129, 256, SamplingParams())
    with pytest.raises(ContextLengthError, match="position 129 is past the context of 128"):
        runner.step([Row(long, 100, 29, range(0))])


def test_the_plan_is_what_is_allocated(tmp_path: Path) -> None:
    model = open_tiny(tmp_path, "qwen2", "Q5_0")
    runner = load_runner(model, SMALL)
    assert runner.plan == plan_memory(model, SMALL, 0)
    for pool in runner.device.stats().pools:
        assert pool.used <= pool.budget
        if pool.name != "mapped":
            assert pool.used <= runner.plan.of(pool.name) + (64 << 10)
    runner.close()
    assert runner.device.stats().used == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_rows", [1, 7, 512])
def test_the_arena_bound_holds(tmp_path: Path, family: str, max_rows: int) -> None:
    options = RunnerOptions(memory=64 << 20, max_rows=max_rows)
    runner = load_runner(open_tiny(tmp_path, family, "Q8_0"), options)
    needed = runner.graph.plan(limits_of(runner.config, runner.plan, max_rows)).nbytes
    assert needed <= arena_bytes(runner.config, max_rows, runner.max_context)


def test_a_budget_too_small_names_the_numbers_and_the_flags(tmp_path: Path) -> None:
    model = open_tiny(tmp_path)
    with pytest.raises(
        MemoryBudgetError, match=r"--max-context \d+ --kv-tokens \d+ would fit"
    ) as caught:
        plan_memory(model, RunnerOptions(memory=2 << 20, max_rows=8, kv_tokens=1 << 20), 0)
    assert caught.value.needed > caught.value.available
    with pytest.raises(MemoryBudgetError, match="the weights alone do not leave room"):
        plan_memory(model, RunnerOptions(memory=1000), 0)


def test_int8_takes_17_of_32_bytes_and_the_plan_says_so(tmp_path: Path) -> None:
    """A scale of two bytes for 32 values of one."""
    model = open_tiny(tmp_path, head_dim=32)
    f16 = plan_memory(model, RunnerOptions(max_context=64), 1 << 30)
    int8 = plan_memory(model, RunnerOptions(max_context=64, kv="int8"), 1 << 30)
    assert int8.blocks == f16.blocks
    assert int8.of("kv") * 32 == f16.of("kv") * 17
    c = model.config
    each = 2 * c.layers * c.kv_heads * 32 * 2
    assert f"256 positions in f16, {each} bytes each" in f16.lines()[-2]
    assert f"256 positions in int8, {each * 17 // 32} bytes each" in int8.lines()[-2]
    with pytest.raises(MemoryBudgetError, match=r"Or keep it in int8: --kv int8 needs \d+ MB"):
        plan_memory(model, RunnerOptions(memory=2 << 20, max_rows=8, kv_tokens=1 << 20), 0)
    with pytest.raises(InputError, match="--kv is one of f16, int8"):
        plan_memory(model, RunnerOptions(kv="int4"), 1 << 30)  # type: ignore[arg-type]


def test_contexts_and_cache_sizes(tmp_path: Path) -> None:
    model = open_tiny(tmp_path)
    assert resolve_context(tiny_config(context_length=100_000), None) == 8192
    with pytest.raises(ContextLengthError, match=r"a context of 129 positions; .* 1 to 128"):
        resolve_context(model.config, 129)
    assert plan_memory(model, RunnerOptions(max_context=40), 1 << 30).blocks == 12
    assert plan_memory(model, RunnerOptions(kv_tokens=40), 1 << 30).blocks == 3
    plan = plan_memory(model, RunnerOptions(memory=32 << 20), 0)
    assert plan.blocks == 32
    assert plan.total == sum(e.nbytes for e in plan.entries)
    assert any("rotation tables of 128 positions" in line for line in plan.lines())


def test_ids_past_the_tokenizer_are_never_sampled(tmp_path: Path) -> None:
    runner = load_runner(open_tiny(tmp_path), SMALL, vocab_size=10)
    s = sequence(runner, IDS[:5])
    (answer,) = runner.step([Row(s, 0, 5, range(4, 5))])[0]
    assert 0 <= answer.id < 10


def test_a_file_without_a_tensor_it_should_have(tmp_path: Path) -> None:
    model = open_tiny(tmp_path)
    tensors = {k: v for k, v in model.tensors.items() if k != "layers.1.down.weight"}
    with pytest.raises(ModelFileError, match=r"no tensor layers\.1\.down\.weight"):
        load_runner(dataclasses.replace(model, tensors=tensors), SMALL)


def test_progress_counts_matrices(tmp_path: Path) -> None:
    """Seven a layer, and the embedding."""
    seen: list[tuple[str, int, int]] = []
    load_runner(open_tiny(tmp_path), SMALL, progress=lambda *a: seen.append(a))
    assert seen == [("weights", done, 15) for done in range(16)]


def test_free_bytes_follow_the_blocks(tmp_path: Path) -> None:
    """What hal_free_memory_bytes says: the budget less what is held, to the byte of a block."""
    runner = load_runner(open_tiny(tmp_path), SMALL)
    at_rest = runner.free_bytes
    assert 0 < at_rest <= SMALL.memory  # type: ignore[operator]
    blocks = runner.kv.allocate(3)
    assert at_rest - runner.free_bytes == 3 * runner.kv.block_bytes
    runner.kv.release(blocks)
    assert runner.free_bytes == at_rest
    assert runner.node_count == len(runner.graph.order)


def test_the_specification_takes_a_step_that_wants_nothing(tmp_path: Path) -> None:
    """A chunk in the middle of a prompt wants no logits: the reference could not shape 0 rows."""
    model = open_tiny(tmp_path, "llama", "Q8_0")
    runner = load_runner(model, RunnerOptions(device="ref", memory=64 << 20, max_rows=48))
    s = sequence(runner, IDS)
    assert runner.step([Row(s, 0, 20, range(0))]) == [[]]
    (answer,) = runner.step([Row(s, 20, 20, range(39, 40))])[0]
    whole = runner.step([Row(s, 0, 40, range(39, 40))])[0][0]
    assert answer == whole
