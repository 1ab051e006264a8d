"""Bits of a real model with shared prompts, pre-emption and any row budget: those of a choice that
is alone and computes everything. Compared with == on ids, texts, scores and prompt scores.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rebar.graph import ModelFile, RunnerOptions
from rebar.graph.memory_plan import KVName
from rebar.graph.sequence import SamplingParams
from rebar.graph.weights import open_model
from rebar.service.engine import InferenceEngine
from rebar.service.loading import load_engine
from rebar.service.messages import Delta, Orders, RequestPacket
from tests.tiny import tiny_gguf

COMMON = [(5 * i) % 300 + 40 for i in range(70)]


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    folder = tmp_path_factory.mktemp(request.param)
    return open_model(tiny_gguf(folder, request.param, "Q8_0", context_length=512))


def engine_of(
    file: ModelFile, *, kv_tokens: int = 4096, kv: KVName = "f16", sharing: bool = True
) -> InferenceEngine:
    options = RunnerOptions(threads=1, max_rows=96, memory=256 << 20, kv_tokens=kv_tokens, kv=kv)
    return load_engine(file, options, max_running=8, sharing=sharing).engine


def packets() -> list[RequestPacket]:
    """Prompts with a beginning in common, of any length; every kind of sampling and scoring."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.7, "frequency_penalty": 0.6, "logprobs": 3},
        {"temperature": 1.2, "min_p": 0.02, "logit_bias": ((50, 3.0),)},
    ]
    lengths = (70, 48, 33, 64, 16, 5, 70, 70)
    return [
        RequestPacket(
            ticket=i + 1,
            request_id=f"r{i}",
            trace_id="t",
            prompt=COMMON[:length] + [300 + i] * (i % 3),
            sampling=SamplingParams(seed=i, **kinds[i % 4]),
            max_tokens=24,
            index=0,
            stop=("qu",) if i == 6 else (),
            score_prompt=i % 4 == 2,
            priority=i % 3 - 1,
        )
        for i, length in enumerate(lengths)
    ]


def summary(deltas: list[Delta]) -> object:
    """Everything of a choice that a client could see."""
    return (
        "".join(d.text for d in deltas),
        [i for d in deltas for i in d.ids],
        [s for d in deltas for s in d.scores],
        [s for d in deltas for s in d.prompt_scores],
        [(d.finish, d.failure) for d in deltas if d.last],
    )


def together(
    engine: InferenceEngine, asked: list[RequestPacket], chance: random.Random | None = None
) -> dict[int, object]:
    """All at once; `chance` pre-empts one now and then, and gives up what was kept."""
    heard: dict[int, list[Delta]] = {p.ticket: [] for p in asked}
    assert engine.obey(Orders(submit=asked)) == []
    scheduler = engine.scheduler
    while not engine.idle:
        for delta in engine.step():
            heard[delta.ticket].append(delta)
        if chance and scheduler.running and chance.random() < 0.3:
            scheduler.preempt(chance.choice(scheduler.running))
        if chance and chance.random() < 0.2:
            scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.free_blocks))
        scheduler.check_integrity()
    return {ticket: summary(deltas) for ticket, deltas in heard.items()}


@pytest.fixture(scope="module")
def alone(model: ModelFile) -> dict[int, object]:
    engine = engine_of(model, sharing=False)
    said = {}
    for packet in packets():
        said.update(together(engine, [packet]))
    assert engine.stats().cached_tokens == 0
    engine.close()
    return said


def test_shared_beginnings_change_nothing(model: ModelFile, alone: dict[int, object]) -> None:
    engine = engine_of(model)
    for _ in range(2):  # the second time everything is known
        assert together(engine, packets()) == alone
    assert engine.stats().cached_tokens > 300
    engine.close()


def test_pre_emption_at_any_moment_changes_nothing(
    model: ModelFile, alone: dict[int, object]
) -> None:
    engine = engine_of(model)
    for seed in range(4):
        assert together(engine, packets(), random.Random(seed)) == alone
    assert engine.stats().preemptions > 20
    engine.close()


def test_a_cache_too_small_for_all_changes_nothing(
    model: ModelFile, alone: dict[int, object]
) -> None:
    """One prompt and its answer fit, eight do not."""
    engine = engine_of(model, kv_tokens=112)
    assert together(engine, packets()) == alone
    engine.close()


def test_a_choice_taken_over_in_the_middle(model: ModelFile, alone: dict[int, object]) -> None:
    """What an engine before has said is a beginning as any other; pre-empted, it says nothing
    twice.
    """
    engine = engine_of(model)
    for packet in packets():
        heard: list[Delta] = []
        engine.obey(Orders(submit=[packet]))
        while not engine.idle and sum(len(d.ids) for d in heard) < 9:
            heard += engine.step()
        engine.obey(Orders(cancel=[packet.ticket]))
        if not heard[-1].last:
            again = msgspec.structs.replace(
                packet,
                said=tuple(i for d in heard for i in d.ids),
                scored=sum(len(d.scores) for d in heard),
                prompt_scored=sum(len(d.prompt_scores) for d in heard),
            )
            engine.obey(Orders(submit=[again]))
            heard += engine.step()
            if engine.scheduler.running:
                engine.scheduler.preempt(engine.scheduler.running[0])
            while not engine.idle:
                heard += engine.step()
        assert summary(heard) == alone[packet.ticket]
    engine.close()


def test_int8_keys_and_values(model: ModelFile) -> None:
    whole = engine_of(model, kv="int8", sharing=False)
    expected = together(whole, packets())
    whole.close()
    engine = engine_of(model, kv="int8")
    assert together(engine, packets()) == expected
    assert together(engine, packets(), random.Random(1)) == expected
    engine.close()


def test_a_shared_prompt_on_real_weights(smollm2_path: Path) -> None:
    file = open_model(smollm2_path)
    asked = [
        msgspec.structs.replace(p, prompt=[*p.prompt, 900 + p.ticket], max_tokens=8)
        for p in packets()
    ]
    whole = engine_of(file, sharing=False)
    expected: dict[int, object] = {}
    for packet in asked:
        expected.update(together(whole, [packet]))
    whole.close()
    engine = engine_of(file)
    assert together(engine, asked) == expected
    assert together(engine, asked, random.Random(3)) == expected
    assert engine.stats().cached_tokens > 300
    engine.close()
