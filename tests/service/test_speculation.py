"""What is guessed, how many guesses are made, and what they are thought to cost: no model, no
clock. That guesses change no answer is test_speculation_exact.py's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar._native import Lookup
from rebar.cli.options import MOST_GUESSES
from rebar.errors import ShapeError
from rebar.graph import Row, SamplingParams
from rebar.graph import Sequence as Ids
from rebar.graph.sequence import MAX_GUESSES
from rebar.service.generation import Generation
from rebar.service.messages import LOW, NORMAL, Orders, RequestPacket
from rebar.service.scheduler import Scheduler
from rebar.service.speculation import MAX_ROWS, SmallSteps, Speculation, allot
from tests.drive import runner_of
from tests.service.fakes import BLOCK, END, FakePool, ScriptedRunner
from tests.service.live import drive
from tests.service.scheduling import generation, run
from tests.service.test_engine import engine_over
from tests.tiny import tiny_gguf

LONGEST = 32


def guessed(ids: Sequence[int], prompt: int, most: int = 7) -> tuple[list[int], list[float]]:
    return Lookup(max(len(ids), 1)).guess(np.array(ids, np.int32), len(ids), prompt, most)


def match(ids: Sequence[int], place: int) -> int:
    """How many ids before `place` are those before the end."""
    same = zip(reversed(ids[:place]), reversed(ids), strict=False)
    return min(sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], same)), LONGEST)


def continued(ids: Sequence[int], place: int, count: int) -> list[int]:
    out = list(ids)
    for i in range(count):
        out.append(out[place + i])
    return out[len(ids) :]


@given(st.lists(st.integers(0, 3), max_size=14))
def test_a_guess_is_what_followed_the_longest_match(ids: list[int]) -> None:
    """Against every place: 14 ids have fewer than the 16 that are looked at."""
    found, chances = guessed(ids, len(ids))
    longest = max((match(ids, place) for place in range(len(ids))), default=0)
    if longest < 2:
        assert found == chances == []
        return
    places = [place for place in range(len(ids)) if match(ids, place) == longest]
    assert found in [continued(ids, place, 7) for place in places]
    assert found == continued(ids, places[-1], 7), "of equals the latest"
    assert all(1 > a >= b > 0 for a, b in itertools.pairwise(chances))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=120), st.integers(0, 120), st.integers(1, 40)
)
def test_guesses_are_a_function_of_the_ids(ids: list[int], prompt: int, stride: int) -> None:
    """However often somebody asked on the way: an engine that takes over guesses the same."""
    prompt = min(prompt, len(ids))
    tokens = np.array(ids, np.int32)
    often = Lookup(len(ids) + 7)
    for total in range(0, len(ids), stride):
        often.guess(tokens, total, prompt, 3)
    once = Lookup(len(ids))
    expected = once.guess(tokens, len(ids), prompt, 7)
    assert often.guess(tokens, len(ids), prompt, 7) == expected
    assert often.guess(tokens, len(ids), prompt, 7) == expected


def test_a_copy_goes_on_after_one_other_id() -> None:
    """Repeat this text with one change: the place is not lost where the change is."""
    text = list(range(100, 140))
    changed = [*text[:20], 7]
    found, chances = guessed([*text, 1, *changed], len(text) + 1)
    assert found == text[21:28]
    assert 0 < chances[0] < 0.5, "but it is less sure"
    followed, sure = guessed([*text, 1, *text[:20]], len(text) + 1)
    assert followed == text[20:27]
    assert sure[0] > 0.9


def test_chances_are_learned_without_a_guess_being_made() -> None:
    """A text whose pairs never go on as before, and one whose pairs always do."""
    random.seed(3)
    pairs = [(i, 50 + i) for i in range(20)]
    never = [x for n in range(12) for pair in pairs for x in (*pair, 1000 + n)]
    always = [x for _ in range(12) for pair in pairs for x in (*pair, 1000 + random.randrange(9))]
    always = [x if x < 1000 else 999 for x in always]
    assert guessed([*never, 0, 50], 40)[1][0] < 0.03
    assert guessed([*always, 0, 50], 40)[1][0] > 0.5


def test_what_does_not_fit_is_refused() -> None:
    lookup, tokens = Lookup(4), np.zeros(8, np.int32)
    for total, most in ((5, 1), (-1, 1), (4, 65), (4, -1), (9, 1)):
        with pytest.raises(ValueError, match=r"at most|inside"):
            lookup.guess(tokens, total, 0, most)
    with pytest.raises(ValueError, match="positive"):
        Lookup(0)
    assert lookup.guess(tokens, 4, 4, 0) == ([], [])


FALLING = st.lists(st.floats(0.01, 1), max_size=7).map(lambda x: sorted(x, reverse=True))


@given(st.lists(FALLING, min_size=1, max_size=8), st.integers(0, 7), st.floats(0.0, 1.5))
def test_no_other_number_of_guesses_promises_more(
    chances: list[list[float]], room: int, slope: float
) -> None:
    """Against every distribution of the room, with the rule that 2 % are not worth it."""

    def longer(n: int) -> float:
        return 1 + slope * n

    def rate(counts: Sequence[int]) -> float:
        ids = len(chances) + sum(sum(c[:n]) for c, n in zip(chances, counts, strict=True))
        return ids / longer(sum(counts))

    counts = allot(chances, room, longer)
    assert sum(counts) <= room
    assert all(n <= len(c) for n, c in zip(counts, chances, strict=True))
    if len(chances) > 3:
        return  # too many to try
    every = itertools.product(*(range(len(c) + 1) for c in chances))
    best = max(rate(other) for other in every if sum(other) <= room)
    assert rate(counts) >= best / 1.0200001
    assert rate(counts) >= len(chances)


@pytest.mark.parametrize("slope", [0.02, 0.15, 0.9])
def test_the_cost_of_a_row_is_learned(slope: float) -> None:
    """A machine where rows are nearly free, one where each costs, one where each costs a step."""
    steps, chance = SmallSteps(), random.Random(1)
    assert 1.05 < steps.ratio(1, 1) < 1.3
    for _ in range(200):
        rows = chance.choice([1, 1, 1, 8])
        noise = chance.uniform(0.97, 1.03) * (10 if chance.random() < 0.02 else 1)
        steps.measured(rows, 0.004 * (1 + slope * (rows - 1)) * noise)
    assert steps.ratio(1, 7) == pytest.approx(1 + 7 * slope, rel=0.15)


def test_without_news_the_first_opinion_of_a_row_stays() -> None:
    steps = SmallSteps()
    for _ in range(500):
        steps.measured(1, 0.003)
    assert steps.ratio(1, 1) == pytest.approx(SmallSteps().ratio(1, 1), rel=0.01)
    steps.measured(MAX_ROWS + 1, 9.0)  # no small step
    steps.measured(1, 0.0)  # a clock that stands
    assert steps.ratio(1, 1) == pytest.approx(SmallSteps().ratio(1, 1), rel=0.01)


def test_one_held_up_step_does_not_end_speculation() -> None:
    steps = SmallSteps()
    for rows in [1, 8] * 20:
        steps.measured(rows, 0.003 + 0.0002 * rows)
    steps.measured(8, 5.0)
    assert steps.ratio(1, 7) < 1.8


def looping(ticket: int, length: int = 40, max_tokens: int = 60) -> Generation:
    """A choice whose prompt repeats itself."""
    work = generation(ticket, [10, 11, 12, 13, 14] * (length // 5), max_tokens)
    work.sequence.computed = work.sequence.total - 1
    return work


def planned(scheduler: Scheduler) -> list[tuple[int, int]]:
    """(rows, guesses among them) of each choice in the next step."""
    plan = scheduler.schedule()
    return [(row.count, row.sequence.guesses) for row in plan.rows]


def test_guesses_stay_in_the_room_of_few_rows() -> None:
    """Nine choices get none; where a prompt is in the step nobody does."""
    scheduler = Scheduler(FakePool(99), max_rows=64, max_running=16, speculation=Speculation())
    for i in range(7):
        scheduler.add(looping(i))
    rows = planned(scheduler)
    assert sum(count for count, _ in rows) <= MAX_ROWS
    assert sum(guesses for _, guesses in rows) == 1
    scheduler.remove(scheduler.running[-1])
    scheduler.add(generation(7, 30, 4))
    assert [guesses for _, guesses in planned(scheduler)] == [0] * 7
    narrow = Scheduler(FakePool(99), max_rows=3, max_running=2, speculation=Speculation())
    narrow.add(looping(1))
    assert planned(narrow) == [(3, 2)]
    off = Scheduler(FakePool(99), max_rows=64, max_running=2)
    off.add(looping(1))
    assert planned(off) == [(1, 0)]


def test_guesses_take_no_memory_that_somebody_needs() -> None:
    """At the end of a block: another one for guesses only where it is free and nobody waits."""
    for blocks, expected in ((5, (8, 7)), (4, (3, 2))):
        scheduler = Scheduler(
            FakePool(blocks), max_rows=64, max_running=2, speculation=Speculation()
        )
        scheduler.add(looping(1, length=45, max_tokens=16))
        scheduler.schedule()
        (work,) = scheduler.running
        work.sequence.append(10)
        work.sequence.computed = 45
        assert planned(scheduler) == [expected]
        scheduler.check_integrity()


def test_nothing_is_guessed_past_the_last_token_asked_for() -> None:
    for left, guesses in ((1, 0), (2, 1), (5, 4), (30, 7)):
        scheduler = Scheduler(FakePool(99), max_rows=64, max_running=2, speculation=Speculation())
        scheduler.add(looping(1, max_tokens=left))
        assert planned(scheduler) == [(1 + guesses, guesses)]


def test_an_end_is_not_guessed_past() -> None:
    work = looping(1)
    work.guess([10, END, 12])
    assert work.sequence.guesses == 1
    work.guess([END])
    assert work.sequence.guesses == 0


def test_the_flag_has_the_number_of_the_graph() -> None:
    assert MOST_GUESSES == MAX_GUESSES


def copying(_: Ids, position: int) -> int:
    return 97 + (position + 1) % 5


def test_counts_reach_stats_and_records() -> None:
    """Of a model that repeats itself; a priority changes nothing about it."""
    engine = engine_over(ScriptedRunner(choose=copying, kv_blocks=40, max_context=400))
    packets = [
        RequestPacket(i, f"r{i}", "t", list(b"x" * 3), SamplingParams(), 90, priority=priority)
        for i, priority in ((1, NORMAL), (2, LOW))
    ]
    heard = drive(engine, packets)
    stats = engine.stats()
    assert stats.draft_tokens >= stats.accepted_tokens > 60
    assert stats.sampled_tokens == 180
    assert stats.steps < 180 - 60
    assert [sum(len(d.ids) for d in deltas) for deltas in heard.values()] == [90, 90]
    engine.obey(Orders(submit=packets[:1]))
    records = []
    while not engine.idle:
        records += [d.record for d in engine.step() if d.record]
    assert records[-1].drafted >= records[-1].accepted > 60
    assert records[-1].steps == 90 - records[-1].accepted


def test_an_answer_that_only_a_wrong_guess_led_to_fails_nobody() -> None:
    """Its logits may hold a NaN for all we know; it is not asked for again."""
    engine = engine_over(ScriptedRunner(choose=lambda s, p: 999 if s.tokens[p] == 1 else 98))
    packet = RequestPacket(1, "r", "t", [97] * 4, SamplingParams(), 12)
    engine.scheduler.speculation = Always([98, 98, 1, 1])
    heard = drive(engine, [packet])[1]
    assert [i for d in heard for i in d.ids] == [98] * 12
    engine.scheduler.speculation = Always([98, 98, 98])
    engine = engine_over(ScriptedRunner(choose=lambda s, p: 999 if p > 9 else 98))
    engine.scheduler.speculation = Always([98, 98, 98])
    heard = drive(engine, [packet])[1]
    assert [i for d in heard for i in d.ids] == [98] * 7, "what came before the fault is said"
    assert heard[-1].failure is not None


class Always(Speculation):
    """The same guesses for whoever decodes."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids = ids

    def offer(self, decoding: Sequence[Generation], max_rows: int) -> list[list[int]]:
        return [self.ids for _ in decoding]


