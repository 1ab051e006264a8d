"""PEFT's folders: what is read, what is refused by name, and what is written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.errors import CorruptFileError, InputError, ModelFileError, UnsupportedModelError
from rebar.graph.lora import Adapter, LoraSpec, initial, lora_shapes, read_adapter, write_adapter
from rebar.graph.lora.modules import Place
from rebar.graph.models.adapted import PARTS
from tests.tiny import tiny_config
from tests.tiny.adapter import LEAVES, PREFIX, adapter_values, tiny_adapter

CONFIG = tiny_config("qwen2")
CONFIG_FIELDS = [
    "peft_type", "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "bias",
    "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
    "base_model_name_or_path", "task_type",
]  # fmt: skip
Q, UP = Place(0, "q"), Place(1, "up")


def scales(adapter: Adapter) -> set[float]:
    return {low.scale for low in adapter.parts.values()}


@pytest.mark.parametrize(("rslora", "scale"), [(False, 1.0), (True, 4.0)])
def test_the_scale_of_case_j4(tmp_path: Path, rslora: bool, scale: float) -> None:
    """A-j4: rsLoRA divides by the root of r, and somebody's merge did not."""
    folder = tiny_adapter(tmp_path, CONFIG, r=16, lora_alpha=16, use_rslora=rslora)
    assert scales(read_adapter(folder, CONFIG)) == {scale}
    assert LoraSpec(16, 16.0, rslora=rslora).scale == scale


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_values_of_every_type_are_exact(tmp_path: Path, kind: Any) -> None:
    """A-j4: bf16 read as f32 is garbage of half the length; here each value is the file's."""
    values = adapter_values(CONFIG, ["q_proj"], 4)
    if kind == "BF16":
        values = {n: (v.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, v in values.items()}
    if kind == "F16":
        values = {n: v.astype(np.float16).astype(np.float32) for n, v in values.items()}
    folder = tiny_adapter(tmp_path, CONFIG, targets=["q_proj"], values=values, kind=kind)
    a, b = read_adapter(folder, CONFIG).parts[Q].matrices()
    assert (a == values["model.layers.0.self_attn.q_proj.lora_A.weight"]).all()
    assert (b == values["model.layers.0.self_attn.q_proj.lora_B.weight"]).all()


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: PREFIX + name,
        lambda name: PREFIX + name.replace(".weight", ".default.weight"),
        lambda name: PREFIX + name.replace("model.", "model.language_model.", 1),
        lambda name: PREFIX + name.replace("model.", "language_model.model.", 1),
    ],
)
def test_every_spelling_of_a_name_means_the_same(
    tmp_path: Path, rename: Callable[[str], str]
) -> None:
    """A-j4: with the prefix of peft and without."""
    values = adapter_values(CONFIG, ["q_proj", "up_proj"], 4)
    named = {rename(name): v for name, v in values.items()}
    kept = {"targets": ["q_proj", "up_proj"], "prefix": ""}
    given = tiny_adapter(tmp_path / "a", CONFIG, values=named, **kept)  # type: ignore[arg-type]
    adapter = read_adapter(given, CONFIG)
    assert set(adapter.parts) == {Place(i, p) for i in (0, 1) for p in ("q", "up")}
    assert (
        adapter.parts[UP].matrices()[1] == values["model.layers.1.mlp.up_proj.lora_B.weight"]
    ).all()


@pytest.mark.parametrize(
    ("targets", "parts"),
    [
        ("all-linear", {"q", "k", "v", "out", "gate", "up", "down"}),
        (r".*\.(q|v)_proj", {"q", "v"}),
        (r"model\.layers\.\d+\.mlp\..*", {"gate", "up", "down"}),
        (["self_attn.o_proj", "down_proj"], {"out", "down"}),
    ],
)
def test_targets_are_names_or_a_pattern(
    tmp_path: Path, targets: str | list[str], parts: set[str]
) -> None:
    leaves = [leaf for leaf, part in zip(LEAVES, PARTS, strict=True) if part in parts]
    values = adapter_values(CONFIG, leaves, 4)
    folder = tiny_adapter(tmp_path, CONFIG, values=values, target_modules=targets)
    assert {place.part for place in read_adapter(folder, CONFIG).parts} == parts


