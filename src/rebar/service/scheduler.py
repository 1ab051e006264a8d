"""Which slices of which choices make up the next step. Pure: no I/O, no clock.

There is no prefill and no decode phase: a sequence is `computed` chasing `total`, and a row covers
its next positions. Admission is first come, first served.

KV blocks are handed out as sequences grow, and only while everybody admitted can still finish
(Dijkstra's banker's algorithm, EWD 623, for one kind of resource): a choice that might need its
whole context does not keep the others out, and no choice ever has to give blocks back. A choice
that cannot be given a block pauses; while one pauses, nobody is admitted, so it is not overtaken
for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rebar.errors import ContextLengthError
from rebar.graph.sequence import Row
from rebar.service.generation import Generation
from rebar.service.interfaces import BlockPool


@dataclass(slots=True)
class Plan:
    """One step: rows[i] is the slice of work[i]."""

    work: list[Generation] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


class Scheduler:
    """Continuous batching over rows.

    pool: KV blocks. max_rows: positions computed in one step. max_running: choices admitted at a
    time (at most max_rows, so that each can advance in every step).
    """

    def __init__(self, pool: BlockPool, *, max_rows: int, max_running: int) -> None:
        self.pool = pool
        self.max_rows = max_rows
        self.max_running = min(max_running, max_rows)
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self._paused = False

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions`."""
        return -(-positions // self.pool.block_size)

    def add(self, generation: Generation) -> None:
        """Queues a choice. Raises ContextLengthError when it could never finish."""
        if self.blocks_for(generation.positions) > self.pool.total_blocks:
            capacity = self.pool.total_blocks * self.pool.block_size
            raise ContextLengthError(
                f"This needs {generation.positions} KV positions and the cache holds {capacity}. "
                "Shorten the prompt or lower max_tokens.",
                code="context_length_exceeded",
            )
        self.waiting.append(generation)

    def schedule(self) -> Plan:
        """Admits, then gives every running choice one position and the rest in order of arrival."""
        if not self._paused:
            self._admit()
        plan, self._paused = Plan(), False
        spare = self.max_rows - len(self.running)
        for generation in self.running:
            count = self._covered(generation, 1 + min(generation.remaining - 1, spare))
            if count:
                spare -= count - 1
                plan.work.append(generation)
                plan.rows.append(generation.row(count))
            else:
                self._paused = True
        return plan

    def remove(self, generation: Generation) -> None:
        """Takes a choice out and gives its blocks back. Harmless when it is not here."""
        if generation in self.running:
            self.running.remove(generation)
            blocks, generation.sequence.blocks = generation.sequence.blocks, []
            self.pool.release(blocks)
        elif generation in self.waiting:
            self.waiting.remove(generation)

    def __iter__(self) -> Iterator[Generation]:
        """Every choice held, running ones first."""
        yield from self.running
        yield from self.waiting

    def _admit(self) -> None:
        """Lets in who comes next, while there is memory for the whole prompt."""
        while self.waiting and len(self.running) < self.max_running:
            generation = self.waiting[0]
            self.running.append(generation)
            if not self._grant(generation, self.blocks_for(generation.sequence.total)):
                self.running.pop()
                return
            self.waiting.popleft()

    def _covered(self, generation: Generation, count: int) -> int:
        """How many of the next `count` positions have blocks, after taking what may be taken."""
        sequence = generation.sequence
        missing = self.blocks_for(sequence.computed + count) - len(sequence.blocks)
        if missing <= 0 or self._grant(generation, missing):
            return count
        return min(count, len(sequence.blocks) * self.pool.block_size - sequence.computed)

    def _grant(self, generation: Generation, blocks: int) -> bool:
        """Hands out `blocks` if all that run can finish afterwards."""
        if blocks > self.pool.free_blocks or not self._safe(generation, blocks):
            return False
        generation.sequence.blocks += self.pool.allocate(blocks)
        return True

    def _safe(self, generation: Generation | None = None, blocks: int = 0) -> bool:
        """Whether all can finish one after another, had `generation` that many blocks more.

        The one that misses least goes first and leaves what it held to the others.
        """
        free = self.pool.free_blocks - blocks
        claims = []
        for other in self.running:
            held = len(other.sequence.blocks) + (blocks if other is generation else 0)
            claims.append((self.blocks_for(other.positions) - held, held))
        for missing, held in sorted(claims):
            if missing > free:
                return False
            free += held
        return True

    def check_integrity(self) -> None:
        """Asserts that every block has one owner, and that all that run can finish."""
        held = [block for g in self.running for block in g.sequence.blocks]
        assert len(held) == len(set(held)), "a block has two owners"
        assert len(held) + self.pool.free_blocks == self.pool.total_blocks, "a block is lost"
        assert all(not g.sequence.blocks for g in self.waiting), "a waiting choice holds blocks"
        assert len(self.running) <= self.max_running, "more run than may"
        assert self._safe(), "not all that run can finish"
        for g in self.running:
            count = len(g.sequence.blocks)
            assert count <= self.blocks_for(g.positions), "more blocks than it will ever need"
            assert g.sequence.computed <= count * self.pool.block_size, "computed without memory"
            assert 0 <= g.sequence.computed < g.sequence.total, "it runs with nothing to compute"
