"""Adapters through the Python API: by name, the same answers as over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rebar
from rebar.errors import InputError, ModelFileError
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
