"""Embeddings beside those of llama.cpp and transformers on the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import rebar
from tests.conftest import cache_folder
from tests.goldens import reference

Reference = Callable[[Path, list[list[int]], str], list[NDArray[np.float64]]]
TEXTS = [
    "x",
    "The cat sleeps on the sofa.",
    "Interest rates were raised by the central bank on Tuesday, to the surprise of many.",
    "def f(x):\n    return x + 1",
    "It was the best of times, it was the worst of times, it was the age of wisdom. " * 6,
]


@pytest.mark.parity
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_vectors_of_llama_cpp_live(smollm2_path: Path, pooling: str) -> None:
    """Both round the activations of every product to eight bits, in groups of 16 (ours) and 32, so
    the vectors point apart a little: by 0.026 at most on these texts (a cosine of 0.9997), where
    0.045 (0.999) is allowed. Texts that have nothing in common lie at 0.4 to 0.7.
    """
    pytest.importorskip("llama_cpp")
    compare(smollm2_path, pooling, reference.llama_cpp_embeddings)


@pytest.mark.parity
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_vectors_of_transformers_live(smollm2_path: Path, pooling: str) -> None:
    """In float32, where nothing is rounded to eight bits: the same bound holds."""
    compare(smollm2_path, pooling, reference.transformers_embeddings)


def compare(path: Path, pooling: str, theirs: Reference) -> None:
    """Every cosine is above 0.999."""
    with rebar.load(path, cache=cache_folder(), max_context=512, kv_tokens=2048) as model:
        ours = model.embed(TEXTS, pooling=pooling).astype(np.float64)  # type: ignore[arg-type]
        ids = [model.tokenize(text) for text in TEXTS]
    for a, b in zip(ours, theirs(path, ids, pooling), strict=True):
        assert float(a @ b) / float(np.linalg.norm(a)) > 0.999
