"""The engine: plan a step, run it, commit it. No JSON, no clients, no threads of its own."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from rebar.errors import EngineError, InputError, RebarError
from rebar.graph.sequence import MAX_GUESSES, Row, Sampled
from rebar.service.adapters import EngineAdapters
from rebar.service.embedding import PooledGeneration
from rebar.service.generation import Generation
from rebar.service.grammar import Grammars
from rebar.service.interfaces import StepRunner, TextOpener
from rebar.service.journal import Journal
from rebar.service.memory_budget import held_back
from rebar.service.messages import (
    DEADLINE,
    NORMAL,
    AdapterNews,
    Delta,
    EngineStats,
    Failure,
    Orders,
    RequestPacket,
)
from rebar.service.scheduler import Plan, Scheduler, work_of
from rebar.service.speculation import Speculation
from rebar.service.step_cost import StepWork

log = logging.getLogger("rebar.service.engine")

DEFAULT_MAX_RUNNING = 64
WATCH_SECONDS = 1.0
"""So often the machine is asked for its memory: a tenth of a millisecond."""
COMPILE_WAIT_SECONDS = 0.005
"""An engine with nothing but grammars to compile looks so often whether one is ready."""
Answers = list[Sampled] | Exception


class InferenceEngine:
    """Runs every open choice, one step at a time. Not safe for threads: one owner calls it.

    A failure belongs to whom it belongs: when a step raises, its rows are run again alone (a step
    changes no sequence, so that gives the same bits) and only those that raise again fail.

    model, sharing: as of Scheduler. speculation: ids guessed at a time, 0 for none. clock: seconds;
    the monotonic clock where packets bring times. adapters: None for no room for any.
    """

    def __init__(
        self,
        runner: StepRunner,
        open_text: TextOpener,
        *,
        vocab_size: int,
        max_running: int = DEFAULT_MAX_RUNNING,
        grammars: Grammars | None = None,
        model: bytes = b"",
        sharing: bool = True,
        speculation: int = MAX_GUESSES,
        clock: Callable[[], float] = time.monotonic,
        adapters: EngineAdapters | None = None,
    ) -> None:
        self.runner = runner
        self.adapters = adapters or EngineAdapters(None)
        self.open_text = open_text
        self.vocab_size = vocab_size
        self.clock = clock
        self.scheduler = Scheduler(
            runner.kv,
            max_rows=runner.max_rows,
            max_running=max_running,
            model=model,
            sharing=sharing,
            speculation=Speculation(speculation),
        )
        self._checked = False
        self._next_look = -math.inf
        self._priorities = [0, 0, 0]  # open choices: high, normal, low
        self._grammars = grammars
        self._open: dict[int, Generation] = {}
        self._compiling: dict[int, RequestPacket] = {}  # wait for grammar or adapter
        self._stats = EngineStats()

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._open and not self._compiling and not self.adapters.busy

    def obey(self, orders: Orders) -> list[Delta]:
        """Takes in new choices and lets go of cancelled ones; says which were refused."""
        for order in orders.adapters:
            self.adapters.obey(order)
        refused = [self._submit(packet) for packet in orders.submit]
        for ticket in orders.cancel:
            self._drop(ticket)
        return [delta for delta in refused if delta is not None]

    def step(self) -> list[Delta]:
        """One step of everything that runs. Idle, it checks its books, once."""
        if self.idle:
            self._check_books()
            return []
        self._checked = False
        self.adapters.advance(self.clock)
        deltas = self._take_compiled()
        started = self.clock()
        self._watch_memory(started)
        plan = self.scheduler.schedule(started)
        deltas += [self._expire(g.packet, g.journal, started) for g in plan.expired]
        if plan.rows:
            answers = self._run(plan.rows)
            now = self.clock()
            self._learn(plan.rows, now - started)
            done = [self._commit(plan, i, answer, now) for i, answer in enumerate(answers)]
            self._count(plan, done, now - started)
            deltas += done
        return [delta for delta in deltas if delta.ids or delta.prompt_scores or delta.last]

    def _watch_memory(self, now: float) -> None:
        """Once a second: holds back fresh blocks that the machine has no memory for."""
        if now < self._next_look:
            return
        self._next_look = now + WATCH_SECONDS
        pool = self.scheduler.pool
        available = self.runner.available_bytes if pool.fresh_blocks else 0
        pool.held_back = held_back(pool.held_back, pool.fresh_blocks, available, pool.block_bytes)

    def _check_books(self) -> None:
        if self._checked:
            return
        self._checked = True
        try:
            self.scheduler.check_integrity()
            self.adapters.check(Counter())
        except AssertionError as error:
            raise EngineError(f"the books of the KV cache are wrong: {error}") from error

    def _expire(self, packet: RequestPacket, journal: Journal, now: float) -> Delta:
        """Says that a choice cannot keep its deadline; nobody works on it any more."""
        self._forget(packet.ticket)
        self._stats = msgspec.structs.replace(self._stats, expired=self._stats.expired + 1)
        return expired(packet, journal, now)

    def fail_all(self, failure: Failure) -> list[Delta]:
        """Ends every open choice with `failure`; the engine stands empty and ready."""
        tickets = [*self._open, *self._compiling]
        for ticket in tickets:
            self._drop(ticket)
        return [Delta(ticket=ticket, failure=failure) for ticket in tickets]

    def stats(self) -> EngineStats:
        """Counters, with the gauges of this moment."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        return msgspec.structs.replace(
            self._stats,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._compiling),
            free_blocks=pool.free_blocks,
            total_blocks=pool.total_blocks,
            held_back_blocks=min(pool.held_back, pool.fresh_blocks),
            free_bytes=self.runner.free_bytes,
            nodes=self.runner.node_count,
            row_limit=self._row_limit(),
            open_high=self._priorities[0],
            open_normal=self._priorities[1],
            open_low=self._priorities[2],
            oldest_wait=self._next_waits(),
            cached_tokens=scheduler.cached_tokens,
            preemptions=scheduler.preemptions,
            draft_tokens=scheduler.speculation.guessed,
            accepted_tokens=scheduler.speculation.right,
            evictions=pool.evictions,
            adopted_blocks=pool.adopted,
            adapters=self.adapters.loaded,
        )

    def _row_limit(self) -> int:
        beside = work_of(g for g in self.scheduler.running if g.remaining == 1)
        return beside.positions + self.scheduler.budget.prompt_rows(beside)

    def _next_waits(self) -> float:
        waiting = self.scheduler.waiting
        return max(0.0, self.clock() - waiting[0].journal.arrived) if waiting else 0.0

    def news(self) -> list[AdapterNews]:
        """What became of adapters since it was last asked."""
        return self.adapters.news()

    def close(self) -> None:
        """Frees the model."""
        self.runner.close()
        if self._grammars is not None:
            self._grammars.close()

    def _submit(self, packet: RequestPacket) -> Delta | None:
        if self._ready(packet):
            return self._begin(packet)
        self._compiling[packet.ticket] = packet
        return None

    def _ready(self, packet: RequestPacket, wait: float = 0.0) -> bool:
        """Whether adapter and grammar are there; waits so many seconds for the latter."""
        if self.adapters.coming(packet.adapter):
            return False
        return (
            not packet.grammar
            or self._grammars is None
            or self._grammars.ready(packet.grammar, wait)
        )

    def _take_compiled(self) -> list[Delta]:
        """Begins the choices whose grammars and adapters are ready; says which were refused, and
        which cannot wait any longer.
        """
        if not self._compiling:
            return []
        deltas = self._expire_compiling(self.clock())
        wait = 0.0 if self._open or self.adapters.busy else COMPILE_WAIT_SECONDS
        ready = []
        for packet in self._compiling.values():
            if self._ready(packet, wait):
                ready.append(packet)
            wait = 0.0
        for packet in ready:
            del self._compiling[packet.ticket]
        return deltas + [delta for delta in map(self._begin, ready) if delta is not None]

    def _expire_compiling(self, now: float) -> list[Delta]:
        compiling = self._compiling.values()
        late = [p for p in compiling if p.deadline is not None and now >= p.deadline]
        for packet in late:
            del self._compiling[packet.ticket]
        arrived = [now if p.arrived is None else p.arrived for p in late]
        return [self._expire(p, Journal(at), now) for p, at in zip(late, arrived, strict=True)]

    def _begin(self, packet: RequestPacket) -> Delta | None:
        try:
            grammar = None
            if packet.grammar:
                if self._grammars is None:
                    raise EngineError("This engine knows no grammars. Send a request without one.")
                grammar = self._grammars.open(packet.grammar, packet.said)
            text, now = self.open_text(packet.stop), self.clock()
            generation = (
                PooledGeneration(packet, text, now)
                if packet.pooling
                else Generation(packet, text, now, grammar)
            )
            generation.sequence.adapter = self.adapters.slot(packet.adapter)
            self.scheduler.add(generation)
        except Exception as error:
            return Delta(ticket=packet.ticket, failure=failure_of(error))
        self.adapters.enter(packet.adapter)
        self._open[packet.ticket] = generation
        self._priorities[class_of(packet.priority)] += 1
        return None

    def _drop(self, ticket: int) -> None:
        self._compiling.pop(ticket, None)
        generation = self._forget(ticket)
        if generation is not None:
            self.scheduler.remove(generation)

    def _forget(self, ticket: int) -> Generation | None:
        generation = self._open.pop(ticket, None)
        if generation is not None:
            self._priorities[class_of(generation.packet.priority)] -= 1
            self.adapters.leave(generation.packet.adapter)
        return generation

    def _run(self, rows: list[Row]) -> list[Answers]:
        try:
            return list(self.runner.step(rows))
        except Exception as error:
            if len(rows) == 1:
                return [error]
            log.warning("a step of %d rows failed (%r); running its rows alone", len(rows), error)
        return [self._run([row])[0] for row in rows]

    def _commit(self, plan: Plan, i: int, answer: Answers, now: float) -> Delta:
        generation, journal = plan.work[i], plan.work[i].journal
        ticket = generation.packet.ticket
        guesses = generation.sequence.guesses
        outcome = self._outcome(generation, plan.rows[i], answer)
        if isinstance(outcome, Exception):
            outcome = Delta(ticket=ticket, failure=failure_of(outcome))
        else:
            self.scheduler.advanced(generation, plan.rows[i])
            if guesses:
                self.scheduler.speculation.booked(guesses, len(outcome.ids) - 1)
                journal.guess(guesses, len(outcome.ids) - 1)
        begins = journal.first_token is None and bool(outcome.ids)
        journal.step(now, bool(outcome.ids))
        if begins or outcome.last:
            outcome.record = journal.record(generation.packet.priority, now)
        if outcome.last:
            self._drop(ticket)
        return outcome

    def _outcome(self, generation: Generation, row: Row, answer: Answers) -> Delta | Exception:
        """What the row brought, or why it brought nothing.

        The error of an answer is not raised: it may be shared (the sampler keeps those of wrong
        parameters), and raising would tie this request's frames to it for as long as it lives.
        """
        if isinstance(answer, Exception):
            return answer
        for i, sampled in enumerate(answer):
            wrong = self._fault(row, sampled)
            if wrong is None:
                continue
            # What only a guess led to is asked again, should it be needed, where it stands alone.
            if i < len(answer) - generation.sequence.guesses:
                return wrong
            answer = answer[:i]
            break
        try:
            return generation.take(row, answer)
        except Exception as error:
            return error

    def _fault(self, row: Row, sampled: Sampled) -> Exception | None:
        if sampled.error is not None:
            return sampled.error
        if row.hidden or 0 <= sampled.id < self.vocab_size:
            return None
        return EngineError(
            f"The model chose id {sampled.id}, which is no token of its vocabulary. "
            "Send the request again."
        )

    def _learn(self, rows: list[Row], seconds: float) -> None:
        """What a step costs, from one that was made. Guesses are still in their sequences."""
        if all(row.count - row.sequence.guesses == 1 for row in rows):
            self.scheduler.speculation.steps.measured(sum(row.count for row in rows), seconds)
            return
        work = StepWork()
        for row in rows:
            work = work.and_row(row.first, row.count)
        self.scheduler.budget.measured(work, seconds)

    def _count(self, plan: Plan, deltas: list[Delta], seconds: float) -> None:
        was = self._stats
        rows = sum(row.count for row in plan.rows)
        prompt = sum(max(0, min(r.first + r.count, r.sequence.prompt) - r.first) for r in plan.rows)
        self._stats = msgspec.structs.replace(
            was,
            steps=was.steps + 1,
            step_seconds=was.step_seconds + seconds,
            rows=rows,
            prompt_tokens=was.prompt_tokens + prompt,
            sampled_tokens=was.sampled_tokens + sum(len(delta.ids) for delta in deltas),
            failures=was.failures + sum(delta.failure is not None for delta in deltas),
        )


def expired(packet: RequestPacket, journal: Journal, now: float) -> Delta:
    """What is told of a choice whose deadline could not be met."""
    text = "The deadline could not be met. Allow more time, or try when fewer requests wait."
    record = journal.record(packet.priority, now)
    return Delta(ticket=packet.ticket, failure=Failure(text, code=DEADLINE), record=record)


def class_of(priority: int) -> int:
    """0 for high, 1 for normal, 2 for low."""
    return 1 + (priority > NORMAL) - (priority < NORMAL)


def failure_of(error: Exception) -> Failure:
    """What the client may know of `error`: our own messages, else a plain sentence (the log has the
    rest).
    """
    if isinstance(error, InputError):
        return Failure(str(error), caller=True, code=error.code)
    log.error("a request failed in the engine", exc_info=error)
    if isinstance(error, RebarError):
        return Failure(str(error))
    return Failure("The engine failed while it computed this request. Send it again.")
