"""The scheduler alone: blocks, order, budgets. A state machine plays every interleaving hypothesis
can think of.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rebar.dataflow.text import TextStream
from rebar.errors import ContextLengthError
from rebar.graph.sequence import Sampled, SamplingParams
from rebar.service.generation import Generation
from rebar.service.messages import RequestPacket
from rebar.service.scheduler import Plan, Scheduler
from tests.service.fakes import BLOCK, END, FakePool, scripted_tokenizer


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
    return Generation(packet, TextStream(scripted_tokenizer()))


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
        run(self.scheduler, plan, token)

    @rule(work=live)
    def cancel(self, work: Generation) -> None:
        self.scheduler.remove(work)
        assert work not in list(self.scheduler)

    @invariant()
    def integrity(self) -> None:
        self.scheduler.check_integrity()

    def teardown(self) -> None:
        for _ in range(2000):
            plan = self.scheduler.schedule()
            if not plan.rows:
                break
            run(self.scheduler, plan)
        assert not list(self.scheduler), "a request never ended"
        assert self.scheduler.pool.free_blocks == 8


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