def test_some_layers_other_ranks_and_what_is_excluded(tmp_path: Path) -> None:
    """As peft means them: no layers are all layers, and who is named in full is meant in any."""
    values = adapter_values(CONFIG, ["q_proj"], 4)
    one = {n: v for n, v in values.items() if ".layers.1." in n}
    some: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]}
    folder = tiny_adapter(tmp_path / "a", CONFIG, values=one, layers_to_transform=[1], **some)
    assert set(read_adapter(folder, CONFIG).parts) == {Place(1, "q")}

    folder = tiny_adapter(tmp_path / "all", CONFIG, targets=["q_proj"], layers_to_transform=[])
    assert {place.layer for place in read_adapter(folder, CONFIG).parts} == {0, 1}
    named = ["model.layers.0.self_attn.q_proj", "v_proj"]
    mixed = {n: v for n, v in adapter_values(CONFIG, ["q_proj", "v_proj"], 4).items()
             if (".layers.0." in n) == ("q_proj" in n)}  # fmt: skip
    folder = tiny_adapter(
        tmp_path / "m", CONFIG, values=mixed, target_modules=named, layers_to_transform=[1]
    )
    assert set(read_adapter(folder, CONFIG).parts) == {Place(0, "q"), Place(1, "v")}

    half = {n: v[:2] if "lora_A" in n else v[:, :2] for n, v in one.items()}
    folder = tiny_adapter(
        tmp_path / "b",
        CONFIG,
        values=values | half,
        targets=["q_proj"],
        rank_pattern={r"layers\.1\.self_attn\.q_proj": 2},
        alpha_pattern={"q_proj": 8},
    )
    adapter = read_adapter(folder, CONFIG)
    assert (adapter.parts[Q].rank, adapter.parts[Q].scale) == (4, 2.0)
    other = adapter.parts[Place(1, "q")]
    assert (other.rank, other.scale, adapter.rank) == (2, 4.0, 4)


def without(name: str) -> dict[str, Any]:
    values = adapter_values(CONFIG, ["q_proj"], 4)
    del values[name]
    return {"values": values, "targets": ["q_proj"]}


def reshaped(leaf: str, *shape: int) -> dict[str, Any]:
    values = adapter_values(CONFIG, ["q_proj"], 4)
    values[f"model.layers.0.self_attn.q_proj.{leaf}.weight"] = np.zeros(shape, np.float32)
    return {"values": values, "targets": ["q_proj"]}


def poisoned() -> dict[str, Any]:
    values = adapter_values(CONFIG, ["q_proj"], 4)
    next(iter(values.values()))[0, 0] = np.nan
    return {"values": values, "targets": ["q_proj"]}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("another prefix", {"prefix": "wrong."}, r"q_proj.lora_A.weight' is missing \('wrong\."),
    ("a matrix is missing", without("model.layers.1.self_attn.q_proj.lora_B.weight"), "is missing"),
    ("more than is meant", {"target_modules": ["q_proj"]}, "belong to no target"),
    ("a target that is none", {"target_modules": ["q_proj", "wqkv"]}, "target 'wqkv' names no"),
    ("the head", {"target_modules": ["lm_head"]}, "target 'lm_head' names no linear layer"),
    ("a pattern that means nothing", {"target_modules": "x.*"}, "target 'x.*' names no"),
    ("no targets", {"target_modules": None}, "there is no `target_modules`"),
    ("a layer that is none", {"layers_to_transform": [7]}, "its targets name no linear layer"),
    ("another rank", {"r": 4, "lora_alpha": 4, **reshaped("lora_A", 5, 64)}, r"shape \(5, 64\)"),
    ("another model", reshaped("lora_B", 60, 4), r"has shape \(60, 4\).*ask for \(64, 4\)"),
    ("no number", poisoned(), "holds what is no number"),
    ("rank 0", {"r": 4, "rank_pattern": {"q_proj": 0}}, "a rank of 0"),
    ("alpha", {"lora_alpha": 1e300}, "`lora_alpha` is no sound number"),
    ("another method", {"peft_type": "LOHA"}, "of type 'LOHA'"),
    ("dora", {"use_dora": True}, "`use_dora` is set"),
    ("biases", {"bias": "lora_only"}, "`bias` is 'lora_only'"),
    ("whole modules", {"modules_to_save": ["lm_head"]}, "`modules_to_save`"),
    ("other base weights", {"init_lora_weights": "pissa_niter_16"}, "other weights of the model"),
    ("base weights by gradients", {"init_lora_weights": "lora_ga"}, "other weights of the model"),
    ("a method of these days", {"kasa_config": {"beta": 1e-4}}, "`kasa_config` is set: another"),
    ("a method not heard of yet", {"new_config": {"on": True}}, "`new_config` is set: another"),
    ("transposed", {"fan_in_fan_out": True}, "transposed"),
    ("layers of a pattern", {"target_modules": ".*q_proj", "layers_to_transform": [0]}, "beside a"),
    ("no pattern", {"target_modules": "(q_proj"}, "is none"),
    ("a pattern for ever", {"target_modules": "(.|.)*x"}, "repeats a group"),
    ("a pattern for long", {"target_modules": ".*.*.*.*.*.*x"}, "repeats more than 5"),
    ("patterns for long", {"rank_pattern": {f".*.*.*.*{i}": 4 for i in range(9)}}, "in time"),
    ("patterns without end", {"alpha_pattern": {f"m{i}": 4 for i in range(5000)}}, "in time"),
    ("a type that is none", {"lora_alpha": "eight"}, "is no description of an adapter"),
]


