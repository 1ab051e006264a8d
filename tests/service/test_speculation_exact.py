"""Speculation changes when ids come, never which: whatever is guessed, everything a client can see
is what it is without guesses, alone. Compared with == on ids, texts, scores and finish reasons.

Guesses come from an adversary that knows the answer: right ones of any number, then a wrong one, so
that every way of standing and falling occurs for sampled requests too; and from the real look-up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from rebar.graph import ModelFile, RunnerOptions
from rebar.graph.sequence import MAX_GUESSES, SamplingParams
from rebar.graph.weights import open_model
from rebar.service.engine import InferenceEngine
from rebar.service.generation import Generation
from rebar.service.loading import load_engine
from rebar.service.messages import Delta, Orders, RequestPacket
from rebar.service.speculation import Speculation
from tests.service.test_sharing_exact import summary
from tests.tiny import tiny_gguf

VOCAB = 512
GRAMMARS = (
    "",
    LLMatcher.grammar_from_regex("([a-f ]{3,9}[0-9]{2}){9,20}"),
    LLMatcher.grammar_from_regex("[a-c]{4,12}"),
    LLMatcher.grammar_from_json_schema({"type": "array", "items": {"enum": ["ab", "cd", 7]}}),
)


def engine_of(file: ModelFile, guesses: int, *, kv_tokens: int = 2048) -> InferenceEngine:
    options = RunnerOptions(threads=1, max_rows=96, memory=256 << 20, kv_tokens=kv_tokens)
    return load_engine(
        file, options, max_running=8, sharing=bool(guesses), speculation=guesses
    ).engine


class Engines:
    """One that never guesses and computes everything, and one that does, in a small cache too."""

    def __init__(self, file: ModelFile) -> None:
        self.plain = engine_of(file, 0)
        self.eager = engine_of(file, MAX_GUESSES)
        self.small = engine_of(file, MAX_GUESSES, kv_tokens=144)

    def alone(self, packets: list[RequestPacket]) -> dict[int, list[Delta]]:
        heard = {}
        for packet in packets:
            heard.update(run(self.plain, [packet]))
        assert self.plain.stats().draft_tokens == 0
        return heard


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    folder = tmp_path_factory.mktemp(request.param)
    return Engines(open_model(tiny_gguf(folder, request.param, "Q8_0", context_length=512)))


class Adversary(Speculation):
    """Guesses so many right ids, then a wrong one or none, for as many choices as there is room."""

    def __init__(self, answers: dict[int, list[int]], chance: random.Random) -> None:
        super().__init__()
        self.answers, self.chance = answers, chance

    def offer(self, decoding: Sequence[Generation], max_rows: int) -> list[list[int]]:
        room, offers = MAX_GUESSES + 1 - len(decoding), []
        for generation in decoding:
            sure = self.chance.randint(0, max(0, min(MAX_GUESSES, room)))
            known = self.answers[generation.packet.ticket]
            ids = known[generation.sampled : generation.sampled + sure]
            ids += [self.chance.randrange(VOCAB) for _ in range(self.chance.randint(0, 2))]
            offers.append(ids[: max(0, min(MAX_GUESSES, room))])
            room -= len(offers[-1])
        return offers


def run(
    engine: InferenceEngine,
    packets: list[RequestPacket],
    trouble: Callable[[InferenceEngine], None] = lambda _: None,
) -> dict[int, list[Delta]]:
    """To the end of all; `trouble` after every step."""
    heard: dict[int, list[Delta]] = {p.ticket: [] for p in packets}
    assert engine.obey(Orders(submit=packets)) == []
    while not engine.idle:
        for delta in engine.step():
            heard[delta.ticket].append(delta)
        trouble(engine)
        engine.scheduler.check_integrity()
    assert engine.stats().free_blocks == engine.stats().total_blocks
    return heard


def ids_of(deltas: list[Delta]) -> list[int]:
    return [i for d in deltas for i in d.ids]


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.3]),
    top_k=st.sampled_from([0, 0, 3, 40]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
    presence_penalty=st.sampled_from([0.0, -0.6]),
    logit_bias=st.sampled_from([(), ((70, 4.0), (71, 4.0)), ((50, -100.0),)]),
    seed=st.integers(0, 9),
    logprobs=st.sampled_from([None, 0, 3]),
)
ASKED = st.fixed_dictionaries(
    {
        "sampling": SAMPLINGS,
        "max_tokens": st.integers(1, 40),
        "grammar": st.sampled_from([GRAMMARS[0], *GRAMMARS]),
        "score_prompt": st.booleans(),
        "priority": st.integers(-1, 1),
        "tenant": st.sampled_from(["", "a"]),
    }
)
LENGTHS = st.integers(1, 60)
STOPS = st.sampled_from(["", "id", "text", "both"])


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[RequestPacket, str, int]]:
    """Packets with prompts of one beginning; how each is to stop, and after about how many ids."""
    asked = []
    for i in range(draw(st.integers(1, 5))):
        length = draw(LENGTHS)
        fields: dict[str, Any] = draw(ASKED)
        packet = RequestPacket(
            ticket=i + 1,
            request_id=f"r{i}",
            trace_id="t",
            prompt=[(5 * j) % 60 + 60 for j in range(length)],
            end_ids=(2,),
            **fields,
        )
        asked.append((packet, draw(STOPS), draw(st.integers(0, 12))))
    return asked


def stopped(engines: Engines, packet: RequestPacket, how: str, after: int) -> RequestPacket:
    """Ends it with an id or a text that it would say, so that ends lie inside guesses."""
    deltas = engines.alone([packet])[packet.ticket]
    ids, text = ids_of(deltas), "".join(d.text for d in deltas)
    changes: dict[str, Any] = {}
    if how in ("id", "both") and not packet.grammar:
        changes["end_ids"] = (2, ids[min(after, len(ids) - 1)])
    if how in ("text", "both") and len(text) > 2:
        changes["stop"] = (text[min(after, len(text) - 2) :][:3],)
    return msgspec.structs.replace(packet, **changes)


def pestered(chance: random.Random) -> Callable[[InferenceEngine], None]:
    """Pre-empts one now and then, and gives up what was kept."""

    def trouble(engine: InferenceEngine) -> None:
        scheduler = engine.scheduler
        if scheduler.running and chance.random() < 0.1:
            scheduler.preempt(chance.choice(scheduler.running))
        if chance.random() < 0.1:
            scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.free_blocks))

    return trouble


@settings(max_examples=25, deadline=None)
@given(asked=requests(), seed=st.integers(0, 2**32))
def test_any_guesses_change_nothing(
    engines: Engines, asked: list[tuple[RequestPacket, str, int]], seed: int
) -> None:
    packets = [stopped(engines, *one) for one in asked]
    alone = engines.alone(packets)
    expected = {ticket: summary(deltas) for ticket, deltas in alone.items()}
    answers = {ticket: ids_of(deltas) for ticket, deltas in alone.items()}
    chance = random.Random(seed)
    for engine in (engines.eager, engines.small):
        engine.scheduler.speculation = Adversary(answers, chance)
        heard = run(engine, packets, pestered(chance))
        assert {ticket: summary(deltas) for ticket, deltas in heard.items()} == expected


def packet(ticket: int, sampling: SamplingParams, **fields: Any) -> RequestPacket:
    base = RequestPacket(
        ticket=ticket,
        request_id="r",
        trace_id="t",
        prompt=[60, 61, 62, 63] * 5,
        sampling=sampling,
        max_tokens=48,
    )
    return msgspec.structs.replace(base, **fields)


VARIED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.6, seed=3, logit_bias=((70, 9.0), (71, 9.0))),
    SamplingParams(temperature=0.0, repetition_penalty=1.2),
    SamplingParams(temperature=0.9, seed=4, top_k=2, frequency_penalty=0.1),
]


def test_the_real_look_up_changes_nothing_and_is_right_at_times(engines: Engines) -> None:
    """Random models fall into loops when greedy: there it must have been right."""
    packets = [packet(i + 1, sampling) for i, sampling in enumerate(VARIED)]
    expected = {t: summary(deltas) for t, deltas in engines.alone(packets).items()}
    engine = engines.eager
    engine.scheduler.speculation = Speculation()
    for one in packets:
        heard = run(engine, [one])
        assert summary(heard[one.ticket]) == expected[one.ticket]
    stats = engine.stats()
    assert stats.draft_tokens >= stats.accepted_tokens > 40
    heard = run(engine, packets)
    assert {t: summary(deltas) for t, deltas in heard.items()} == expected


def test_guesses_make_steps_fewer_and_reports_longer(engines: Engines) -> None:
    one = packet(1, SamplingParams(temperature=0.0))
    answer = engines.alone([one])[1]
    engine = engines.eager
    engine.scheduler.speculation = Perfect({1: ids_of(answer)})
    heard = run(engine, [one])[1]
    assert summary(heard) == summary(answer)
    assert [len(d.ids) for d in heard] == [1] + [8] * 5 + [7]
    record = heard[-1].record
    assert record is not None
    assert (record.drafted, record.accepted, record.steps) == (41, 41, 7)
    assert engine.stats().accepted_tokens == 41


class Perfect(Speculation):
    """Knows the answer."""

    def __init__(self, answers: dict[int, list[int]]) -> None:
        super().__init__()
        self.answers = answers

    def offer(self, decoding: Sequence[Generation], max_rows: int) -> list[list[int]]:
        return [
            self.answers[g.packet.ticket][g.sampled : g.sampled + MAX_GUESSES] for g in decoding
        ]


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_a_choice_taken_over_among_guesses(engines: Engines, cut: int) -> None:
    """An engine that ends between steps of many ids; the next one guesses on."""
    packets = [packet(i + 1, sampling, score_prompt=True) for i, sampling in enumerate(VARIED)]
    alone = engines.alone(packets)
    answers = {ticket: ids_of(deltas) for ticket, deltas in alone.items()}
    engine = engines.eager
    for one in packets:
        engine.scheduler.speculation = Adversary(answers, random.Random(cut))
        heard: list[Delta] = []
        engine.obey(Orders(submit=[one]))
        while not engine.idle and len(ids_of(heard)) < cut:
            heard += engine.step()
        engine.obey(Orders(cancel=[one.ticket]))
        if not heard[-1].last:
            again = msgspec.structs.replace(
                one,
                said=tuple(ids_of(heard)),
                scored=sum(len(d.scores) for d in heard),
                prompt_scored=sum(len(d.prompt_scores) for d in heard),
            )
            heard += run(engine, [again])[one.ticket]
        assert summary(heard) == summary(alone[one.ticket])


def test_what_a_wrong_guess_computed_is_never_shared(engines: Engines) -> None:
    """The last position of a block is computed over a wrong guess; then its choice is cancelled.
    The ids up to there are known, and a block known by them would give its keys and values to
    whoever begins with the right ones.
    """
    first = packet(1, SamplingParams(temperature=0.0), prompt=[60] * 14, max_tokens=12)
    answer = ids_of(engines.alone([first])[1])
    right = packet(2, SamplingParams(temperature=0.0), prompt=[60] * 14 + answer[:2] + [9] * 9)
    expected = summary(engines.alone([right])[2])
    engine = engines.eager
    engine.scheduler.speculation = Perfect({1: [(i + 1) % VOCAB for i in answer]})
    engine.obey(Orders(submit=[first]))
    assert [ids_of(engine.step()) for _ in range(2)] == [answer[:1], answer[1:2]]
    engine.obey(Orders(cancel=[1]))
    engine.scheduler.speculation = Speculation(0)
    assert summary(run(engine, [right])[2]) == expected


def test_real_weights(smollm2_path: Path) -> None:
    """Copying, sampled and greedy, in a batch with others: the same answers in fewer steps."""
    file = open_model(smollm2_path)
    text = [2683, 281, 253, 1123, 282, 260, 905, 284, 253, 1838, 282, 3462, 30, 198] * 4
    packets = [
        packet(i + 1, sampling, prompt=[*text, 700 + i, *text[:9]], max_tokens=24)
        for i, sampling in enumerate(VARIED)
    ]
    plain, eager = engine_of(file, 0), engine_of(file, MAX_GUESSES)
    expected: dict[int, object] = {}
    for one in packets:
        expected |= {t: summary(d) for t, d in run(plain, [one]).items()}
    heard: dict[int, object] = {}
    for one in packets:
        heard |= {t: summary(d) for t, d in run(eager, [one]).items()}
    assert heard == expected
    assert eager.stats().accepted_tokens > 40
    assert eager.stats().steps < plain.stats().steps - 30
    assert {t: summary(d) for t, d in run(eager, packets).items()} == expected
    plain.close()
    eager.close()
