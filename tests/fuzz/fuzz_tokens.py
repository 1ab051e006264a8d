"""Fuzzes the reader of token shards: any bytes give sequences inside the file, or a DataError.

python -m tests.fuzz.fuzz_tokens CORPUS -max_total_time=600
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rebar.dataflow.data import TokenDataset, write_tokens
from rebar.errors import DataError
from tests.dataflow.vocabularies import bpe
from tests.fuzz.harness import Target, fuzz


def seeds(folder: Path) -> list[bytes]:
    """Two documents, and an empty one."""
    path = folder / "seed.ids"
    found = []
    for texts in (["one two three", "four"], [""]):
        write_tokens(path, bpe(), texts)
        found.append(path.read_bytes())
    return found


def read(path: Path) -> None:
    """Every sequence; neighbours have one id in common."""
    data = TokenDataset(path, 3)
    raws = data.raws(np.arange(len(data)))
    assert sum(len(raw) - 1 for raw in raws) == max(0, len(data.ids) - 1)
    data.verify()


TARGET = Target("t.ids", seeds, read, refusal=DataError)

if __name__ == "__main__":
    fuzz(TARGET)
