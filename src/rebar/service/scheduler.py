"""Which slices of which choices make up the next step. Pure: no I/O, no clock of its own.

There is no prefill and no decode phase: a sequence is `computed` chasing `total`, and a row covers
the next positions of it. Admission is first come, first served, and only when the whole choice can
finish: the KV blocks of prompt and answer are taken at admission and given back at the end, so a
running choice never waits for memory.
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

    pool: KV blocks. max_rows: positions computed in one step. max_running: choices in one step (at
    most max_rows).
    """

    def __init__(self, pool: BlockPool, *, max_rows: int, max_running: int) -> None:
        self.pool = pool
        self.max_rows = max_rows
        self.max_running = min(max_running, max_rows)
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions`."""
        return -(-positions // self.pool.block_size)

    def add(self, generation: Generation) -> None:
        """Queues a choice. Raises ContextLengthError when it could never be admitted."""
        needed = self.blocks_for(generation.positions)
        if needed > self.pool.total_blocks:
            capacity = self.pool.total_blocks * self.pool.block_size
            raise ContextLengthError(
                f"This needs {generation.positions} KV positions and the cache holds {capacity}. "
                "Shorten the prompt or lower max_tokens.",
                code="context_length_exceeded",
            )
        self.waiting.append(generation)

    def schedule(self) -> Plan:
        """Admits who can finish, then gives every running choice one position and the rest in order
        of arrival.
        """
        self._admit()
        plan = Plan()
        spare = self.max_rows - len(self.running)
        for generation in self.running:
            extra = min(generation.remaining - 1, spare)
            spare -= extra
            plan.work.append(generation)
            plan.rows.append(generation.row(1 + extra))
        return plan

    def remove(self, generation: Generation) -> None:
        """Takes a choice out, finished or not, and gives its blocks back. Harmless when it is not
        here.
        """
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
        while self.waiting and len(self.running) < self.max_running:
            needed = self.blocks_for(self.waiting[0].positions)
            if needed > self.pool.free_blocks:
                return
            generation = self.waiting.popleft()
            generation.sequence.blocks = self.pool.allocate(needed)
            self.running.append(generation)

    def check_integrity(self) -> None:
        """Asserts that every block has exactly one owner and every sequence the blocks it needs."""
        held = [block for g in self.running for block in g.sequence.blocks]
        assert len(held) == len(set(held)), "a block has two owners"
        assert len(held) + self.pool.free_blocks == self.pool.total_blocks, "a block is lost"
        assert all(not g.sequence.blocks for g in self.waiting), "a waiting choice holds blocks"
        assert len(self.running) <= self.max_running, "more run than may"
        for g in self.running:
            assert len(g.sequence.blocks) == self.blocks_for(g.positions), "wrong number of blocks"
            assert 0 <= g.sequence.computed < g.sequence.total, (
                "a running choice has nothing to compute"
            )
