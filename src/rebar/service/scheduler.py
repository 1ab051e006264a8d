"""Which slices of which choices make up the next step. Pure: no I/O, no clock; it is told the time.

There is no prefill and no decode phase: a sequence is `computed` chasing `total`, and a row covers
its next positions. In every step each choice that is one position behind gets its row; what the row
budget leaves goes to those further behind, by rank, and a quarter of it to the shortest of them, so
that a question does not wait for a book. While a prompt of higher priority is computed, whoever
comes after it and is less urgent has no row at all: beside 64 low choices that decode, a step had
room for 16 positions of a high prompt, and with ten times the load the P99 of its first token was
25 seconds. They keep their memory and go on in the step after. So do all others while streams
are computed anew whose engine ended: their clients have waited longest, and each position given to
whoever is back already makes the longest gap longer.

Rank is arrival shifted by priority (generation.py) and never changes: what runs is what comes first
by rank, as far as places and memory go. Three rules keep it so, and nobody waits for ever:

- Memory for a position is taken from whoever comes last when none is free. That choice is
  pre-empted: its blocks go back, it is computed anew later, with the same bits. Whoever comes first
  can so always have all blocks, and each choice fits alone (`add` checks), so the first ends, then
  the next. This replaces the banker's rule, which paused choices instead: blocks that are shared
  have no single owner whose end frees them, and a request of high priority could not be given what
  a low one held.
- A new choice is let in when its ids so far have memory and every running choice one block besides
  (they need at most one each in 16 steps), or more where memory has lately run out under those that
  run (memory_budget.py): without that margin a full cache would let choices in
  only to pre-empt them. Nobody behind is let in before it.
- Where there is no place or memory for it, running choices of lower priority that also come later
  make room.

What others have computed is not computed again: whole blocks are known by digest (prefix.py), and
whoever arrives at the beginning of a known block takes it, also in the middle of its prompt. A
choice whose next block another one is about to compute waits for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rebar.errors import ContextLengthError
from rebar.graph.sequence import Row
from rebar.service.generation import Generation
from rebar.service.interfaces import BlockPool
from rebar.service.memory_budget import Margin
from rebar.service.messages import WaitReason
from rebar.service.prefix import PrefixChain, root_of
from rebar.service.row_budget import RowBudget
from rebar.service.speculation import Speculation
from rebar.service.step_cost import StepWork

QUICK_SHARE = 4
"""The shortest prompt gets one of so many parts of the room when a longer one comes first."""


def rank_of(generation: Generation) -> tuple[float, int]:
    """The lower comes first."""
    return generation.rank


def work_of(decoding: Iterable[Generation]) -> StepWork:
    """What one position of each costs."""
    depths = [generation.sequence.computed + 1 for generation in decoding]
    return StepWork(len(depths), sum(depths))


def yields(generation: Generation, behind: Iterable[Generation]) -> bool:
    """Whether it pauses for one of those that have positions to compute: a prompt of higher
    priority that also comes first by rank, or a stream that was interrupted and is no less urgent.
    """
    return any(
        (generation.packet.priority > other.packet.priority and generation.rank > other.rank)
        or (
            other.interrupted
            and not generation.interrupted
            and generation.packet.priority >= other.packet.priority
        )
        for other in behind
    )


@dataclass(slots=True)
class Plan:
    """One step: rows[i] is the slice of work[i]. expired: choices whose deadline cannot be met;
    they are no longer held.
    """

    work: list[Generation] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    expired: list[Generation] = field(default_factory=list)


class Scheduler:
    """Continuous batching over rows.

    pool: KV blocks. max_rows: positions computed in one step. max_running: choices admitted at a
    time (at most max_rows, so that each can advance in every step). model: a digest of what decides
    keys and values besides ids. sharing False: nothing that was computed is used twice.
    speculation: who guesses, None for nobody.
    `running` and `waiting` are in order of rank.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_rows: int,
        max_running: int,
        model: bytes = b"",
        sharing: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        self.pool = pool
        self.max_rows = max_rows
        self.max_running = min(max_running, max_rows)
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []
        self.budget = RowBudget(max_rows)
        self.speculation = speculation or Speculation(0)
        self.margin = Margin()
        self.preemptions = self.cached_tokens = 0
        self._model = model
        self._sharing = sharing
        self._chains: dict[Generation, PrefixChain] = {}
        self._timed: dict[Generation, float] = {}

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
        packet = generation.packet
        root = root_of(self._model, packet.tenant, packet.adapter)
        self._chains[generation] = PrefixChain(generation.sequence, root, self.pool.block_size)
        if packet.deadline is not None:
            self._timed[generation] = packet.deadline
        insort(self.waiting, generation, key=rank_of)

    def schedule(self, now: float = 0.0) -> Plan:
        """The next step. `now` is of the clock that arrivals and deadlines are of."""
        plan = Plan(expired=[g for g, end in self._timed.items() if self._late(g, end, now)])
        for generation in plan.expired:
            self.remove(generation)
        self._grow(now)
        self._admit(now)
        counts = self._counts(now)
        self._guess(counts)
        for generation in self.running:
            count = counts.get(generation, 0)
            if count:
                generation.journal.waits_for(None, now)
                plan.work.append(generation)
                plan.rows.append(generation.row(count))
        return plan

    def advanced(self, generation: Generation, row: Row) -> None:
        """A row of it was computed and taken: blocks that have become whole may be shared. What was
        computed over wrong guesses lies behind `computed` and is written again.
        """
        if not self._sharing:
            return
        size = self.pool.block_size
        first, end = row.first // size, generation.sequence.computed // size
        if first == end:
            return
        digests = self._chains[generation].digests(first, end)
        for block, digest in zip(generation.sequence.blocks[first:end], digests, strict=True):
            self.pool.publish(block, digest)

    def preempt(self, generation: Generation, now: float = 0.0) -> None:
        """Takes place and memory from a running choice; it waits by its rank to go on."""
        self._take_out(self.running, generation)
        self._give_back(generation)
        generation.rewind()
        generation.journal.preempt(now)
        self.preemptions += 1
        insort(self.waiting, generation, key=rank_of)

    def remove(self, generation: Generation) -> None:
        """Takes a choice out and gives its blocks back. Harmless when it is not here."""
        if self._chains.pop(generation, None) is None:
            return
        self._timed.pop(generation, None)
        if not self._take_out(self.waiting, generation):
            self._take_out(self.running, generation)
        self._give_back(generation)

    def __iter__(self) -> Iterator[Generation]:
        """Every choice held, running ones first."""
        yield from self.running
        yield from self.waiting

    def _take_out(self, held: list[Generation], generation: Generation) -> bool:
        at = bisect_left(held, generation.rank, key=rank_of)
        here = at < len(held) and held[at] is generation
        if here:
            del held[at]
        return here

    def _give_back(self, generation: Generation) -> None:
        blocks, generation.sequence.blocks = generation.sequence.blocks, []
        self.pool.release(blocks)

    def _late(self, generation: Generation, deadline: float, now: float) -> bool:
        """Whether the deadline has passed, or would have when the first id could be there."""
        ahead = 0.0
        if generation.journal.admitted is None:
            ahead = self.budget.prompt_seconds(generation.sequence.computed, generation.remaining)
        return now + ahead >= deadline

    def _grow(self, now: float) -> None:
        """Memory for the next position of all that run, from whoever comes last if need be."""
        for generation in list(self.running):
            sequence = generation.sequence
            while generation.sequence.blocks and self._full(generation):
                if self._room(generation is not self.running[0]):
                    sequence.blocks += self.pool.allocate(1)
                else:
                    self.preempt(self.running[-1], now)
                    self.margin.pre_empted()
        self.margin.stepped()

    def _room(self, others: bool) -> int:
        """Blocks that may be taken. Who comes first has all that there are: it must go on."""
        return self.pool.usable_blocks if others else self.pool.free_blocks

    def _full(self, generation: Generation) -> bool:
        sequence = generation.sequence
        return sequence.computed == len(sequence.blocks) * self.pool.block_size

    def _admit(self, now: float) -> None:
        """Lets in who comes next, while there is a place and memory for all its ids."""
        while self.waiting:
            generation = self.waiting[0]
            reason = self._obstacle(generation, now)
            if reason is not None:
                generation.journal.waits_for(reason, now)
                return
            self.waiting.pop(0)
            generation.journal.admit(now)
            insort(self.running, generation, key=rank_of)

    def _obstacle(self, generation: Generation, now: float) -> WaitReason | None:
        """What keeps it out; None when it has been given its memory."""
        priority, rank = generation.packet.priority, generation.rank
        victims = [g for g in self.running if g.packet.priority > priority and g.rank > rank]
        if len(self.running) - len(victims) >= self.max_running:
            return "place"
        shared = self._known(generation)
        missing = self.blocks_for(generation.sequence.total) - len(shared)
        reach = sum(self.pool.held_alone(g.sequence.blocks) for g in victims)
        others, kept = len(self.running) - len(victims), self.margin.blocks
        if missing + kept * others > self._room(others > 0) + reach:
            self.pool.release(shared)
            return "memory"
        while len(self.running) >= self.max_running or missing + kept * len(
            self.running
        ) > self._room(bool(self.running)):
            self.preempt(victims.pop(), now)
        generation.sequence.blocks = shared + self.pool.allocate(missing)
        self._skip(generation, len(shared))
        return None

    def _known(self, generation: Generation) -> list[int]:
        """Takes the blocks that are known from where it stands; it must stand at a block's edge."""
        size, sequence = self.pool.block_size, generation.sequence
        if not self._sharing:
            return []
        first, end = sequence.computed // size, generation.skippable // size
        return self.pool.share(self._chains[generation].digests(first, end))

    def _skip(self, generation: Generation, blocks: int) -> None:
        positions, sequence = blocks * self.pool.block_size, generation.sequence
        generation.journal.skip(max(0, min(positions, sequence.prompt - sequence.computed)))
        sequence.computed += positions
        self.cached_tokens += positions

    def _counts(self, now: float) -> dict[Generation, int]:
        """Positions of each running choice in the next step."""
        everybody = self._behind(now)
        ahead = self._ahead(everybody)
        counts: dict[Generation, int] = {}
        for generation in self.running:
            if yields(generation, ahead):
                generation.journal.waits_for("order", now)
            elif generation.remaining == 1:
                counts[generation] = 1
        beside = work_of(counts)
        behind = [g for g in everybody if not yields(g, ahead)]
        for generation in behind:
            counts.setdefault(generation, 0)
        left = self.budget.prompt_rows(beside, behind[0].sequence.computed) if behind else 0
        quick = min(behind[1:], key=lambda g: g.remaining, default=None)
        if quick is not None and quick.packet.priority <= behind[0].packet.priority:
            counts[quick] = min(quick.remaining, left // QUICK_SHARE)
            left -= counts[quick]
        for generation in behind:
            count = min(generation.remaining - counts[generation], left)
            counts[generation] += count
            left -= count
            if not counts[generation]:
                generation.journal.waits_for("budget", now)
        return counts

    def _ahead(self, behind: list[Generation]) -> list[Generation]:
        """For whom others may have to pause: the most urgent, and the most urgent interrupted."""
        ahead: list[Generation] = []
        for group in (behind, [g for g in behind if g.interrupted]):
            ahead += sorted(group, key=lambda g: (g.packet.priority, g.rank))[:1]
        return ahead

    def _guess(self, counts: dict[Generation, int]) -> None:
        """Lets those that decode go on over guesses, where nobody else needs the room."""
        for generation in counts:
            generation.sequence.guesses = 0  # of a plan that was not carried out
        if any(generation.remaining != 1 for generation in counts):
            return
        decoding = list(counts)
        for generation, ids in zip(
            decoding, self.speculation.offer(decoding, self.max_rows), strict=True
        ):
            if ids:
                generation.guess(ids[: self._reach(generation, len(ids))])

    def _reach(self, generation: Generation, guesses: int) -> int:
        """How many guesses have memory. A block is taken for them only where nobody needs it."""
        sequence, size = generation.sequence, self.pool.block_size
        room = len(sequence.blocks) * size - sequence.total
        if room < guesses and not self.waiting and self.pool.usable_blocks > len(self.running):
            sequence.blocks += self.pool.allocate(1)
            room += size
        return min(room, guesses)

    def _behind(self, now: float) -> list[Generation]:
        """Choices more than one position behind that have something to compute themselves."""
        size = self.pool.block_size
        claimed: set[bytes] = set()
        behind: list[Generation] = []
        for generation in self.running:
            sequence = generation.sequence
            if generation.remaining == 1:
                continue
            if sequence.computed % size == 0:
                self._swap(generation, self._known(generation))
            block = sequence.computed // size
            if self._sharing and (block + 1) * size <= sequence.total:
                (digest,) = self._chains[generation].digests(block, block + 1)
                if digest in claimed and (block + 1) * size <= generation.skippable:
                    generation.journal.waits_for("shared", now)
                    continue
                claimed.add(digest)
            behind.append(generation)
        return behind

    def _swap(self, generation: Generation, known: list[int]) -> None:
        """Puts known blocks where it stands, for its own empty ones."""
        if not known:
            return
        blocks = generation.sequence.blocks
        first = generation.sequence.computed // self.pool.block_size
        own = blocks[first : first + len(known)]
        blocks[first : first + len(known)] = known
        self.pool.release(own)
        self._skip(generation, len(known))

    def check_integrity(self) -> None:
        """Asserts that every block has the holders that hold it, and that ranks and limits hold."""
        self.pool.check_integrity([g.sequence.blocks for g in self.running])
        assert all(not g.sequence.blocks for g in self.waiting), "a waiting choice holds blocks"
        assert len(self.running) <= self.max_running, "more run than may"
        assert set(self) == set(self._chains), "a choice is lost"
        for held in (self.running, self.waiting):
            assert held == sorted(held, key=rank_of), "out of order"
        for g in self.running:
            count = len(g.sequence.blocks)
            assert count <= self.blocks_for(g.positions), "more blocks than it will ever need"
            assert g.sequence.computed <= count * self.pool.block_size, "computed without memory"
            assert 0 <= g.sequence.computed < g.sequence.total, "it runs with nothing to compute"
