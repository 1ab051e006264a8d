"""The cost of masks: what is walked obeys its schema, and every mask is counted."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.service.schemas import SCHEMAS
from tests.tiny import tiny_gguf

from bench import masks
from rebar.dataflow.text import Tokenizer
from rebar.graph.weights import open_model


def test_a_table_of_a_small_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "WALKS", 1)
    costs = masks.measure(tiny_gguf(tmp_path))
    assert costs.vocabulary <= 512
    assert len(costs.compile_ms) == len(SCHEMAS) - 1, "the first one also made the tables"
    assert len(costs.any_id) > 100
    assert costs.any_id == sorted(costs.any_id)
    assert costs.row().count("|") == 10


def test_what_is_walked_obeys(tmp_path: Path) -> None:
    walker = masks.Walker(Tokenizer.of(open_model(tiny_gguf(tmp_path))))
    for schema, grammar in zip(SCHEMAS, masks.grammars_of_schemas(), strict=True):
        walker.compile(grammar)
        text, costs = walker.any_id(grammar)
        jsonschema.validate(json.loads(text), schema)
        assert costs
    walker.grammars.close()
