"""TrainingProgram: a graph's forward and backward as one recorded program, over one arena.

The law: activations that the way back reads, and gradients while they grow, share the arena by
lifetime; a gradient is zeroed where its lifetime begins. Recorded once, run many times; whether it
runs at a stretch or is watched node by node, and what is computed again, changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rebar.errors import ShapeError
from rebar.graph.backward import Event, Recompute, Schedule, Scheduler, as_rows
from rebar.graph.gradients import Gradients
from rebar.graph.graph import Observer
from rebar.graph.node import HostCall, Node, Values
from rebar.graph.plan import Placement, activation, extent, nbytes_of, place
from rebar.graph.tape import Tape
from rebar.graph.tensor import Tensor
from rebar.hal import Block, DeviceManager, Domain, Operand, Rows, Step
from rebar.hal.launches_backward import Zero

Kept = Literal["value", "again", "gradient"]
Key = tuple[Tensor, Kept]
Hook = Callable[[NDArray[np.float32]], NDArray[np.float32] | None]


class GradientObserver(Observer, Protocol):
    """Watches a training step node by node, on both ways."""

    def after_backward(self, node: Node, gradients: Gradients) -> None:
        """Called when a node has added into the gradients of its inputs."""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Where everything lies; born and dies are numbers of events."""

    schedule: Schedule
    placements: Mapping[Key, Placement]

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return extent(self.placements.values())


def plan_arena(scheduler: Scheduler, recompute: Recompute) -> ArenaPlan:
    """Lifetimes of all activations and gradients of a step, and places for them."""
    schedule = scheduler.schedule(recompute)
    lives: dict[Key, tuple[int, int]] = {}
    for i, event in enumerate(schedule.events):
        for key in keys_of(event, schedule.again):
            lives[key] = (lives.get(key, (i, i))[0], i)
    for key, (born, dies) in lives.items():
        lives[key] = _through_head(key, born, dies, schedule.head)
    last = len(schedule.events)
    for kept in ("value", "gradient"):  # the caller reads losses and writes their weights
        if (scheduler.loss, kept) in lives:
            lives[scheduler.loss, kept] = (0, last)
    needs = {
        (t, kept): (
            scheduler.gradient_nbytes(t) if kept == "gradient" else nbytes_of(t, scheduler.limits),
            life,
            f"{t.name} {kept}",
        )
        for (t, kept), life in lives.items()
    }
    return ArenaPlan(schedule, place(needs))


def keys_of(event: Event, again: frozenset[Tensor]) -> list[Key]:
    """What an event touches: on the way back, what is computed again is another place."""
    second = again if event.kind != "forward" else frozenset()
    values: list[Key] = [(t, "again" if t in second else "value") for t in event.values]
    return values + [(t, "gradient") for t in event.gradients]


def _through_head(key: Key, born: int, dies: int, head: range) -> tuple[int, int]:
    """The lifetime with what the head's turns ask: what goes in, or is gathered over the pieces,
    stays through all of them.
    """
    if not head or dies < head.start or born >= head.stop:
        return born, dies
    gathered = key[1] == "gradient" and key[0].domain is Domain.ROWS
    if born < head.start:
        return born, max(dies, head.stop - 1)
    return (head.start, dies) if gathered else (born, dies)


