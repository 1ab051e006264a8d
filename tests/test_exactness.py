"""The bits of an answer depend on weights, prompt, parameters and seed, and on nothing else.

Every comparison is `==` on the ids and on the bits of all logits that chose them. Tiny random
models of each family carry every weight type; SmolLM2 carries real weights. Other engines fail
here: their answers change with the chunk size and with the neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rebar import _native
from rebar.graph import Row, Runner, SamplingParams, Sequence
from rebar.graph.weights import open_model, write_rebar
from rebar.graph.weights.model_file import WeightType
from tests.drive import Prompt, Trace, generate, runner_of, window_mean
from tests.tiny.model import tiny_gguf

COUNT = 5  # ids generated for each prompt
ALL_TYPES: tuple[WeightType, ...] = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
PARTS = ("embed", "q", "k", "v", "out", "gate", "up", "down", "head")
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 90)
SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.2, seed=6, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, seed=7, top_k=20, min_p=0.01, presence_penalty=0.5),
)


def types_of(shift: int) -> dict[str, WeightType]:
    """A weight type for every part, another start for every family, so that all types occur."""
    return {part: ALL_TYPES[(i + shift) % len(ALL_TYPES)] for i, part in enumerate(PARTS)}


def prompts_of(vocab: int, count: int) -> list[Prompt]:
    """Prompts of mixed lengths, ways of sampling and ids."""
    random = np.random.default_rng(count)
    return [
        Prompt(
            tuple(int(i) for i in random.integers(0, vocab, LENGTHS[n % len(LENGTHS)])),
            SAMPLING[n % len(SAMPLING)],
        )
        for n in range(count)
    ]


class Case:
    """One model and what is compared against: each prompt alone, whole, as a program."""

    def __init__(self, path: Path, prompts: list[Prompt]) -> None:
        self.path, self.prompts = path, prompts
        with runner_of(path) as runner:
            self.alone = [generate(runner, [p], COUNT)[0] for p in prompts]

    def check(self, traces: list[Trace], count: int | None = None) -> None:
        assert traces == self.alone[:count]


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3", "smollm2"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family: str = request.param
    if family == "smollm2":
        return Case(request.getfixturevalue("smollm2_path"), prompts_of(49_000, 8))
    shift = {"llama": 0, "qwen2": 4, "gemma3": 8}[family]
    folder = tmp_path_factory.mktemp(family)
    path = tiny_gguf(folder, family, types_of(shift), width=256, layers=3)
    return Case(path, prompts_of(512, 33))


@pytest.fixture
def runner(case: Case) -> Iterator[Runner]:
    with runner_of(case.path) as runner:
        yield runner


@pytest.mark.parametrize("batch", [2, 8, 33])
def test_alone_as_in_a_batch(case: Case, runner: Runner, batch: int) -> None:
    prompts = [case.prompts[i % len(case.prompts)] for i in range(batch)]
    alone = [case.alone[i % len(case.alone)] for i in range(batch)]
    assert generate(runner, prompts, COUNT) == alone


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_in_chunks_as_whole(case: Case, runner: Runner, chunk: int) -> None:
    longest = max(range(len(case.prompts)), key=lambda i: len(case.prompts[i].ids))
    (alone,) = generate(runner, [case.prompts[longest]], COUNT, chunk=chunk)
    assert alone == case.alone[longest]
    few = case.prompts[:8]
    case.check(generate(runner, few, COUNT, chunk=chunk), len(few))


@pytest.mark.parametrize("right", range(COUNT))
def test_guessed_positions_as_said_one_by_one(case: Case, runner: Runner, right: int) -> None:
    """A row that goes on over guesses: up to the first wrong one every id and all logits are those
    that come when each id is said before the next is computed; penalties count guesses too.
    """
    for prompt, alone in zip(case.prompts[:12], case.alone, strict=False):
        sequence = Sequence.of(list(prompt.ids), len(prompt.ids) + COUNT, prompt.sampling)
        sequence.blocks = runner.kv.allocate(runner.kv.blocks_for(len(sequence.tokens)))
        last = sequence.total - 1
        if last:
            runner.step([Row(sequence, 0, last, range(0))])
        wrong = [(i + 1) % 512 for i in alone.ids[right:-1]]
        sequence.guesses = COUNT - 1
        sequence.tokens[last + 1 : last + COUNT] = [*alone.ids[:right], *wrong]
        (answers,) = runner.step([Row(sequence, last, COUNT, range(last, last + COUNT))])
        logits = list(runner.logits(COUNT))
        stands = slice(0, right + 1)
        ids = [answer.id for answer in answers]
        assert Trace(ids[stands], logits[stands]) == Trace(alone.ids[stands], alone.logits[stands])
        runner.kv.release(sequence.blocks)


def test_steps_of_few_rows_as_of_many(case: Case) -> None:
    """The room of a step cuts prompts anywhere, in the middle of blocks and windows."""
    few = case.prompts[:6]
    with runner_of(case.path, max_rows=13) as runner:
        case.check(generate(runner, few, COUNT), len(few))


def test_log_probabilities_of_a_prompt_in_any_steps(case: Case, runner: Runner) -> None:
    """What `echo` reports. 100 positions are more than the logits that a step holds at once."""
    ids = np.random.default_rng(1).integers(0, 512, 101).astype(np.int32)
    whole = window_mean(runner, ids, top=3)
    with runner_of(case.path, max_rows=19) as narrow:
        assert window_mean(narrow, ids, top=3) == whole


def test_two_threads_as_one(case: Case) -> None:
    few = case.prompts[:8]
    with runner_of(case.path, threads=2) as runner:
        case.check(generate(runner, few, COUNT), len(few))


def test_the_graph_as_the_program(case: Case, runner: Runner) -> None:
    few = case.prompts[:3]
    case.check(generate(runner, few, COUNT, watched=True), len(few))


def test_fused_as_unfused(case: Case) -> None:
    few = case.prompts[:3]
    with runner_of(case.path, fused=False) as runner:
        case.check(generate(runner, few, COUNT), len(few))


def test_a_rebar_file_as_the_gguf_file(case: Case, tmp_path: Path) -> None:
    target = tmp_path / "model.rebar"
    write_rebar(open_model(case.path), target, vocabulary=b"", provenance={})
    few = case.prompts[:3]
    with runner_of(target) as runner:
        case.check(generate(runner, few, COUNT), len(few))


@pytest.mark.parametrize("isa", _native.isas())
def test_every_instruction_set_as_the_best(case: Case, isa: str) -> None:
    few = case.prompts[:3]
    with runner_of(case.path, isa=isa) as runner:
        case.check(generate(runner, few, COUNT), len(few))


def test_again_after_others_as_at_first(case: Case, runner: Runner) -> None:
    """Blocks come back used; nothing of their last owner may be seen."""
    for _ in range(2):
        case.check(generate(runner, case.prompts[:4], COUNT), 4)


def test_a_difference_would_be_seen(case: Case, runner: Runner) -> None:
    """The comparison itself: one other id in a prompt, one other seed, one flipped bit."""
    prompt = case.prompts[1]
    other = Prompt((*prompt.ids[:-1], (prompt.ids[-1] + 1) % 512), prompt.sampling)
    assert generate(runner, [other], COUNT) != case.alone[1:2]
    (same,) = generate(runner, [prompt], COUNT)
    assert same == case.alone[1]
    same.logits[0].view(np.uint32)[0] ^= 1
    assert same != case.alone[1]