def test_rows_past_the_guesses_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tiny_gguf(tmp_path_factory.mktemp("m"), "llama", "Q8_0")
    with runner_of(path, kv_tokens=BLOCK) as runner:
        sequence = Ids.of([1, 2, 3], 9, SamplingParams(temperature=0.0))
        sequence.blocks = runner.kv.allocate(1)
        sequence.guesses = 2
        assert len(runner.step([Row(sequence, 0, 5, range(2, 5))])[0]) == 3
        with pytest.raises(ShapeError, match=r"rows 0\.\.6 of a sequence of 3"):
            runner.step([Row(sequence, 0, 6, range(2, 6))])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 40), st.integers(1, 3))
def test_a_scripted_model_of_any_period(period: int, prompt: int, count: int) -> None:
    """Many choices that repeat themselves, together: all ids as without guesses."""

    def choose(sequence: Ids, position: int) -> int:
        return 97 + (position + sequence.sampling.seed) % period

    packets = [
        RequestPacket(
            i, f"r{i}", "t", list(range(1, prompt + 2)), SamplingParams(seed=i), 50 - 7 * i
        )
        for i in range(1, count + 1)
    ]
    said = []
    for guesses in (0, 7):
        runner = ScriptedRunner(choose=choose, kv_blocks=12 * count, max_context=200)
        engine = engine_over(runner)
        engine.scheduler.speculation = Speculation(guesses)
        heard = drive(engine, packets)
        said.append({t: [i for d in deltas for i in d.ids] for t, deltas in heard.items()})
    assert said[0] == said[1]


def test_run_of_the_harness_takes_guesses() -> None:
    """tests/service/scheduling.run commits what a plan holds, as the engine does."""
    scheduler = Scheduler(FakePool(9), max_rows=64, max_running=2, speculation=Always([97, 97]))
    scheduler.add(generation(1, 5, 8))
    run(scheduler, scheduler.schedule())
    plan = scheduler.schedule()
    assert plan.rows[0].count == 3
    run(scheduler, plan)
    assert scheduler.running[0].sampled == 4
