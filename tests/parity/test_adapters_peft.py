"""Adapters beside peft itself: what it saves is served as it computes, what is written here it
opens, and both mean the same modules by the same words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from numpy.typing import NDArray

from rebar.graph import Row, RunnerOptions, SamplingParams, Sequence, load_runner
from rebar.graph.lora import LoraSpec, initial, lora_shapes, read_adapter, write_adapter
from rebar.graph.lora.merge import merged
from rebar.graph.weights import open_model
from tests.tiny import tiny_config, tiny_hf

# Of each other's deprecations peft and transformers warn, whoever calls them.
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::FutureWarning")]

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 500, 30)]
FAMILIES = ("llama", "qwen2", "gemma3")
CASES: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "v_proj"]},
    {"target_modules": "all-linear", "use_rslora": True},
    {"target_modules": r".*\.(self_attn|mlp)\..*(q|up|down)_proj", "lora_alpha": 3},
    {"target_modules": ["o_proj", "k_proj", "gate_proj"], "layers_to_transform": [1]},
    {"target_modules": ["q_proj", "down_proj"], "rank_pattern": {r"layers.1.*q_proj": 2},
     "alpha_pattern": {"down_proj": 32}},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
    {"target_modules": ["model.layers.0.self_attn.q_proj", "v_proj"], "layers_to_transform": [1]},
    {"target_modules": "all-linear", "rank_pattern": {"^model.layers.0.mlp.up_proj": 2}},
    {"target_modules": ["q_proj", "k_proj", "v_proj"], "exclude_modules": r".*\.k_proj"},
]  # fmt: skip


def theirs(model: Any) -> NDArray[np.float64]:
    with torch.no_grad():
        out = model(torch.tensor([IDS])).logits[0]
    return np.asarray(out.double().numpy(), np.float64)


def ours(folder: Path, adapter: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits with the adapter served, and with it merged."""
    file = open_model(folder)
    found = read_adapter(adapter, file.config)
    options = RunnerOptions(
        device="ref64", memory=64 << 20, max_rows=48, max_adapters=1, max_rank=16
    )
    logits = []
    for model, slotted in ((file, True), (merged(file, found), False)):
        runner = load_runner(model, options)
        s = Sequence.of(IDS, 40, SamplingParams(temperature=0.0))
        s.blocks = runner.kv.allocate(3)
        if slotted and runner.adapters is not None:
            s.adapter = runner.adapters.load(found)
        runner.step([Row(s, 0, len(IDS), range(len(IDS)))])
        logits.append(runner.logits(len(IDS)))
    return logits[0], logits[1]


def base_of(folder: Path) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    return loaded.eval()


def close(got: NDArray[np.float32], want: NDArray[np.float64]) -> None:
    """Ours are computed without rounding (ref64) but for what is stored in float32: weights,
    rotation tables, logits; some hundred roundings of 2^-24 in a chain.
    """
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_peft_saves_is_computed_as_peft_computes_it(
    tmp_path: Path, family: str, case: dict[str, Any]
) -> None:
    folder = tiny_hf(tmp_path, family)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, **{"lora_alpha": 8, **case})
    model = peft.get_peft_model(base_of(folder), config)
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.float().save_pretrained(tmp_path / "saved")
    want = theirs(model.double().eval())
    served, whole = ours(folder, tmp_path / "saved")
    close(served, want)
    close(whole, want)
    assert np.abs(theirs(base_of(folder)) - want).max() > 0.01 * np.abs(want).max(), "void"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "spec", [LoraSpec(4, 8.0), LoraSpec(3, 6.0, ("all-linear",), rslora=True)], ids=["qv", "all"]
)
def test_what_is_written_here_peft_opens(tmp_path: Path, family: str, spec: LoraSpec) -> None:
    folder = tiny_hf(tmp_path, family)
    shapes = dict(lora_shapes(tiny_config(family), spec))
    random = np.random.default_rng(2)
    matrices = {
        name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.3)
        for name, shape in shapes.items()
    }
    write_adapter(tmp_path / "written", spec, matrices, base=str(folder))
    model = peft.PeftModel.from_pretrained(base_of(folder), tmp_path / "written")
    want = theirs(model.double().eval())
    close(ours(folder, tmp_path / "written")[0], want)
    names = {n.replace(".default", "") for n, _ in model.named_parameters() if "lora_" in n}
    assert names == {f"base_model.model.{name}" for name in matrices}


def test_an_adapter_begins_as_pefts(tmp_path: Path) -> None:
    """A uniform within 1 / sqrt(k), B zero: the range of theirs, not their numbers."""
    model = peft.get_peft_model(
        base_of(tiny_hf(tmp_path)), peft.LoraConfig(task_type="CAUSAL_LM", r=16)
    )
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        shape = tuple(parameter.shape)
        mine = initial(name.replace(".default", ""), (shape[0], shape[1]), 0)
        values = parameter.detach().numpy()
        for values_of in (values, mine):
            assert np.abs(values_of).max() <= shape[1] ** -0.5
        # a uniform's deviation is its bound / sqrt(3); 1,024 draws estimate it within 5 %
        assert np.isclose(values.std(), mine.std(), rtol=0.1)
