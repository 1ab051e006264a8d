"""Adapters in the graph: the nodes on every device, and a decoder that serves several at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebar.errors import InputError, MemoryBudgetError, ShapeError
from rebar.graph import Row, Runner, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.builder import Builder
from rebar.graph.fuse import fuse
from rebar.graph.lora import AdapterSlots, read_adapter
from rebar.graph.memory_plan import arena_bytes, limits_of, plan_memory
from rebar.graph.models.adapted import slot_bytes
from rebar.graph.nodes_lora import LoraDown, LoraUp, adapters_shape
from rebar.graph.tensor import Tensor
from rebar.graph.weights import WeightType, open_model
from rebar.hal import DeviceManager, Domain, Limits, LoraPair, LoraTable, Rows
from tests.graph.harness import DEVICES, F32, Call, matrix, open_device, run
from tests.tiny import tiny_gguf
from tests.tiny.adapter import tiny_adapter

EPS = float(np.finfo(np.float32).eps)
FAMILIES = ("llama", "qwen2", "gemma3")
ROOM = RunnerOptions(threads=2, memory=64 << 20, max_rows=48, max_adapters=3, max_rank=8)
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 500, 40)]
TASTES: dict[
    str, dict[str, Any]
] = {  # three adapters that differ in what they change, in rank and in scale
    "wide": {"r": 8, "seed": 1},
    "q and v": {"r": 4, "seed": 2, "targets": ("q_proj", "v_proj"), "lora_alpha": 8},
    "down": {"r": 1, "seed": 3, "targets": ("down_proj",), "use_rslora": True},
}


def random(*shape: int, seed: int = 1) -> F32:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> DeviceManager:
    return open_device(request.param)


@pytest.mark.parametrize("with_residual", [False, True])
def test_the_nodes_add_b_a_x_to_each_part(device: DeviceManager, with_residual: bool) -> None:
    """Rows of two adapters and of none, three parts, one that an adapter leaves alone."""
    widths, k, most = (24, 7, 40), 50, 6
    pairs = {
        (0, 0): (random(6, k, seed=2), random(24, 6, seed=3), 0.5),
        (0, 2): (random(3, k, seed=4), random(40, 3, seed=5), -2.0),
        (1, 1): (random(1, k, seed=6), random(7, 1, seed=7), 1.0),
    }
    table = LoraTable(2, k, widths, most)
    for (slot, part), (a, b, scale) in pairs.items():
        table.put(slot, part, LoraPair(matrix(a), matrix(b), scale))
    slots = [0, 0, -1, 1, 0]
    x, y, residual = random(5, k), random(5, 71, seed=8), random(5, 71, seed=9)
    g = Builder()
    tx, ty, tr = (Tensor(n, (Domain.ROWS, w)) for n, w in (("x", k), ("y", 71), ("r", 71)))
    adapters = Tensor("adapters", adapters_shape(2, most, k, widths), "lora")
    out = g.adapted("product", tx, ty, adapters)
    if with_residual:
        out = g.add("sum", out, tr)
    graph = fuse(g.graph(out))
    assert len(graph.order) == 2, "the residual is added by LoraUp"
    call = Call([(0, 5, [0])], adapters=slots)
    inputs = {tx: x, ty: y, tr: residual}
    got = run(graph, device, call, {adapters: table}, inputs).rows(out).data

    want = y.astype(np.float64) + (residual if with_residual else 0.0)
    size = np.abs(want) + np.abs(y)
    begins = (0, 24, 31)
    for (slot, part), (a, b, scale) in pairs.items():
        rows = [r for r, s in enumerate(slots) if s == slot]
        columns = slice(begins[part], begins[part] + widths[part])
        for r in rows:
            want[r, columns] += scale * (b.astype(np.float64) @ (a.astype(np.float64) @ x[r]))
            size[r, columns] += abs(scale) * (np.abs(b) @ (np.abs(a) @ np.abs(x[r])))
    # k/4 + 2 roundings of A x, 6 of B a, and those of scale, sum and residual
    assert (np.abs(got - want) <= (k / 4 + 2 + 6 + 3) * EPS * size).all()
    assert (got[2] == (y[2] + residual[2] if with_residual else y[2])).all(), (
        "no adapter, no change"
    )


def test_what_does_not_fit_is_named() -> None:
    table = LoraTable(2, 8, (4, 4), 2)
    with pytest.raises(ShapeError, match="rank 3 for 8 inputs and 4 outputs; here are 8 and 4"):
        table.put(0, 0, LoraPair(matrix(random(3, 8)), matrix(random(4, 3)), 1.0))
    with pytest.raises(ShapeError, match="for 9 inputs"):
        table.put(0, 0, LoraPair(matrix(random(2, 9)), matrix(random(4, 2)), 1.0))
    with pytest.raises(ShapeError, match=r"F32 \(rank, k\) and \(n, rank\), not F32 \(2, 8\)"):
        LoraPair(matrix(random(2, 8)), matrix(random(4, 3)), 1.0)
    with pytest.raises(ShapeError, match="4 parts"):
        LoraTable(2, 8, (1, 1, 1, 1), 2)
    g, shape = Builder(), adapters_shape(2, 4, 8, (3, 5))
    x, adapters = Tensor("x", (Domain.ROWS, 8)), Tensor("adapters", shape, "lora")
    with pytest.raises(ShapeError, match="n differs: 9, 8"):
        g.adapted("p", x, Tensor("y", (Domain.ROWS, 9)), adapters)
    with pytest.raises(ShapeError, match="k differs: 7, 8"):
        g.adapted("p", Tensor("x", (Domain.ROWS, 7)), Tensor("y", (Domain.ROWS, 8)), adapters)


def test_a_program_for_more_adapters_than_the_table_has_is_refused() -> None:
    device = open_device("cpu:scalar:1")
    g, x = Builder(), Tensor("x", (Domain.ROWS, 8))
    adapters = Tensor("adapters", adapters_shape(2, 4, 8, (8,)), "lora")
    out = g.adapted("p", x, Tensor("y", (Domain.ROWS, 8)), adapters)
    graph, limits = g.graph(out), Limits(1, adapters=3)
    plan = graph.plan(limits)
    pool = device.create_pool("arena", plan.nbytes + 4096)
    rows = {node.x: Rows(random(1, 8)) for node in g.nodes if isinstance(node, LoraDown | LoraUp)}
    values = plan.allocate(pool, limits, {**rows, adapters: LoraTable(2, 8, (8,), 4)}, "test")
    with pytest.raises(ShapeError, match="a table of 2 adapters"):
        graph.compile(device, values, limits)


def loaded(
    tmp_path: Path, family: str = "llama", types: WeightType = "Q8_0", **options: Any
) -> Runner:
    file = open_model(tiny_gguf(tmp_path, family, types, head_dim=32))
    return load_runner(file, RunnerOptions(**{**ROOM_FIELDS, **options}))


ROOM_FIELDS = {name: getattr(ROOM, name) for name in ROOM.__slots__}


def slots_of(runner: Runner) -> AdapterSlots:
    assert runner.adapters is not None
    return runner.adapters


def with_adapters(runner: Runner, folder: Path) -> dict[str, int]:
    """The slots of all TASTES."""
    slots = {"base": -1}
    for name, taste in TASTES.items():
        path = tiny_adapter(folder / name, runner.config, **taste)
        slots[name] = slots_of(runner).load(read_adapter(path, runner.config))
    return slots


def sequence(runner: Runner, slot: int, ids: list[int] = IDS) -> Sequence:
    s = Sequence.of(ids, len(ids) + 8, SamplingParams(temperature=0.0, logprobs=0))
    s.blocks = runner.kv.allocate(runner.kv.blocks_for(len(ids) + 8))
    s.adapter = slot
    return s


def bits(runner: Runner, slot: int, ids: list[int] = IDS) -> bytes:
    """Logits of every position, alone and in one step."""
    s = sequence(runner, slot, ids)
    runner.step([Row(s, 0, len(ids), range(len(ids)))])
    runner.kv.release(s.blocks)
    return runner.logits(len(ids)).tobytes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", ["F32", "Q8_0"])
def test_each_stream_of_a_mixed_batch_has_its_own_bits(
    tmp_path: Path, family: str, types: WeightType
) -> None:
    """Three adapters and the base, in one step and cut anyhow: what each gives alone."""
    runner = loaded(tmp_path, family, types)
    slots = with_adapters(runner, tmp_path)
    ids = {name: IDS[i : i + 11] for i, name in enumerate(slots)}
    alone = {name: bits(runner, slot, ids[name]) for name, slot in slots.items()}
    assert len(set(alone.values())) == 4
    together = {name: sequence(runner, slot, ids[name]) for name, slot in slots.items()}
    got = dict.fromkeys(slots, b"")
    for first, count in ((0, 4), (4, 1), (5, 6)):
        rows = [Row(s, first, count, range(first, first + count)) for s in together.values()]
        runner.step(rows)
        logits = runner.logits(count * len(rows))
        for i, name in enumerate(slots):
            got[name] += logits[i * count : (i + 1) * count].tobytes()
    assert got == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_room_for_adapters_changes_nothing_for_whoever_takes_none(
    tmp_path: Path, family: str
) -> None:
    """Neither the launches nor the bits; also beside rows that take one."""
    plain = loaded(tmp_path, family, max_adapters=0)
    roomy = loaded(tmp_path, family)
    assert roomy.launches == plain.launches
    assert [n.name for n in roomy.graph.order] == [n.name for n in plain.graph.order]
    assert bits(plain, -1) == bits(roomy, -1)
    wide = sequence(roomy, with_adapters(roomy, tmp_path)["wide"], IDS[:6])
    s = sequence(roomy, -1)
    roomy.step([Row(wide, 0, 6, range(0)), Row(s, 0, 40, range(40))])
    assert roomy.logits(40).tobytes() == bits(plain, -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_equals_the_specification_to_rounding(tmp_path: Path, family: str) -> None:
    """The kernels against NumPy in float64, with all that is between two adapters' nodes."""
    got = loaded(tmp_path, family, "F32")
    want = loaded(tmp_path, family, "F32", device="ref")
    for name, slot in with_adapters(got, tmp_path).items():
        assert with_slot(want, tmp_path, name) == slot
        ours, theirs = (np.frombuffer(bits(r, slot), np.float32) for r in (got, want))
        # f16 keys and values: a value may move by one step of 2^-11 (as without adapters)
        assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max(), name


