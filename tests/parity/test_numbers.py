"""Perplexity and log probabilities against transformers on dequantized float32 weights.

Ours quantizes activations to eight bits, as every fast engine on such files does; the bounds say
how much that may cost. Rule, text and ids: tests/goldens/golden.py.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest

from rebar.graph.memory_plan import KVName
from tests.drive import runner_of, window_mean
from tests.goldens import golden, reference

BOUNDS = {"smollm2": 0.005, "qwen05": 0.005, "gemma3": 0.01}
"""Relative distance from transformers that is allowed."""
ABOVE_LLAMA_CPP = 0.002
"""How far above llama.cpp's perplexity on the same file ours may be."""
REPRODUCED = 1e-4
"""Two runs of the same reference differ by the order of float sums on other machines: under 1e-5
seen."""


INT8_KV_BOUNDS = {"smollm2": 0.007, "qwen05": 0.018, "gemma3": 0.004}
"""Relative distance of an int8 cache from f16 that is allowed; measured 0.0039, 0.0137, -0.0010.
Any other rounding of activations moves a window by 0.002."""


def ours(path: Path, windows: golden.Windows, kv: KVName = "f16") -> float:
    """Perplexity of our engine."""
    with runner_of(path, threads=2, kv=kv) as runner:
        return golden.perplexity([window_mean(runner, ids)[0] for ids in windows])


def test_smollm2_speaks_as_the_reference_does(smollm2_path: Path) -> None:
    """One window of 2,048 ids: its perplexity, and the likeliest ids of a few positions."""
    gold = golden.load("smollm2")
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == gold.facts["sha256"]
    with runner_of(smollm2_path, threads=2) as runner:
        mean, answers = window_mean(runner, gold.ids[0], top=golden.TOP)
    expected = gold.perplexity("transformers", windows=1)
    assert abs(golden.perplexity([mean]) / expected - 1) < BOUNDS["smollm2"]
    for position, ids, logprobs in zip(golden.ROWS, gold.top_ids, gold.top_logprobs, strict=True):
        found = dict(answers[position].top)
        assert len(found.keys() & set(ids.tolist())) >= golden.TOP - 4
        # Eight-bit activations move a log probability by 0.05 to 0.15 (standard deviation over a
        # row); weighted by probability the likeliest ids must be nearer than that.
        shared = [
            (math.exp(p), abs(found[i] - p))
            for i, p in zip(ids.tolist(), logprobs, strict=True)
            if i in found
        ]
        assert sum(weight * distance for weight, distance in shared) < 0.1


@pytest.mark.parity
@pytest.mark.parametrize("model", ["smollm2", "qwen05", "gemma3"])
def test_perplexity_live(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(f"{model}_path")
    gold = golden.load(model)
    live_model = reference.transformers_model(path)
    live = golden.perplexity(
        [
            reference.negative_log_probability(reference.transformers_logits(live_model, ids), ids)[
                0
            ]
            for ids in gold.ids
        ]
    )
    del live_model
    assert abs(live / gold.perplexity("transformers") - 1) < REPRODUCED
    measured = ours(path, gold.ids)
    assert abs(measured / live - 1) < BOUNDS[model]
    assert measured < gold.perplexity("llama.cpp") * (1 + ABOVE_LLAMA_CPP)


@pytest.mark.parity
@pytest.mark.parametrize("model", ["smollm2", "qwen05", "gemma3"])
def test_what_an_int8_cache_costs(model: str, request: pytest.FixtureRequest) -> None:
    """Windows of 2,048 ids: all of them are read back from the cache."""
    path: Path = request.getfixturevalue(f"{model}_path")
    windows = golden.load(model).ids
    assert abs(ours(path, windows, "int8") / ours(path, windows) - 1) < INT8_KV_BOUNDS[model]


@pytest.mark.parity
@pytest.mark.parametrize("model", ["smollm2", "qwen05", "gemma3"])
def test_the_numbers_of_llama_cpp_live(model: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("llama_cpp")
    path: Path = request.getfixturevalue(f"{model}_path")
    gold = golden.load(model)
    ids = gold.ids[0]
    mean, _ = reference.negative_log_probability(reference.llama_cpp_logits(path, ids), ids)
    # Its kernels differ between processors: its own perplexity moves more than the reference's.
    assert abs(golden.perplexity([mean]) / gold.perplexity("llama.cpp", windows=1) - 1) < 0.005
