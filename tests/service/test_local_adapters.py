"""Adapters through the Python API: by name, the same answers as over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rebar
from rebar.dataflow.adapters import AdapterStore
from rebar.dataflow.models import convert
from rebar.errors import InputError, ModelFileError
from rebar.graph.lora import LoraSpec, initial, lora_shapes, read_adapter, write_adapter
from rebar.graph.lora.merge import merged
from rebar.graph.models.adapted import AdapterRoom
from rebar.graph.weights import open_model, write_rebar
from rebar.graph.weights.provenance import weights_digest
from rebar.service.local_adapters import LocalAdapters
from tests.service.adapted import ASKED, CONFIG, adapted, choice
from tests.tiny import tiny_gguf
from tests.tiny.adapter import tiny_adapter


def test_names_choose_adapters_side_by_side(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    folders: dict[str, str | Path] = {
        "pirate": tiny_adapter(tmp_path / "pirate", CONFIG, r=8, seed=1),
        "poet": str(tiny_adapter(tmp_path / "poet", CONFIG, r=4, seed=2)),
    }
    asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    prompt = ASKED["prompt"]
    options: dict[str, Any] = {"threads": 1, "kv_tokens": 2048, "cache": tmp_path / "cache"}
    with rebar.load(path, adapters=folders, **options) as model:
        names = [None, "pirate", "poet"]
        with ThreadPoolExecutor(3) as pool:
            said = list(pool.map(lambda n: model.generate(prompt, adapter=n, **asked), names))
        assert len(set(said)) == 3
        assert "".join(model.stream(prompt, adapter="poet", **asked)) == said[2]
        assert model.chat("hi", adapter="pirate", max_tokens=4, temperature=0)
        vectors = [model.embed("hi", adapter=name) for name in names]
        assert (vectors[0] != vectors[1]).any()
        with pytest.raises(InputError, match=r"No adapter 'ghost' .* there are pirate, poet"):
            model.generate("x", adapter="ghost")
    with adapted(tmp_path, tmp_path / "cache", "pirate", "poet") as server:
        for name, text in zip(("m", "pirate", "poet"), said, strict=True):
            assert choice(server.complete(model=name, **ASKED))["text"] == text
    with rebar.load(path, **options) as bare:
        assert bare.generate(prompt, **asked) == said[0]
        with pytest.raises(InputError, match="there are none"):
            bare.generate("x", adapter="pirate")
    with pytest.raises(ModelFileError, match="cannot be read"):
        rebar.load(path, adapters={"x": tmp_path / "nowhere"}, **options)


def test_an_adapter_of_other_weights_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Same sizes, other weights (another quantization, something merged in): it was served without
    a word, though what is served is then not what was trained.
    """
    source = tiny_gguf(tmp_path, head_dim=32)
    files = {name: tmp_path / f"{name}.rebar" for name in ("base", "again", "q4", "merged")}
    for name in ("base", "again"):
        convert(source, files[name])
    convert(source, files["q4"], kind="Q4_0")
    base = open_model(files["base"])
    spec = LoraSpec(4)
    matrices = {n: initial(n, shape, 1) for n, shape in lora_shapes(base.config, spec)}
    mine = tmp_path / "mine"
    write_adapter(mine, spec, matrices, trained_on=weights_digest(base))
    other = tiny_adapter(tmp_path / "other", base.config, seed=9)  # says nothing of its weights
    whole = merged(base, read_adapter(other, base.config))
    assert base.vocabulary is not None
    tables = bytes(base.vocabulary)
    write_rebar(whole, files["merged"], vocabulary=tables, provenance=whole.provenance)
    room = AdapterRoom(2, 8)
    for name, path in files.items():
        file, foreign = open_model(path), name in ("q4", "merged")
        caplog.clear()
        LocalAdapters(file, {"mine": mine})
        store = AdapterStore(tmp_path / name, file.config, room, base=weights_digest(file))
        store.take(mine)
        store.take(tiny_adapter(tmp_path / "third", base.config, seed=10))
        assert sum("trained on other weights" in m for m in caplog.messages) == 2 * foreign, name
