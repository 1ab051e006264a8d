"""A torch DataLoader over JSON lines: python torch_loader.py LINES WORKERS [TOKENIZER.json]

The file's lines in a list; json.loads in the workers; with a tokenizer, ids of each batch in one
call of it there, as tensors. Records: several epochs, workers kept. One line of JSON.
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from data_work import BATCH, EPOCHS, measure
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset[Any]):
    """The usual data set: all lines in memory."""

    def __init__(self, path: Path) -> None:
        self.lines = path.read_bytes().splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, sample: int) -> Any:  # noqa: ANN401
        return json.loads(self.lines[sample])


class Encode:
    """Records to ids, in the worker; the fast path of Hugging Face's tokenizers."""

    def __init__(self, path: str) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(path)

    def __call__(self, records: list[Any]) -> list[torch.Tensor]:
        """A tensor a text."""
        texts = [record["text"] for record in records]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [torch.tensor(e.ids, dtype=torch.int32) for e in encoded]


def main() -> None:
    """Measures and prints."""
    path, workers = Path(sys.argv[1]), int(sys.argv[2])
    collate = Encode(sys.argv[3]) if len(sys.argv) > 3 else list
    epochs = 1 if len(sys.argv) > 3 else EPOCHS
    loader = DataLoader(
        Lines(path),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
    )
    batches = chain.from_iterable(loader for _ in range(epochs))
    print(json.dumps(measure(batches) | {"engine": "torch", "version": torch.__version__}))


if __name__ == "__main__":
    main()
