"""The engine over a scripted model: neighbours, chunks, failures, the messages of the process
border.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from rebar.dataflow.text import TextStream
from rebar.errors import EngineError, ShapeError
from rebar.graph.sequence import Row, Sampled, SamplingParams
from rebar.service.engine import InferenceEngine
from rebar.service.grammar import Grammars
from rebar.service.interfaces import StreamingText
from rebar.service.messages import DEADLINE, Delta, Orders, RequestPacket, StepReport
from rebar.service.worker import EngineWorker
from tests.service.fakes import END, ScriptedRunner, hashed, scripted_tokenizer
from tests.service.live import drive, wait_for


def engine_over(
    runner: ScriptedRunner, open_text: Callable[[tuple[str, ...]], StreamingText] | None = None
) -> InferenceEngine:
    tokenizer = scripted_tokenizer()
    return InferenceEngine(
        runner, open_text or partial(TextStream, tokenizer), vocab_size=tokenizer.vocab_size
    )


def packet(ticket: int, prompt: str = "hi", **fields: object) -> RequestPacket:
    sampling = SamplingParams(temperature=0.8, seed=ticket, logprobs=2)
    base = RequestPacket(
        ticket, f"r{ticket}", "t", list(prompt.encode()), sampling, 8, 0, (), (END,)
    )
    return msgspec.structs.replace(base, **fields)


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_neighbours_chunks_and_order_change_nothing() -> None:
    """A-b5, A-e5 at the scheduler: who else is there, and how a prompt is cut, must not reach an
    answer.
    """
    packets = [packet(i, "p" * (1 + 7 * i % 40), max_tokens=3 + i % 9) for i in range(1, 34)]
    alone = {
        p.ticket: text(
            drive(engine_over(ScriptedRunner(choose=hashed, max_rows=512)), [p])[p.ticket]
        )
        for p in packets
    }
    for max_rows in (33, 40, 512):
        random.Random(max_rows).shuffle(packets)
        runner = ScriptedRunner(choose=hashed, max_rows=max_rows, kv_blocks=20)
        together = drive(engine_over(runner), packets)
        assert {ticket: text(deltas) for ticket, deltas in together.items()} == alone


def test_every_message_says_only_what_is_new() -> None:
    deltas = drive(engine_over(ScriptedRunner(b"abc")), [packet(1)])[1]
    assert [delta.text for delta in deltas] == ["a", "b", "c", ""]
    assert [delta.ids for delta in deltas] == [[97], [98], [99], [END]]
    assert [len(delta.scores) for delta in deltas] == [1, 1, 1, 0]
    assert [delta.finish for delta in deltas] == [None, None, None, "stop"]


def test_a_failing_row_fails_alone() -> None:
    """A-b7, A-c3: one bad request raised in the shared step and ended everybody's."""
    runner = ScriptedRunner(choose=hashed)

    def refuse_two(rows: list[Row]) -> None:
        if any(row.sequence.sampling.seed == 2 and row.first >= 3 for row in rows):
            raise ShapeError("bad row")

    expected = drive(engine_over(ScriptedRunner(choose=hashed)), [packet(1), packet(3)])
    runner.before = refuse_two
    heard = drive(engine_over(runner), [packet(i) for i in (1, 2, 3)])
    assert heard[2][-1].failure is not None
    assert heard[2][-1].failure.message == "bad row"
    assert [heard[1], heard[3]] == [expected[1], expected[3]]


def test_a_step_that_fails_for_all_fails_its_requests_and_the_engine_goes_on() -> None:
    runner = ScriptedRunner(b"ok")

    def boom(rows: list[Row]) -> None:
        raise ZeroDivisionError("secret detail")

    runner.before = boom
    engine = engine_over(runner)
    heard = drive(engine, [packet(1), packet(2)])
    for ticket in (1, 2):
        failure = heard[ticket][-1].failure
        assert failure is not None
        assert "Send it again" in failure.message
        assert "secret" not in failure.message
    runner.before = None
    assert text(drive(engine, [packet(3)])[3]) == "ok"


@pytest.mark.parametrize(
    "answer",
    [
        Sampled(-1, error=EngineError("its logits hold a NaN")),
        Sampled(97, logprob=math.nan),
        Sampled(-5, logprob=-1.0),
        Sampled(10**6, logprob=-1.0),
    ],
)
def test_an_answer_that_is_none_fails_one_request(answer: Sampled) -> None:
    class OneBad(ScriptedRunner):
        def step(self, rows: list[Row], /) -> list[list[Sampled]]:
            return [
                [answer] if row.sequence.sampling.seed == 1 and row.wants else good
                for row, good in zip(rows, super().step(rows), strict=True)
            ]

    heard = drive(engine_over(OneBad(b"ok")), [packet(1), packet(2)])
    assert heard[1][-1].failure is not None
    assert text(heard[2]) == "ok"