def with_slot(runner: Runner, folder: Path, name: str) -> int:
    """Loads one of the folders that with_adapters has written."""
    if name == "base":
        return -1
    return slots_of(runner).load(read_adapter(folder / name, runner.config))


def test_fused_watched_and_plain_have_the_same_bits(tmp_path: Path) -> None:
    file = open_model(tiny_gguf(tmp_path, "gemma3", "Q8_0", head_dim=32))
    fused, plain = (load_runner(file, ROOM, fused=f) for f in (True, False))
    slots = with_adapters(fused, tmp_path), with_adapters(plain, tmp_path)
    assert bits(fused, slots[0]["wide"]) == bits(plain, slots[1]["wide"])
    s = sequence(fused, slots[0]["wide"])
    fused.step([Row(s, 0, 40, range(40))], observers=[])
    assert fused.logits(40).tobytes() == bits(plain, slots[1]["wide"])


def test_the_residual_of_llama_is_added_by_the_adapters_node(tmp_path: Path) -> None:
    runner = loaded(tmp_path)
    ups = [n for n in runner._passes[-1].graph.order if isinstance(n, LoraUp)]
    assert sum(n.residual is not None for n in ups) == 2 * runner.config.layers


def test_a_step_computes_only_what_its_adapters_change(tmp_path: Path) -> None:
    """q and v alone: no node behind the other products. With whoever changes more: all of them."""
    runner = loaded(tmp_path)
    slots = with_adapters(runner, tmp_path)
    launches = []
    for names in (["base"], ["q and v"], ["base", "q and v", "down"]):
        rows = [Row(sequence(runner, slots[name], IDS[:4]), 0, 4, range(3, 4)) for name in names]
        launches.append(len(runner.timings(rows)))
        for row in rows:
            runner.kv.release(row.sequence.blocks)
    layers = runner.config.layers
    assert launches[1] - launches[0] == 2 * layers
    # three more products a layer, whose two residuals LoraUp adds in place of the products
    assert launches[2] - launches[1] == 6 * layers


