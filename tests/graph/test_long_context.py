"""Contexts of several chunks of attention: the same bits for every cut, batch, thread count and
instruction set. tests/test_exactness.py has the same laws for short ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rebar import _native
from rebar.graph import SamplingParams
from rebar.graph.memory_plan import KVName
from tests.drive import Prompt, generate, runner_of
from tests.tiny import tiny_gguf

COUNT = 4  # ids generated for each prompt: decode passes over a border after 255 and after 511
LENGTHS = (255, 510, 300, 257, 3, 16)
GREEDY = SamplingParams(temperature=0.0)


def prompts() -> list[Prompt]:
    random = np.random.default_rng(8)
    return [Prompt(tuple(int(i) for i in random.integers(0, 512, n)), GREEDY) for n in LENGTHS]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gemma3 has layers with a sliding window, shorter than a chunk."""
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_gguf(folder, request.param, "Q8_0", layers=3, context_length=1024)


@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_cuts_and_neighbours_change_nothing(path: Path, threads: int, kv: KVName) -> None:
    asked = prompts()
    with runner_of(path, kv=kv) as runner:
        alone = [generate(runner, [p], COUNT)[0] for p in asked]
    with runner_of(path, threads=threads, kv=kv) as runner:
        assert generate(runner, asked, COUNT) == alone
        assert generate(runner, asked, COUNT, chunk=100) == alone
        assert generate(runner, asked[:2], COUNT, chunk=7) == alone[:2]


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_every_instruction_set_and_the_graph(path: Path, kv: KVName) -> None:
    asked = prompts()[:2]
    with runner_of(path, kv=kv) as runner:
        best = generate(runner, asked, COUNT)
        assert generate(runner, asked, COUNT, watched=True) == best
    for isa in _native.isas():
        with runner_of(path, isa=isa, fused=False, kv=kv) as runner:
            assert generate(runner, asked, COUNT) == best


def test_sixty_four_rows_of_mixed_lengths(path: Path) -> None:
    random = np.random.default_rng(9)
    asked = [
        Prompt(tuple(int(i) for i in random.integers(0, 512, 1 + i * 53 % 280)), GREEDY)
        for i in range(64)
    ]
    with runner_of(path, threads=2, kv_tokens=16384) as runner:
        together = generate(runner, asked, 2)
        for i in range(0, 64, 9):
            assert generate(runner, [asked[i]], 2) == [together[i]]