class TrainingProgram:
    """forward(step); for each piece of rows with a loss: losses(step); then backward(step).

    losses: (rows with a loss, 1), to read; weights: the gradient of each loss, for the caller to
    fill before a piece. hooks: called with the whole gradient of a tensor, (rows, width), before
    its node goes on; they may change it in place or give another.
    """

    def __init__(
        self,
        device: DeviceManager,
        scheduler: Scheduler,
        plan: ArenaPlan,
        arena: Block,
        hooks: Mapping[Tensor, Sequence[Hook]],
    ) -> None:
        self.schedule = plan.schedule
        self._scheduler = scheduler
        self._tape = Tape(device.program(scheduler.limits))
        self._hooks: dict[Tensor, list[Hook]] = {}
        for tensor, calls in hooks.items():  # several tensors may have one gradient
            self._hooks.setdefault(scheduler.home(tensor), []).extend(calls)
        self._bind(plan, arena.bytes())
        self.ranges = self._record(plan)
        self.losses = self._forward_values.rows(scheduler.loss)
        self.weights = self.gradients.of(scheduler.loss)

    def _bind(self, plan: ArenaPlan, memory: NDArray[np.uint8]) -> None:
        """Values as the way forward and as the way back sees them, and gradients."""
        limits = self._scheduler.limits
        bound = dict(self._scheduler.bound)
        kept: dict[str, dict[Tensor, Operand]] = {"value": {}, "again": {}}
        rows: dict[Tensor, Rows] = {}
        for (tensor, what), at in plan.placements.items():
            raw = memory[at.offset : at.offset + at.nbytes]
            if what == "gradient":
                made = activation(as_rows(tensor), raw, limits)
                assert isinstance(made, Rows)
                rows[tensor] = made
            else:
                kept[what][tensor] = activation(tensor, raw, limits)
        self._forward_values = Values(bound | kept["value"])
        self._backward_values = Values(bound | kept["value"] | kept["again"])
        self.gradients = Gradients(rows, self._scheduler.parameters, self.schedule.same)

    def _record(self, plan: ArenaPlan) -> list[range]:
        """Records every event; the operations of each. Zeroing before the head's turns belongs to
        no event: `_gather` is where it stands.
        """
        head, tape = self.schedule.head, self._tape
        zeroed: set[Tensor] = {self._scheduler.loss}
        ranges: list[range] = []
        self._gather = range(0)
        for i, event in enumerate(self.schedule.events):
            if head and i == head.start:
                begin = len(tape)
                for e in self.schedule.events[head.start : head.stop]:
                    self._zero([t for t in e.gradients if t.domain is Domain.ROWS], zeroed)
                self._gather = range(begin, len(tape))
            begin = len(tape)
            self._zero(event.gradients, zeroed)
            self._one(event)
            ranges.append(range(begin, len(tape)))
        return ranges

    def _zero(self, tensors: Sequence[Tensor], zeroed: set[Tensor]) -> None:
        for tensor in tensors:
            if tensor not in zeroed:
                self._tape(Zero(self.gradients.of(tensor), tensor.domain))
                zeroed.add(tensor)

    def _one(self, event: Event) -> None:
        node = event.node
        if event.kind == "backward":
            for tensor in self._scheduler.completed(node):
                for hook in self._hooks.get(tensor, ()):
                    self._tape(self._call(tensor, hook))
            node.backward(self._tape, self._backward_values, self.gradients)
        else:
            forward = event.kind == "forward"
            node.forward(self._tape, self._forward_values if forward else self._backward_values)

    def _call(self, tensor: Tensor, hook: Hook) -> HostCall:
        rows = self.gradients.of(tensor).data

        def run(step: Step) -> None:
            count = tensor.domain.rows(step)
            changed = hook(rows[:count])
            if changed is None:
                return
            if np.shape(changed) != (count, tensor.width):
                raise ShapeError(
                    f"the hook of {tensor.name} gave {np.shape(changed)}, its gradient is "
                    f"{(count, tensor.width)}. Give that shape, or None for what was changed in "
                    "place."
                )
            rows[:count] = changed

        return HostCall(f"hook of {tensor.name}", run)

    def forward(self, step: Step, watchers: Sequence[GradientObserver] = ()) -> None:
        """All nodes before the head."""
        self._run(step, 0, self.schedule.head.start, watchers)
        self._tape.run(step, self._gather.start, self._gather.stop)

    def head(
        self, step: Step, watchers: Sequence[GradientObserver] = (), *, learn: bool = True
    ) -> None:
        """The head for the step's logit rows: losses, and with `learn` their way back."""
        head = self.schedule.head
        self._run(step, head.start, head.stop if learn else self.schedule.turn, watchers)

    def backward(self, step: Step, watchers: Sequence[GradientObserver] = ()) -> None:
        """The way back of what is before the head."""
        self._run(step, self.schedule.head.stop, len(self.ranges), watchers)

    def _run(self, step: Step, begin: int, end: int, watchers: Sequence[GradientObserver]) -> None:
        if begin >= end:
            return
        if not watchers:
            self._tape.run(step, self.ranges[begin].start, self.ranges[end - 1].stop)
            return
        for event, operations in zip(
            self.schedule.events[begin:end], self.ranges[begin:end], strict=True
        ):
            self._tape.run(step, operations.start, operations.stop)
            for watcher in watchers:
                if event.kind == "forward":
                    watcher.after_forward(event.node, self._forward_values)
                elif event.kind == "backward":
                    watcher.after_backward(event.node, self.gradients)

    def __len__(self) -> int:
        return len(self._tape)
