"""Runner: one loaded model. step(rows) binds a few small arrays, makes one native call, and
samples.

The law: between the call of step and its answer nothing is allocated on the device, and the bits of
each answer depend on its own sequence alone: not on the other rows, nor on how the sequence was cut
into steps.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rebar.errors import ContextLengthError, EngineError, ShapeError
from rebar.graph.graph import CompiledGraph, Graph, Observer
from rebar.graph.kv import PagedKVCache
from rebar.graph.memory_plan import MemoryPlan
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.decoder import Decoder
from rebar.graph.node import Values
from rebar.graph.sampling import Sampler, Wanted
from rebar.graph.sequence import Row, Sampled
from rebar.hal import BLOCK_POSITIONS, DeviceManager, Limits, Step

if TYPE_CHECKING:
    from rebar.graph.lora.slots import AdapterSlots


class Pass:
    """A decoder that is placed and compiled. head, logits_begin: first launches of the head and of
    its products. products: those that adapters can change.
    """

    def __init__(
        self, device: DeviceManager, decoder: Decoder, values: Values, limits: Limits
    ) -> None:
        self.graph, self.values = decoder.graph, values
        self.products = frozenset(product for _, product in decoder.adapters)
        self.compiled: CompiledGraph = decoder.graph.compile(device, values, limits)
        self.head = self.compiled.first_launch[decoder.head_begin]
        self.logits_begin = self.compiled.first_launch[decoder.logits_begin]
        self.logits = values.rows(decoder.logits).data
        self.hidden = values.rows(decoder.hidden).data


class Runner:
    """A model on a device. Made by rebar.graph.load_runner; one thread at a time may call step.

    passes: the decoder, and those with adapters, over the same weights, cache and arena. A step
    goes the first one that has all it needs: adapters cost nothing where no row takes one.
    """

    def __init__(
        self,
        config: DecoderConfig,
        device: DeviceManager,
        passes: Seq[Pass],
        kv: PagedKVCache,
        plan: MemoryPlan,
        limits: Limits,
        vocab_size: int,
        adapters: AdapterSlots | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.kv = kv
        self.plan = plan
        self.limits = limits
        self.max_context = plan.max_context
        self.max_rows = limits.rows
        self.max_sequences = limits.sequences
        self.graph: Graph = passes[0].graph
        self.adapters = adapters
        self._passes = passes
        self._pass = passes[0]
        self._sampler = Sampler(vocab_size, pool=device.backend.pool)
        self._unused = device.stats().free  # pools are cut once; only KV blocks come and go
        stride = -(-plan.max_context // BLOCK_POSITIONS)
        self._step = Step(limits.rows, limits.logit_rows, limits.sequences, stride)
        self._logit_index = self._step.logit_index

    def step(self, rows: Seq[Row], observers: Seq[Observer] | None = None) -> list[list[Sampled]]:
        """Computes the rows and answers their wanted positions, in order.

        observers: given, the graph runs node by node and is watched; same bits.
        Errors: ShapeError for more rows than max_rows or max_sequences; ContextLengthError past
        max_context.
        """
        self._bind(rows)
        wanted: list[Wanted] = []
        of_ids: list[int] = []
        of_states: list[int] = []
        at = 0
        for row in rows:
            (of_states if row.hidden else of_ids).extend(at + p - row.first for p in row.wants)
            if not row.hidden:
                wanted += [Wanted(row.sequence, position) for position in row.wants]
            at += row.count
        ids = self._ids(of_ids, wanted, observers) if of_ids or not of_states else []
        states = self._states(of_states, observers, begun=bool(of_ids))
        answers = []
        taken_ids = taken_states = 0
        for row in rows:
            count = len(row.wants)
            if row.hidden:
                answers.append(states[taken_states : taken_states + count])
                taken_states += count
            else:
                answers.append(ids[taken_ids : taken_ids + count])
                taken_ids += count
        return answers

    def _ids(
        self, index: list[int], wanted: list[Wanted], observers: Seq[Observer] | None
    ) -> list[Sampled]:
        """The step, and answers from logits for rows `index` of it."""
        answers: list[Sampled] = []
        room = self.limits.logit_rows
        for begin in range(0, max(len(wanted), 1), room):
            chunk = slice(begin, begin + room)
            self._run(index[chunk], 0 if begin == 0 else self._pass.head, None, observers)
            asked = wanted[chunk]
            answers += self._sampler.sample(self._pass.logits[: len(asked)], asked)
        return answers

    def _states(
        self, index: list[int], observers: Seq[Observer] | None, *, begun: bool
    ) -> list[Sampled]:
        """Hidden states of rows `index` of the step, which is computed unless it has begun. The
        head's products are left out.
        """
        answers: list[Sampled] = []
        room = self.limits.logit_rows
        for begin in range(0, len(index), room):
            chunk = index[begin : begin + room]
            first = self._pass.head if begun or begin else 0
            self._run(chunk, first, self._pass.logits_begin, observers)
            answers += [_state_of(state) for state in self._pass.hidden[: len(chunk)]]
        return answers

    def _run(
        self, index: list[int], first: int, end: int | None, observers: Seq[Observer] | None
    ) -> None:
        """Launches first .. end - 1; the head for rows `index` of the step."""
        self._step.logit_rows = len(index)
        self._logit_index[: len(index)] = index
        if observers is None:
            self._pass.compiled.program.run(self._step, first, end)
        # the head again over the same hidden rows changes nothing, so the whole graph may run again
        else:
            way = self._pass
            way.graph.run(self.device, self._step, way.values, self.limits, observers)

    def _bind(self, rows: Seq[Row]) -> None:
        """Fills the step's arrays."""
        total = sum(row.count for row in rows)
        if total > self.limits.rows or len(rows) > self.limits.sequences:
            raise ShapeError(
                f"a step of {total} rows of {len(rows)} sequences; the model was "
                f"loaded for {self.limits.rows} rows of "
                f"{self.limits.sequences} sequences (max_rows)."
            )
        for row in rows:
            self._check(row)
        self._step.bind(
            [
                (s.tokens, row.first, row.count, s.blocks, s.adapter)
                for row in rows
                for s in (row.sequence,)
            ]
        )
        self._pass = self._pass_of(rows)

    def _pass_of(self, rows: Seq[Row]) -> Pass:
        """The first that knows all products which these rows' adapters change."""
        if self.adapters is None or not self._step.adapted:
            return self._passes[0]
        changed = self.adapters.products({row.sequence.adapter for row in rows})
        return next(way for way in self._passes if changed <= way.products)

    def _check(self, row: Row) -> None:
        end = row.first + row.count
        if end > self.max_context:
            message = (
                f"position {end} is past the context of {self.max_context:,}. Shorten it "
                "or load with --max-context."
            )
            raise ContextLengthError(message, code="context_length_exceeded")
        if row.count < 1 or row.first < 0 or end > row.sequence.total + row.sequence.guesses:
            raise ShapeError(f"rows {row.first}..{end} of a sequence of {row.sequence.total} ids")
        if len(row.sequence.blocks) * BLOCK_POSITIONS < end:
            raise ShapeError(
                f"a sequence of {len(row.sequence.blocks)} blocks does not reach position {end}"
            )
        if row.sequence.adapter >= 0 and self.adapters is None:
            raise ShapeError("a sequence with an adapter, and no room was made for any")
        if row.wants and not (row.first <= row.wants[0] and row.wants[-1] < end):
            raise ShapeError(f"wanted positions {row.wants} are not in {row.first}..{end}")

    def logits(self, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """A copy of the last step's first `count` logit rows (at most limits.logit_rows), (count,
        vocab_size of the model).
        """
        return np.array(self._pass.logits[:count], copy=True)

    def timings(self, rows: Seq[Row]) -> list[tuple[str, int]]:
        """Runs a step without sampling; (kernel, nanoseconds) of every launch."""
        self._bind(rows)
        self._step.logit_rows = min(len(rows), self.limits.logit_rows)
        self._step.logit_index[: self._step.logit_rows] = (
            np.cumsum([row.count for row in rows])[: self._step.logit_rows] - 1
        )
        program = self._pass.compiled.program
        return [(program.name(i), ns) for i, ns in enumerate(program.run_timed(self._step))]

    @property
    def free_bytes(self) -> int:
        """Bytes of the device's budget that nothing holds, free KV blocks included."""
        return self._unused + self.kv.free_blocks * self.kv.block_bytes

    @property
    def available_bytes(self) -> int:
        """Bytes that the machine could give now. Pools get theirs when they are first touched."""
        return self.device.available_bytes

    @property
    def node_count(self) -> int:
        """Nodes of the graph as it runs."""
        return len(self.graph.order)

    @property
    def launches(self) -> int:
        """Launches of a step."""
        return len(self._passes[0].compiled.program)

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return self.config.width

    def close(self) -> None:
        """Gives the pools back; the runner must not be used any more."""
        for pool in self.device.stats().pools:
            self.device.release(pool.name)


def _state_of(state: NDArray[np.float32]) -> Sampled:
    if np.isfinite(state).all():
        return Sampled(id=-1, hidden=state.tobytes())
    message = "a hidden state holds what is no number. Send the request again."
    return Sampled(id=-1, error=EngineError(message))
