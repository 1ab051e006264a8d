"""Data sets and pipelines for the tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebar.dataflow.data import (
    BatchSizer,
    DataPipeline,
    Decode,
    Mask,
    MMapDataset,
    Pack,
    Stage,
    Tokenize,
    TrainingBatches,
)
from rebar.dataflow.text import ChatTemplate
from tests.dataflow.test_chat import CHATML
from tests.dataflow.vocabularies import bpe


def write(path: Path, records: Sequence[object]) -> MMapDataset:
    """JSON lines; a text in `records` is taken as a line that is there already."""
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("".join(line + "\n" for line in lines))
    return MMapDataset(path)


def chats(count: int) -> list[dict[str, Any]]:
    """Conversations of different lengths."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {n}"},
                {"role": "assistant", "content": f"{n} " * (1 + n * 7 % 11)},
            ]
        }
        for n in range(count)
    ]


def stages(data: MMapDataset, rows: int = 64, **rules: Any) -> list[Stage[Any, Any]]:
    """Decode, Tokenize, Mask over the tiny vocabulary."""
    on_error = rules.pop("on_error", "raise")
    tokenizer = bpe()
    return [
        Decode(data.where, on_error),
        Tokenize(tokenizer, ChatTemplate(CHATML, tokenizer), data.where, on_error),
        Mask(rows, data.where, **rules),
    ]


def batches(
    data: MMapDataset,
    *,
    samples: int = 4,
    epochs: int = 2,
    seed: int = 1,
    workers: int = 0,
    most: int = 8,
    rows: int = 64,
    **rules: Any,
) -> TrainingBatches:
    """Windows of `samples` sequences, micro-batches of twice the longest sequence."""
    sizer = BatchSizer(most=most)
    pipeline = DataPipeline(
        data, stages(data, rows, **rules), seed=seed, workers=workers, sizer=sizer
    )
    return TrainingBatches(pipeline, Pack(2 * rows, 8), samples=samples, epochs=epochs)