def test_the_bits_depend_neither_on_threads_nor_on_the_slot(tmp_path: Path) -> None:
    one = loaded(tmp_path, threads=1)
    path = tiny_adapter(tmp_path / "a", one.config, r=8)
    adapter = read_adapter(path, one.config)
    many = loaded(tmp_path, threads=3)
    slots_of(many).load(read_adapter(tiny_adapter(tmp_path / "b", one.config, seed=9), one.config))
    first, second = slots_of(one).load(adapter), slots_of(many).load(adapter)
    assert (first, second) == (0, 1)
    assert bits(one, first) == bits(many, second)


def test_hidden_states_know_the_adapter(tmp_path: Path) -> None:
    runner = loaded(tmp_path)
    slots = with_adapters(runner, tmp_path)

    def hidden(slot: int) -> list[bytes]:
        s = sequence(runner, slot)
        (states,) = runner.step([Row(s, 0, 40, range(40), hidden=True)])
        return [state.hidden for state in states]

    assert hidden(slots["down"]) != hidden(-1)


def test_a_slot_is_taken_filled_layer_by_layer_and_given_back(tmp_path: Path) -> None:
    runner = loaded(tmp_path, max_adapters=1)
    slots, base = slots_of(runner), bits(runner, -1)
    adapter = read_adapter(tiny_adapter(tmp_path / "a", runner.config, r=8), runner.config)
    loading = slots.begin(adapter)
    steps = 0
    while not loading.advance():
        steps += 1
        assert bits(runner, loading.slot) == base, "half an adapter was seen"
    assert steps == runner.config.layers
    alone = bits(runner, loading.slot)
    assert alone != base
    with pytest.raises(MemoryBudgetError, match="all 1 slots hold adapters"):
        slots.load(adapter)
    slots.release(loading.slot)
    assert bits(runner, 0) == base
    small = read_adapter(tiny_adapter(tmp_path / "b", runner.config, r=1), runner.config)
    slots.release(slots.load(small))
    assert bits(runner, slots.load(adapter)) == alone, "what was there before is gone"


