"""The scheduler alone: blocks, order, budgets. A state machine plays every interleaving hypothesis
can think of.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rebar.errors import ContextLengthError
from rebar.graph.sequence import Sampled, SamplingParams
from rebar.service.generation import Generation
from rebar.service.messages import RequestPacket
from rebar.service.scheduler import Plan, Scheduler
from tests.service.fakes import BLOCK, END, FakePool


class NoText:
    """Text of no interest: the scheduler counts ids."""

    stopped = False

    def push(self, token: int, /) -> str:
        return ""

    def finish(self) -> str:
        return ""


def generation(
    ticket: int, prompt: int, max_tokens: int, *, score_prompt: bool = False
) -> Generation:
    packet = RequestPacket(
        ticket=ticket,
        request_id="r",
        trace_id="t",
        prompt=[65] * prompt,
        sampling=SamplingParams(logprobs=0 if score_prompt else None),
        max_tokens=max_tokens,
        end_ids=(END,),
        score_prompt=score_prompt,
    )
    return Generation(packet, NoText())


def run(scheduler: Scheduler, plan: Plan, token: int = 97) -> list[Generation]:
    """Commits a plan as the engine does; returns who ended."""
    ended = []
    for work, row in zip(plan.work, plan.rows, strict=True):
        delta = work.take(row, [Sampled(token, -1.0) for _ in row.wants])
        if delta.last:
            scheduler.remove(work)
            ended.append(work)
    return ended


def test_every_running_choice_advances_in_every_step() -> None:
    """A long prompt takes what the others leave, and they leave all but one position each."""
    scheduler = Scheduler(FakePool(64), max_rows=8, max_running=8)
    long, short = generation(1, 40, 4), generation(2, 3, 4)
    scheduler.add(long)
    scheduler.add(short)
    rows = []
    for _ in range(3):
        plan = scheduler.schedule()
        rows.append([(row.first, row.count) for row in plan.rows])
        run(scheduler, plan)
    assert rows == [[(0, 7), (0, 1)], [(7, 7), (1, 1)], [(14, 7), (2, 1)]]


def test_logits_are_wanted_only_where_they_are_read() -> None:
    scheduler = Scheduler(FakePool(64), max_rows=8, max_running=8)
    plain, scored, only_scored = (
        generation(1, 10, 1),
        generation(2, 10, 1, score_prompt=True),
        generation(3, 10, 0, score_prompt=True),
    )
    wants = {}
    for work in (plain, scored, only_scored):
        scheduler.add(work)
        seen: list[int] = []
        while work in list(scheduler):
            plan = scheduler.schedule()
            seen += [position for row in plan.rows for position in row.wants]
            run(scheduler, plan)
        wants[work.packet.ticket] = seen
    assert wants == {1: [9], 2: list(range(10)), 3: list(range(9))}


def test_first_come_first_served_for_memory() -> None:
    """A small request behind a large one waits: overtaking would starve the large one."""
    scheduler = Scheduler(FakePool(4), max_rows=32, max_running=8)
    first, large, small = generation(1, 16, 1), generation(2, 50, 15), generation(3, 1, 1)
    for work in (first, large, small):
        scheduler.add(work)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [1]
    scheduler.remove(first)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [2]
    scheduler.remove(large)
    assert [w.packet.ticket for w in scheduler.schedule().work] == [3]


def test_choices_that_may_need_everything_run_together() -> None:
    """Chats without max_tokens: reserving the whole context for each let two of eight run."""
    scheduler = Scheduler(FakePool(16), max_rows=32, max_running=8)
    chats = [generation(i, 10, 118) for i in range(8)]  # each may come to need eight blocks
    for chat in chats:
        scheduler.add(chat)
    together = 0
    while list(scheduler):
        plan = scheduler.schedule()
        scheduler.check_integrity()
        together = max(together, len(plan.rows))
        run(scheduler, plan, END if scheduler.running[0].sampled >= 4 else 97)
    assert together == 8


def test_who_pauses_is_not_overtaken_for_ever() -> None:
    """Small requests that keep coming must not keep the memory from a large one that has begun."""
    scheduler = Scheduler(FakePool(8), max_rows=32, max_running=8)
    large = generation(0, 20, 100)
    scheduler.add(large)
    for ticket in range(1, 400):
        scheduler.add(generation(ticket, 20, 12))
        run(scheduler, scheduler.schedule())
        if large not in list(scheduler):
            break
    assert large.sampled == 100


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"), [(64, 1, True), (64, 2, False), (65, 1, False)]
)
def test_what_can_never_fit_is_refused(prompt: int, max_tokens: int, fits: bool) -> None:
    """A-e2: such a request blocked the queue for ever. The last id sampled needs no KV position."""
    scheduler = Scheduler(FakePool(4), max_rows=128, max_running=8)
    if fits:
        scheduler.add(generation(1, prompt, max_tokens))
        assert len(scheduler.schedule().rows) == 1
    else:
        with pytest.raises(ContextLengthError, match="cache holds 64"):
            scheduler.add(generation(1, prompt, max_tokens))


def can_all_finish(scheduler: Scheduler, favoured: Generation | None = None) -> bool:
    """The oracle of `_safe`: tries every order. `favoured` is thought to hold one block more."""
    claims = []
    for g in scheduler.running:
        held = len(g.sequence.blocks) + (g is favoured)
        claims.append((scheduler.blocks_for(g.positions) - held, held))
    free = scheduler.pool.free_blocks - (favoured is not None)

    def finishes(order: tuple[tuple[int, int], ...]) -> bool:
        left = free
        for missing, held in order:
            if missing > left:
                return False
            left += held
        return True

    return free >= 0 and any(finishes(order) for order in itertools.permutations(claims))


def check_pauses(scheduler: Scheduler, plan: Plan) -> None:
    """Nobody pauses without need, and what was granted lets all finish."""
    scheduler.check_integrity()
    assert can_all_finish(scheduler)
    for paused in set(scheduler.running) - set(plan.work):
        assert not can_all_finish(scheduler, paused), "it paused without need"


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(20, 110)), min_size=3, max_size=6),
    blocks=st.integers(9, 14),
)
def test_memory_is_shared_to_the_brim_and_never_locked(
    requests: list[tuple[int, int]], blocks: int
) -> None:
    """Requests that together need more than there is, each run to its end."""
    scheduler = Scheduler(FakePool(blocks), max_rows=64, max_running=4)
    for ticket, (prompt, max_tokens) in enumerate(requests):
        scheduler.add(generation(ticket, prompt, max_tokens))
    while list(scheduler):
        plan = scheduler.schedule()
        check_pauses(scheduler, plan)
        assert plan.rows
        run(scheduler, plan)


class Accounting(RuleBasedStateMachine):
    """Requests come, run, end and are cancelled at any time; no block is ever lost, shared or freed
    twice.
    """

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(FakePool(8), max_rows=8, max_running=4)
        self.tickets = 0

    @rule(target=live, prompt=st.integers(1, 60), max_tokens=st.integers(0, 40))
    def add(self, prompt: int, max_tokens: int) -> Generation:
        self.tickets += 1
        work = generation(self.tickets, prompt, max_tokens)
        try:
            self.scheduler.add(work)
        except ContextLengthError:
            assert work.positions > 8 * BLOCK
        return work

    @rule(token=st.sampled_from([97, END]))
    def step(self, token: int) -> None:
        plan = self.scheduler.schedule()
        assert sum(row.count for row in plan.rows) <= 8
        assert bool(plan.rows) == bool(list(self.scheduler)), "work is waiting and nothing runs"
        check_pauses(self.scheduler, plan)
        run(self.scheduler, plan, token)

    @rule(work=live)
    def cancel(self, work: Generation) -> None:
        self.scheduler.remove(work)
        assert work not in list(self.scheduler)

    @invariant()
    def integrity(self) -> None:
        self.scheduler.check_integrity()
        assert can_all_finish(self.scheduler)

    def teardown(self) -> None:
        for _ in range(2000):
            plan = self.scheduler.schedule()
            if not plan.rows:
                break
            run(self.scheduler, plan)
        assert not list(self.scheduler), "a request never ended"
        assert self.scheduler.pool.free_blocks == 8


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
