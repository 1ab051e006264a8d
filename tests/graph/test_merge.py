"""Adapters merged into weights: W + scale B A, once, in a type that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rebar.dataflow.models import convert
from rebar.errors import InputError
from rebar.graph import ModelFile, Row, Runner, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.lora import Adapter, read_adapter
from rebar.graph.lora.merge import MergeType, merged, rounding
from rebar.graph.weights import WeightType, open_model, write_rebar
from rebar.graph.weights.provenance import base_digest, merged_digests
from rebar.graph.weights.values import dense, encoded
from tests.graph.harness import F32
from tests.tiny import tiny_gguf, tiny_hf
from tests.tiny.adapter import tiny_adapter
from tests.tiny.quantize import quantize

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 500, 30)]
FAMILIES = ("llama", "qwen2", "gemma3")


def open_base(folder: Path, family: str = "llama", types: WeightType = "F32") -> ModelFile:
    target = folder / f"{family}-{types}.rebar"
    convert(tiny_gguf(folder, family, types, head_dim=32), target)
    return open_model(target)


def adapter_for(folder: Path, model: ModelFile, name: str = "a", **fields: Any) -> Adapter:
    path = tiny_adapter(folder / name, model.config, **{"r": 4, "lora_alpha": 8, **fields})
    return read_adapter(path, model.config)


def written(model: ModelFile, base: ModelFile, target: Path) -> ModelFile:
    assert base.vocabulary is not None
    tables = bytes(base.vocabulary)
    write_rebar(model, target, vocabulary=tables, provenance=model.provenance)
    return open_model(target)


def logits(model: ModelFile, adapter: Adapter | None, device: str = "cpu") -> F32:
    room = {"max_adapters": 1, "max_rank": 16} if adapter else {}
    options = RunnerOptions(threads=1, memory=64 << 20, max_rows=48, device=device, **room)  # type: ignore[arg-type]
    runner = load_runner(model, options)
    slot = -1
    if adapter is not None:
        assert runner.adapters is not None
        slot = runner.adapters.load(adapter)
    s = Sequence.of(IDS, 40, SamplingParams(temperature=0.0))
    s.blocks, s.adapter = runner.kv.allocate(3), slot
    runner.step([Row(s, 0, len(IDS), range(len(IDS)))])
    return told(runner)


def told(runner: Runner) -> F32:
    found = runner.logits(len(IDS)).astype(np.float32)
    runner.close()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
def test_merged_equals_unmerged(tmp_path: Path, family: str, rslora: bool) -> None:
    """A-j4: with r = alpha = 16, alpha / r and alpha / sqrt(r) are 1 and 4. Computed in float64
    throughout (ref64), all that differs is the rounding of each merged weight: 2^-24 of it. A row's
    products of 64 to 128 weights in two layers make that at most some 2^-24 * 128 * 4 of the
    logits: 3e-5; a scale that is wrong by 1 % would change them by more than 1e-3.
    """
    base = open_base(tmp_path, family)
    adapter = adapter_for(tmp_path, base, r=16, lora_alpha=16, use_rslora=rslora, size=0.25)
    assert {low.scale for low in adapter.parts.values()} == {4.0 if rslora else 1.0}
    whole = written(merged(base, adapter), base, tmp_path / "merged.rebar")
    unmerged_logits = logits(base, adapter, "ref64")
    merged_logits = logits(whole, None, "ref64")
    size = np.abs(unmerged_logits).max()
    assert np.abs(merged_logits - unmerged_logits).max() < 1e-5 * size
    assert np.abs(logits(base, None, "ref64") - unmerged_logits).max() > 0.1 * size
    # and by the kernels, with keys and values that may round another way: a step of 2^-11 each
    fast = logits(base, adapter), logits(whole, None)
    assert np.abs(fast[0] - fast[1]).max() < 4e-3 * size


@pytest.mark.parametrize("kind", ["auto", "F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("types", ["F16", "Q4_0"])
def test_each_weight_is_rounded_to_its_type(
    tmp_path: Path, types: WeightType, kind: MergeType
) -> None:
    base = open_base(tmp_path, "qwen2", types)
    adapter = adapter_for(tmp_path, base, targets=("q_proj", "down_proj"), kind="BF16")
    whole = written(merged(base, adapter, kind), base, tmp_path / "merged.rebar")
    due = {"auto": "F16" if types == "F16" else "Q8_0"}.get(kind, kind)
    for place, low in adapter.parts.items():
        name = f"layers.{place.layer}.{place.part}.weight"
        a, b = (m.astype(np.float64) for m in low.matrices())
        want = (dense(base.tensors[name]) + low.scale * (b @ a)).astype(np.float32)
        tensor = whole.tensors[name]
        assert (tensor.type, tensor.packed) == (due, True)
        values = dense(tensor)
        if due != "Q8_0":  # where the test's own writer rounds ties another way
            kind_of = cast(WeightType, due)
            assert encoded(kind_of, want).tobytes() == quantize(kind_of, want)
        step = np.abs(values - want).max() / np.abs(want).max()
        assert step <= {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 250}[due]
    untouched = set(base.tensors) - {f"layers.{p.layer}.{p.part}.weight" for p in adapter.parts}
    for name in untouched:
        assert (whole.tensors[name].data == base.tensors[name].data).all()


def test_what_is_rounded_away_is_measured(tmp_path: Path) -> None:
    """By the size of what was added: of an adapter a tenth as large ten times as much. In the few
    bits of the base a small one goes back to where it came from, and all of it is lost.
    """
    base = open_base(tmp_path, "llama", "Q4_0")
    found: dict[str, list[float]] = {}
    for size in (0.1, 0.01):
        adapter = adapter_for(tmp_path, base, str(size), size=size)
        for kind in ("F32", "Q8_0", "same"):
            whole = written(merged(base, adapter, kind), base, tmp_path / "m.rebar")
            found.setdefault(kind, []).append(rounding(base, adapter, whole))
    assert max(found["F32"]) < 1e-5
    assert 5 < found["Q8_0"][1] / found["Q8_0"][0] < 20
    assert found["same"][0] > 5 * found["Q8_0"][0]
    assert 0.9 < found["same"][1] < 1.1
    # 4 bits err by some 8 % of a matrix of normal values, to which the adapter adds 20 % (scale 2)
    assert 0.2 < found["same"][0] < 0.8


def test_a_model_is_merged_from_any_kind_of_file(tmp_path: Path) -> None:
    """Rows of q and k stand in another order in a GGUF file of the llama family; as packed files
    and folders have them they are merged alike.
    """
    packed = open_base(tmp_path)
    adapter = adapter_for(tmp_path, packed)
    raw = open_model(tiny_gguf(tmp_path, head_dim=32))
    folder = open_model(tiny_hf(tmp_path, head_dim=32))
    for name in ("layers.0.q.weight", "layers.1.k.weight", "layers.1.up.weight"):
        want = dense(merged(packed, adapter).tensors[name])
        for model in (raw, folder):
            assert (dense(merged(model, adapter).tensors[name]) == want).all()


def test_merged_twice_is_refused_and_another_one_is_not(tmp_path: Path) -> None:
    """A-j4: nothing said that the adapter was in there already."""
    base = open_base(tmp_path)
    first, second = adapter_for(tmp_path, base), adapter_for(tmp_path, base, "b", seed=5)
    once = written(merged(base, first), base, tmp_path / "once.rebar")
    with pytest.raises(InputError, match="has this adapter in its weights already"):
        merged(once, first)
    both = written(merged(once, second), once, tmp_path / "both.rebar")
    for adapter in (first, second):
        with pytest.raises(InputError, match="already"):
            merged(both, adapter)
    assert str(both.provenance["merged_adapters"]).split() == [first.digest, second.digest]


def test_the_way_back_is_the_base(tmp_path: Path) -> None:
    """A-j4: nothing is subtracted, for what was rounded does not come back: the model's own file
    stays as it was, and the merged one says of which file it was made.
    """
    base = open_base(tmp_path)
    before = base.path.read_bytes()
    whole = written(merged(base, adapter_for(tmp_path, base)), base, tmp_path / "m.rebar")
    assert base.path.read_bytes() == before, "merging touched the model's file"
    assert base_digest(whole) == base_digest(base) != base_digest(open_base(tmp_path, "qwen2"))
    assert (merged_digests(base), len(merged_digests(whole))) == ((), 1)


def test_a_type_that_rows_do_not_fill_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "odd.rebar"
    convert(tiny_gguf(tmp_path, "llama", "F32", width=48, heads=4, head_dim=16), target)
    base = open_model(target)
    with pytest.raises(InputError, match="rows of 48 values, which Q8_0 cannot hold"):
        merged(base, adapter_for(tmp_path, base, targets=("q_proj",)), "Q8_0")
    with pytest.raises(InputError, match="no type 'Q2_K'"):
        merged(base, adapter_for(tmp_path, base), cast(MergeType, "Q2_K"))