def test_what_no_slot_holds_is_refused_with_the_flag(tmp_path: Path) -> None:
    runner = loaded(tmp_path)
    adapter = read_adapter(tiny_adapter(tmp_path / "a", runner.config, r=9), runner.config)
    with pytest.raises(InputError, match=r"rank 9, and .* planned for 8.*--max-lora-rank 9"):
        slots_of(runner).load(adapter)
    without = loaded(tmp_path, max_adapters=0)
    with pytest.raises(ShapeError, match="no room was made"):
        bits(without, 0)
    with pytest.raises(ValueError, match="a row names no slot"):
        bits(runner, 3)
    with pytest.raises(InputError, match="--max-adapters -1"):
        loaded(tmp_path, max_adapters=-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_rows", [1, 7, 512])
def test_the_plan_holds(tmp_path: Path, family: str, max_rows: int) -> None:
    """Slots are planned and shown; the arena's bound holds for the decoder with adapters too."""
    runner = loaded(tmp_path, family, max_rows=max_rows)
    config, room = runner.config, ROOM.room
    assert room is not None
    limits = limits_of(config, runner.plan, max_rows)
    needed = max(way.graph.plan(limits).nbytes for way in runner._passes)
    assert needed <= arena_bytes(config, max_rows, runner.max_context, room)
    used = {pool.name: pool.used for pool in runner.device.stats().pools}
    assert used["adapters"] == runner.plan.of("adapters") == 3 * slot_bytes(config, room)
    assert any("3 adapters of rank 8" in line for line in runner.plan.lines())
    file = open_model(tiny_gguf(tmp_path, family, "Q8_0", head_dim=32))
    plain = plan_memory(file, RunnerOptions(max_context=64), 1 << 30)
    assert plain.of("adapters") == 0
