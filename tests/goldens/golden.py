"""What the reference libraries say of one fixed text, and the rule by which it was measured.

The rule: the text's ids are cut into consecutive windows of 2,048; a window is a context of its
own, begun with the model's beginning-of-sequence id where the model asks for one (it takes the
place of the window's last text id); every position but the first is scored; an incomplete last
window is dropped.
Perplexity is exp(mean negative log probability) over all scored positions, the same ids for every
engine.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
TEXT = HERE.parent / "data" / "northanger_abbey.txt"
WINDOW = 2048
ROWS = (0, 1, 63, 500, 1000, 1500, 2046)
"""Positions of the first window whose most likely ids are kept."""
TOP = 20

Windows = NDArray[np.int32]


@dataclass(frozen=True)
class Golden:
    """Reference numbers of one model. ids (windows, WINDOW); top_ids, top_logprobs (ROWS, TOP)."""

    model: str
    facts: dict[str, Any]
    ids: Windows
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    def perplexity(self, engine: str, windows: int | None = None) -> float:
        """Of the first `windows` windows (None: all); engine "transformers" or "llama.cpp"."""
        return perplexity(self.facts[engine]["negative_log_probability"][:windows])


def perplexity(window_means: list[float]) -> float:
    """From the mean negative log probability (nats) of each window; windows are equally long."""
    return math.exp(sum(window_means) / len(window_means))


def load(model: str) -> Golden:
    """model: "smollm2", "gemma3" or "qwen05"."""
    with np.load(HERE / f"{model}.npz") as arrays:
        return Golden(model, json.loads((HERE / f"{model}.json").read_text()), **dict(arrays))


def windows(ids: list[int], begin: int | None) -> Windows:
    """Text ids -> (windows, WINDOW), by the rule above."""
    head = [] if begin is None else [begin]
    step = WINDOW - len(head)
    cut = [head + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]
    return np.array(cut, dtype=np.int32)
