"""Our data sets in torch's DataLoader, for those who train with torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebar.dataflow.data import MMapDataset, TokenDataset, write_tokens
from rebar.dataflow.text import Tokenizer
from rebar.graph.weights import open_model

COUNT = 100


@pytest.fixture
def data(tmp_path: Path) -> MMapDataset:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"n": n, "text": "x" * n}) + "\n" for n in range(COUNT)))
    return MMapDataset(path)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [0, 3])
def test_records(data: MMapDataset, workers: int, start: str) -> None:
    """A-j7: workers get the path, not the data; each record comes once, in the sampler's order."""
    torch = pytest.importorskip("torch")
    seen: dict[int, list[Any]] = {}
    for count in (0, workers):
        loader = torch.utils.data.DataLoader(
            data,
            batch_size=8,
            shuffle=True,
            num_workers=count,
            collate_fn=list,
            generator=torch.Generator().manual_seed(7),
            multiprocessing_context=start if count else None,
        )
        seen[count] = [record for batch in loader for record in batch]
    assert seen[workers] == seen[0]
    assert sorted(record["n"] for record in seen[0]) == list(range(COUNT))


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_ids(tmp_path: Path, smollm2_path: Path) -> None:
    """Sequences of one length make tensors by torch's own collation."""
    torch = pytest.importorskip("torch")
    tokenizer = Tokenizer.of(open_model(smollm2_path))
    text = (Path(__file__).parents[1] / "data" / "northanger_abbey.txt").read_text()
    write_tokens(tmp_path / "t.ids", tokenizer, [text])
    tokens = TokenDataset(tmp_path / "t.ids", 32)
    sampler = range(len(tokens) - 1)  # the last one is shorter
    loader = torch.utils.data.DataLoader(tokens, batch_size=4, sampler=sampler, num_workers=2)
    rows = torch.cat(list(loader))
    assert rows.shape == (len(tokens) - 1, 33)
    assert rows[:, 0].tolist() == tokens.ids[: len(sampler) * 32 : 32].tolist()