def test_a_failure_of_the_text_fails_one_request() -> None:
    class Broken(TextStream):
        def push(self, id: int) -> str:
            raise ValueError("text")

    def open_text(stop: tuple[str, ...]) -> StreamingText:
        tokenizer = scripted_tokenizer()
        return Broken(tokenizer, stop) if stop else TextStream(tokenizer)

    heard = drive(
        engine_over(ScriptedRunner(b"ok"), open_text), [packet(1, stop=("x",)), packet(2)]
    )
    assert heard[1][-1].failure is not None
    assert text(heard[2]) == "ok"


def test_an_error_that_is_shared_keeps_no_request_alive() -> None:
    """The sampler caches the error of wrong parameters; raising it tied every request to it."""
    shared = EngineError("wrong parameters")

    class Wrong(ScriptedRunner):
        def step(self, rows: list[Row], /) -> list[list[Sampled]]:
            return [[Sampled(-1, error=shared)] for _ in super().step(rows)]

    heard = drive(engine_over(Wrong(b"ok")), [packet(1)])
    assert heard[1][-1].failure is not None
    assert shared.__traceback__ is None


def test_minus_infinity_is_reported_as_a_number() -> None:
    """A-b4: a masked token's -inf made the JSON invalid."""
    runner = ScriptedRunner(b"a")
    runner.logprob = -math.inf
    scores = [s for delta in drive(engine_over(runner), [packet(1)])[1] for s in delta.scores]
    assert [score.logprob for score in scores] == [-9999.0]
    assert all(math.isfinite(logprob) for score in scores for _, logprob in score.top)


def test_scores_of_a_swallowed_stop_string_are_not_reported() -> None:
    deltas = drive(engine_over(ScriptedRunner(b"abXYcd")), [packet(1, stop=("XY",))])[1]
    assert text(deltas) == "ab"
    assert [score.id for delta in deltas for score in delta.scores] == [97, 98]
    assert sum(len(delta.ids) for delta in deltas) == 4


def test_prompt_scores_come_with_every_chunking() -> None:
    for max_rows in (3, 32):
        runner = ScriptedRunner(b"", max_rows=max_rows)
        asked = packet(1, "abcdefgh", score_prompt=True, max_tokens=0)
        deltas = drive(engine_over(runner), [asked])[1]
        assert [s.id for d in deltas for s in d.prompt_scores] == list(b"bcdefgh")
        assert deltas[-1].finish == "length"
        assert not any(delta.ids for delta in deltas)


def test_cancel_in_every_state_frees_everything() -> None:
    """Waiting, half-computed, decoding, ended and unknown."""
    for steps in range(12):
        engine = engine_over(ScriptedRunner(b"abc", kv_blocks=2, max_rows=2))
        engine.obey(Orders(submit=[packet(1, "prompt"), packet(2, "waits" * 5)]))
        for _ in range(steps):
            engine.step()
        engine.obey(Orders(cancel=[1, 2, 99]))
        engine.scheduler.check_integrity()
        assert engine.idle
        assert engine.stats().free_blocks == 2
        assert engine.step() == []


class NeverReady(Grammars):
    """Compiles for ever."""

    def ready(self, grammar: str, wait: float = 0.0) -> bool:
        return False


def test_a_deadline_ends_the_wait_for_a_grammar() -> None:
    """It ended only what the scheduler knew: a choice whose grammar took seconds to compile came to
    the scheduler after its deadline, and was told no earlier.
    """
    tokenizer, now = scripted_tokenizer(), [10.0]
    engine = InferenceEngine(
        ScriptedRunner(b"ok"),
        partial(TextStream, tokenizer),
        vocab_size=tokenizer.vocab_size,
        grammars=NeverReady(tokenizer),
        clock=lambda: now[0],
    )
    hurried = packet(1, grammar="g", arrived=9.0, deadline=12.0)
    patient = packet(2, grammar="g", arrived=9.0)
    assert engine.obey(Orders(submit=[hurried, patient])) == []
    assert engine.step() == []
    now[0] = 12.0
    (delta,) = engine.step()
    assert delta.ticket == 1
    assert delta.failure is not None
    assert delta.failure.code == DEADLINE
    assert delta.record is not None
    assert delta.record.waits == {"order": 3.0}
    assert (engine.stats().expired, engine.stats().waiting) == (1, 1)
    engine.obey(Orders(cancel=[2]))
    assert engine.idle


def test_worker_survives_what_the_engine_did_not_expect(caplog: pytest.LogCaptureFixture) -> None:
    """A fault in planning fails the open requests; the thread and the next request live."""
    reports: list[StepReport] = []
    engine = engine_over(ScriptedRunner(b"ok"))
    worker = EngineWorker(engine, reports.append)
    plan = engine.scheduler.schedule
    calls = iter([True])

    def broken_once(now: float) -> object:
        if next(calls, False):
            raise AttributeError("bug")
        return plan(now)

    engine.scheduler.schedule = broken_once  # type: ignore[method-assign, assignment]
    worker.start()
    worker.give(Orders(submit=[packet(1)]))
    wait_for(lambda: any(d.failure for r in reports for d in r.deltas))
    worker.give(Orders(submit=[packet(2)]))
    wait_for(lambda: any(d.finish for r in reports for d in r.deltas))
    assert worker.stop()
    assert "could not be planned" in caplog.text
