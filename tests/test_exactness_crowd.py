"""Sixty-four sequences at once, each as if it were alone.

Prompts of 1 to 200 ids go in chunks, so that a step holds pieces of long prompts beside single rows
of sequences that decode already, and row counts that no kernel is tiled for. Every comparison is
`==` on ids and on the bits of all logits, as in test_exactness.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from rebar.graph import Row, Runner
from tests.drive import Prompt, Trace, generate, runner_of
from tests.test_exactness import SAMPLING, types_of
from tests.tiny.model import tiny_gguf

CROWD = 64
LONGEST = 200
COUNT = 4  # ids generated for each prompt
KV_TOKENS = CROWD * 224  # 200 ids and 4 more take 13 blocks of 16; one to spare
CONTEXT = 256


def crowd_of(vocab: int, longest: int = LONGEST, seed: int = 64) -> list[Prompt]:
    """64 prompts: the shortest and longest, sizes around a block and a tile, and any others."""
    random = np.random.default_rng(seed)
    edges = [1, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, longest - 1, longest]
    lengths = [*edges, *random.integers(1, longest + 1, CROWD - len(edges)).tolist()]
    return [
        Prompt(tuple(random.integers(0, vocab, n).tolist()), SAMPLING[i % len(SAMPLING)])
        for i, n in enumerate(random.permutation(lengths).tolist())
    ]


@dataclass
class Steps:
    """What each step of a run held: its rows of prompts that go on, and its rows that decode."""

    held: list[tuple[int, int]] = field(default_factory=list)

    def watch(self, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        step = runner.step

        def counted(rows: Sequence[Row], observers: Sequence[object] | None = None) -> object:
            decode = sum(row.first + 1 == row.sequence.total > row.sequence.prompt for row in rows)
            self.held.append((sum(row.count for row in rows) - decode, decode))
            return step(rows, None if observers is None else ())

        monkeypatch.setattr(runner, "step", counted)

    @property
    def mixed(self) -> int:
        """Steps with rows of both kinds."""
        return sum(prompt > 0 and decode > 0 for prompt, decode in self.held)


class Crowd:
    """A model, its prompts, and what each answered alone, whole, on one thread."""

    def __init__(self, path: Path, prompts: list[Prompt]) -> None:
        self.path, self.prompts = path, prompts
        with runner_of(path) as runner:
            self.alone = [generate(runner, [p], COUNT)[0] for p in prompts]

    def differing(self, traces: list[Trace]) -> list[int]:
        """Lengths of the prompts whose answer was another one."""
        pairs = zip(self.prompts, self.alone, traces, strict=True)
        return [len(prompt.ids) for prompt, alone, trace in pairs if trace != alone]


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    """A model of each family, other weight types in each part than in test_exactness.py."""
    family: str = request.param
    folder = tmp_path_factory.mktemp(family)
    types = types_of({"llama": 2, "qwen2": 6, "gemma3": 10}[family])
    path = tiny_gguf(folder, family, types, width=256, layers=2, context_length=CONTEXT)
    return Crowd(path, crowd_of(512))


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def runner(crowd: Crowd, request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Three threads on fewer cores claim pieces in ever another order."""
    with runner_of(crowd.path, threads=request.param, kv_tokens=KV_TOKENS) as runner:
        yield runner


@pytest.mark.parametrize("chunk", [1, 5, 32, None])
def test_each_of_64_as_alone(
    crowd: Crowd, runner: Runner, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    steps.watch(runner, monkeypatch)
    assert crowd.differing(generate(runner, crowd.prompts, COUNT, chunk=chunk)) == []
    assert max(prompt + decode for prompt, decode in steps.held) >= CROWD
    # Chunk 1 runs all sequences side by side; the other sizes cut prompts and decode beside them.
    assert steps.mixed >= 3


def test_64_decoding_together_as_alone(
    crowd: Crowd, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of one length get their first id in one step; from then on 64 rows decode."""
    index = min(range(CROWD), key=lambda i: abs(len(crowd.prompts[i].ids) - 8))
    steps = Steps()
    steps.watch(runner, monkeypatch)
    traces = generate(runner, [crowd.prompts[index]] * CROWD, COUNT)
    assert steps.held[-1] == (0, CROWD)
    assert all(trace == crowd.alone[index] for trace in traces)


@pytest.mark.parametrize("max_rows", [64, 200])
def test_steps_full_to_the_last_row(crowd: Crowd, max_rows: int) -> None:
    """What does not fit into a step waits: prompts are cut wherever the room ends."""
    with runner_of(crowd.path, threads=2, max_rows=max_rows, kv_tokens=KV_TOKENS) as runner:
        assert crowd.differing(generate(runner, crowd.prompts, COUNT)) == []


def test_the_graph_as_the_program_at_64(crowd: Crowd) -> None:
    with runner_of(crowd.path, threads=2, kv_tokens=KV_TOKENS) as runner:
        traces = generate(runner, crowd.prompts, COUNT, chunk=8, watched=True)
    assert crowd.differing(traces) == []


def test_a_difference_in_one_of_64_is_seen(crowd: Crowd) -> None:
    """The comparison itself: one id of one prompt is another, and exactly that answer differs."""
    index = max(range(CROWD), key=lambda i: len(crowd.prompts[i].ids))
    ids = crowd.prompts[index].ids
    changed = list(crowd.prompts)
    changed[index] = Prompt((*ids[:-1], (ids[-1] + 1) % 512), changed[index].sampling)
    with runner_of(crowd.path, kv_tokens=KV_TOKENS) as runner:
        assert crowd.differing(generate(runner, changed, COUNT, chunk=32)) == [len(ids)]


def test_64_on_real_weights(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2. Shorter prompts, for time: 64 alone and together are 5,000 rows."""
    crowd = Crowd(smollm2_path, crowd_of(49_000, longest=70))
    steps = Steps()
    with runner_of(smollm2_path, threads=2, kv_tokens=CROWD * 80) as runner:
        steps.watch(runner, monkeypatch)
        assert crowd.differing(generate(runner, crowd.prompts, COUNT, chunk=16)) == []
    assert steps.mixed >= 3