@pytest.mark.parametrize(
    ("fields", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    """A-j4: a prefix that matches nothing once merged nothing, and succeeded."""
    with pytest.raises(ModelFileError, match=message):
        read_adapter(tiny_adapter(tmp_path, CONFIG, **fields), CONFIG)


def test_a_pattern_of_classes_and_escapes_is_no_repetition(tmp_path: Path) -> None:
    """The pattern that a popular trainer writes: what only looks like a repetition counts for
    nothing.
    """
    pattern = (
        r"(?:.*?(?:language|text).*?(?:self_attn|attn|mlp).*?(?:q_proj|v_proj).*?)"
        r"|(?:\bmodel\.layers\.[\d*+]{1,}\.(?:self_attn|mlp)\.(?:q_proj|v_proj))"
    )
    values = adapter_values(CONFIG, ["q_proj", "v_proj"], 4)
    folder = tiny_adapter(tmp_path, CONFIG, values=values, target_modules=pattern)
    assert len(read_adapter(folder, CONFIG).parts) == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = [*CONFIG_FIELDS, "use_dora", "lora_bias", "modules_to_save", "unheard_of"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_description_from_a_stranger_is_read_or_refused(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Whatever stands in it, within its bounds of time."""
    described = json.loads((tiny_adapter(tmp_path, CONFIG) / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**described, **fields}))
    with contextlib.suppress(ModelFileError):
        assert read_adapter(tmp_path, CONFIG).parts


def test_a_rank_for_each_module_by_name(tmp_path: Path) -> None:
    """As peft writes them for some ways of starting: a pattern a module, without repetitions."""
    values = adapter_values(CONFIG, ["q_proj", "up_proj"], 4)
    modules = sorted({name.split(".lora_")[0] for name in values})
    ranks = {module: 1 + i for i, module in enumerate(modules)}
    own = {}
    for name, v in values.items():
        rank = ranks[name.split(".lora_")[0]]
        own[name] = v[:rank] if "lora_A" in name else v[:, :rank]
    leaves = ["q_proj", "up_proj"]
    folder = tiny_adapter(tmp_path, CONFIG, values=own, targets=leaves, rank_pattern=ranks, r=9)
    found = {p: low.rank for p, low in read_adapter(folder, CONFIG).parts.items()}
    assert sorted(found.values()) == [1, 2, 3, 4]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"adapter_config.json cannot be read: No such file"):
        read_adapter(tmp_path, CONFIG)
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match="a pickle, which can run code"):
        read_adapter(tmp_path, CONFIG)
    folder = tiny_adapter(tmp_path / "a", CONFIG)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    with pytest.raises(CorruptFileError, match="the file has"):
        read_adapter(folder, CONFIG)
    weights.write_bytes(whole)
    (folder / "adapter_config.json").write_text("[1, 2")
    with pytest.raises(CorruptFileError, match="no description of an adapter"):
        read_adapter(folder, CONFIG)


def test_the_digest_is_of_description_and_weights(tmp_path: Path) -> None:
    """Served by digest: what changes an answer changes it."""
    given: list[dict[str, Any]] = [{}, {}, {"lora_alpha": 3}, {"seed": 1}]
    digests = {
        read_adapter(tiny_adapter(tmp_path / str(i), CONFIG, **fields), CONFIG).digest
        for i, fields in enumerate(given)
    }
    assert len(digests) == 3


@pytest.mark.parametrize("spec", [LoraSpec(), LoraSpec(3, 7.0, ("all-linear",), rslora=True)])
def test_what_is_written_is_read(tmp_path: Path, spec: LoraSpec) -> None:
    shapes = dict(lora_shapes(CONFIG, spec))
    matrices = {
        name: initial(name, shape, seed=5) + np.float32(1) for name, shape in shapes.items()
    }
    write_adapter(tmp_path, spec, matrices, base="tiny", trained_on="ab")
    adapter = read_adapter(tmp_path, CONFIG)
    assert scales(adapter) == {spec.scale}
    assert (adapter.config.base, adapter.trained_on) == ("tiny", "ab")
    assert [adapter.is_foreign(base) for base in ("ab", "", "cd")] == [False, False, True]
    a, b = adapter.parts[Q].matrices()
    assert (a == matrices["model.layers.0.self_attn.q_proj.lora_A.weight"]).all()
    assert (b == matrices["model.layers.0.self_attn.q_proj.lora_B.weight"]).all()
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described["r"] == spec.r
    assert described["use_rslora"] is spec.rslora


def test_who_is_stopped_while_writing_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights stood beside the description of the ones before for a moment: equal shapes,
    another scale, and nothing that could be noticed.
    """
    old, new = LoraSpec(4, 8.0), LoraSpec(4, 64.0)
    matrices = {n: initial(n, shape, 5) for n, shape in lora_shapes(CONFIG, old)}
    write_adapter(tmp_path, old, matrices)

    def killed(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(msgspec.json, "format", killed)
        with pytest.raises(KeyboardInterrupt):
            write_adapter(tmp_path, new, matrices)
    with pytest.raises(ModelFileError, match=r"adapter_config.json cannot be read"):
        read_adapter(tmp_path, CONFIG)
    write_adapter(tmp_path, new, matrices)
    assert scales(read_adapter(tmp_path, CONFIG)) == {16.0}


def test_a_place_that_takes_no_adapter_is_told(tmp_path: Path) -> None:
    matrices = {n: initial(n, shape, 5) for n, shape in lora_shapes(CONFIG, LoraSpec())}
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelFileError, match=r"cannot be written: .* Choose another place"):
        write_adapter(tmp_path / "file" / "adapter", LoraSpec(), matrices)


def test_where_training_begins() -> None:
    """A uniform within 1 / sqrt(k), B zero; a function of seed and name, not of who drew before."""
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    a = initial(name, (64, 256), 7)
    assert (a == initial(name, (64, 256), 7)).all()
    assert (a != initial(name, (64, 256), 8)).any()
    assert (a != initial(name.replace(".0.", ".1."), (64, 256), 7)).any()
    assert np.abs(a).max() <= 256**-0.5
    # the mean of 16,384 draws of deviation bound / sqrt(3): within five of its deviations
    assert abs(a.mean()) < 5 * 256**-0.5 / np.sqrt(3 * a.size)
    assert np.isclose(a.std(), 256**-0.5 / np.sqrt(3), rtol=0.05)
    assert not initial(name.replace("lora_A", "lora_B"), (64, 4), 7).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 0}, "rank 0"),
        ({"r": 2000}, "rank 2000"),
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"targets": ()}, "without a target"),
        ({"targets": ("q_proj", "c_attn")}, "called c_attn"),
    ],
)
def test_a_wrong_spec_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(lora_shapes(CONFIG, LoraSpec(**fields)))
