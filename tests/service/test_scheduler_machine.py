"""Every interleaving of requests that hypothesis can think of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from rebar.errors import ContextLengthError
from rebar.graph.sequence import Sequence as Ids
from rebar.service.generation import Generation
from rebar.service.messages import HIGH, LOW, NORMAL
from rebar.service.scheduler import Scheduler
from rebar.service.speculation import Speculation
from tests.service.fakes import BLOCK, ScriptedRunner, hashed
from tests.service.scheduling import generation


class Guesses(Speculation):
    """Some right ids, then a wrong one: what `hashed` would say is known."""

    def offer(self, decoding: Sequence[Generation], max_rows: int) -> list[list[int]]:
        room = max_rows - len(decoding)
        return [self.guesses(g, room // len(decoding)) for g in decoding]

    def guesses(self, generation: Generation, most: int) -> list[int]:
        sequence = generation.sequence
        said = sequence.total - sequence.prompt
        ahead = Ids(sequence.tokens.copy(), sequence.prompt, sequence.sampling, sequence.total)
        ahead.tokens = np.concatenate([ahead.tokens, np.zeros_like(ahead.tokens, shape=most + 1)])
        for _ in range(most):
            ahead.append(hashed(ahead, ahead.total - 1))
        right = (said + generation.packet.ticket) % (most + 1)
        return [*ahead.tokens[sequence.total : sequence.total + right].tolist(), 5][:most]


class Accounting(RuleBasedStateMachine):
    """Requests come, run, end, are pre-empted and cancelled at any time, their beginnings shared
    and given up; no block is ever lost, freed twice or overwritten, and each choice ends with the
    ids that it would have alone.
    """

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.runner = ScriptedRunner(choose=hashed, kv_blocks=8, max_rows=8)
        self.scheduler = Scheduler(self.runner.kv, max_rows=8, max_running=4, speculation=Guesses())
        self.ticket = 0
        self.now = 0.0

    @rule(
        target=live,
        prompt=st.integers(1, 60),
        kind=st.integers(0, 2),
        max_tokens=st.integers(0, 40),
        priority=st.sampled_from([HIGH, NORMAL, LOW]),
        tenant=st.sampled_from(["", "a"]),
        score_prompt=st.booleans(),
        patience=st.sampled_from([None, None, 5.0]),
    )
    def add(
        self,
        prompt: int,
        kind: int,
        max_tokens: int,
        priority: int,
        tenant: str,
        score_prompt: bool,
        patience: float | None,
    ) -> Generation:
        self.ticket += 1
        work = generation(
            self.ticket,
            [65 + (i // 20) * (kind + 1) for i in range(prompt)],
            max_tokens,
            score_prompt=score_prompt,
            now=self.now,
            priority=priority,
            tenant=tenant,
            deadline=None if patience is None else self.now + patience,
        )
        try:
            self.scheduler.add(work)
        except ContextLengthError:
            assert work.positions > 8 * BLOCK
        return work

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    def step(self, seconds: float) -> None:
        self.now += seconds
        self.advance()

    def advance(self) -> bool:
        plan = self.scheduler.schedule(self.now)
        assert sum(row.count for row in plan.rows) <= 8
        assert bool(plan.rows) == bool(list(self.scheduler)), "work is waiting and nothing runs"
        if not plan.rows:
            return False
        assert min(self.scheduler, key=lambda g: g.rank) in plan.work
        answers = self.runner.step(plan.rows)
        for work, row, answer in zip(plan.work, plan.rows, answers, strict=True):
            delta = work.take(row, answer)
            self.scheduler.advanced(work, row)
            if delta.last:
                self.check(work)
                self.scheduler.remove(work)
        return True

    def check(self, work: Generation) -> None:
        sequence = work.sequence
        for position in range(sequence.prompt - 1, sequence.total - 1):
            alone = Ids(sequence.tokens, sequence.prompt, sequence.sampling)
            assert sequence.tokens[position + 1] == hashed(alone, position)

    @precondition(lambda self: self.scheduler.running)
    @rule(which=st.integers(0, 3))
    def preempt(self, which: int) -> None:
        running = self.scheduler.running
        self.scheduler.preempt(running[which % len(running)], self.now)

    @rule()
    def evict(self) -> None:
        pool = self.scheduler.pool
        pool.release(pool.allocate(pool.free_blocks))

    @rule(work=live)
    def cancel(self, work: Generation) -> None:
        self.scheduler.remove(work)
        assert work not in list(self.scheduler)

    @invariant()
    def integrity(self) -> None:
        self.scheduler.check_integrity()

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.advance():
                break
        assert not list(self.scheduler), "a request never ended"
        assert self.scheduler.pool.free_blocks == 8


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
