"""The bench of data loading: what it measures is the same work, and its table says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.peers.data_work import EPOCHS, measure, pss_mb
from tests.tiny import tiny_gguf

from bench import data_loading
from rebar.dataflow.data import MMapDataset
from rebar.dataflow.text import Tokenizer
from rebar.graph.weights import open_model


def test_every_kind_gives_all_of_the_data(tmp_path: Path) -> None:
    lines, model = tmp_path / "lines.jsonl", tiny_gguf(tmp_path)
    data_loading.write_lines(lines, 90)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [MMapDataset(lines)[n] for n in range(90)] == records
    tokenizer = Tokenizer.of(open_model(model))
    ids = sum(len(tokenizer.encode(record["text"], bos=False)) for record in records)
    around = 90 * (1 + (tokenizer.add_bos and tokenizer.bos_id is not None))
    data_loading.encode_once(lines, model)
    assert data_loading.ours("records", lines, model, 0)["samples"] == 90 * EPOCHS
    assert data_loading.ours("ids", lines, model, 2)["ids"] == ids + around
    assert data_loading.ours("shard", lines, model, 0)["ids"] == ids + around - 1


def test_batches_are_counted() -> None:
    facts = measure([[b"ab", b"c"]] * 400)
    assert (facts["samples"], facts["ids"]) == (800, 1200)
    assert facts["batches_s"] > 0
    assert pss_mb() > 1


def test_the_table_says_when_the_work_differs() -> None:
    once = {"encode once": {"seconds": 1.0}}
    same = {"ids, ours": {"ids": data_loading.RECORDS + 5.0}, "ids, torch": {"ids": 5.0}}
    assert data_loading.same_ids(same).met is True
    assert data_loading.same_ids({**same, "ids, torch": {"ids": 6.0}}).met is False
    assert data_loading.same_ids(once).met is None
    speeds = {"ids, ours": {"batches_s": 60.0}, "ids, torch": {"batches_s": 10.0}}
    table = {line.figure: line for line in data_loading.lines_of(speeds | once)}
    assert (table["ids, 2 workers"].ratio, table["ids, 2 workers"].met) == ("6.0 x", True)
    assert table["records, 2 workers"].met is None


def test_a_peer_that_is_not_there_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = data_loading.engines(tmp_path, tmp_path, tmp_path, tmp_path)
    assert all("ours" in name for name in found)
    assert "left out" in capsys.readouterr().err
