"""What a training step does, in order: which gradients are needed, what runs on the way back, and
what is computed a second time instead of being kept.

A gradient is needed where the way from a trainable weight to the loss passes; nothing else gets
one, so frozen parts cost nothing. What a node's backward reads is not declared: it is asked, by
calling it once over values that take note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from rebar.errors import InputError, ShapeError
from rebar.graph.gradients import Gradients, Trained
from rebar.graph.graph import Graph
from rebar.graph.node import Kind, Node, Values
from rebar.graph.plan import activation, nbytes_of
from rebar.graph.tensor import Tensor
from rebar.hal import Limits, Operand, Rows

Recompute = Literal["none", "cheap", "layer"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""Each takes less memory and more time than the one before."""
Choice = Literal["auto", "none", "cheap", "layer"]
"""What may be asked for; "auto" is the first that fits."""


@dataclass(frozen=True, slots=True)
class Event:
    """A node that runs: its forward, its forward once more, or its backward. values, gradients: the
    activations (by the tensor whose memory they lie in) and gradients that it touches.
    """

    node: Node
    kind: Literal["forward", "again", "backward"]
    values: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """All events of a step. Those in `head` run once for each piece of rows with a loss: forward up
    to `turn`, then backward. again: tensors that the way back reads as computed a second time.
    same: tensors whose gradient is another's.
    """

    events: tuple[Event, ...]
    head: range
    turn: int
    again: frozenset[Tensor]
    same: Mapping[Tensor, Tensor]


@dataclass(slots=True)
class Scheduler:
    """Makes the Schedule of a graph. parameters: the gradients of trainable weights. bound: what
    the caller has bound. stopped: tensors through which no gradient passes. head_begin: the first
    node of the head; None where all rows have a loss.

    Errors: ShapeError naming trainable weights that the loss does not reach.
    """

    graph: Graph
    loss: Tensor
    limits: Limits
    bound: Mapping[Tensor, Operand]
    parameters: Mapping[Tensor, Trained]
    head_begin: str | None = None
    stopped: frozenset[Tensor] = frozenset()
    _rooms: set[Tensor] = field(init=False)
    same: dict[Tensor, Tensor] = field(init=False)
    needed: frozenset[Tensor] = field(init=False)
    back: list[Event] = field(init=False)
    """The way back of every node that has to go it."""

    def __post_init__(self) -> None:
        self._rooms = {t for n in self.graph.order for t in n.rooms}
        self.same = {t: other for n in self.graph.order for t, other in n.same_gradient.items()}
        self.needed = self._needed()
        self.back = self._back()
        self._reached()

    def home(self, tensor: Tensor) -> Tensor:
        """The tensor in whose gradient this one's lies."""
        while tensor.base is not None or tensor in self.same:
            tensor = self.same.get(tensor) or tensor.root
        return tensor

    def completed(self, node: Node) -> tuple[Tensor, ...]:
        """Homes of gradients that are whole once the way back has come to this node: of what it
        made itself, not of what an output of it only stands for.
        """
        homes = dict.fromkeys(self.home(t) for t in node.outputs)
        return tuple(t for t in homes if self.graph.producer.get(t) is node)

    @property
    def watched(self) -> frozenset[Tensor]:
        """Homes of gradients that the way back of some node goes on from."""
        return frozenset(t for event in self.back for t in self.completed(event.node))

    def _needed(self) -> frozenset[Tensor]:
        """Homes of gradients between a trainable weight and the loss."""
        grown: set[Tensor] = set()
        for node in self.graph.order:
            if any(t in self.parameters or self.home(t) in grown for t in node.inputs):
                grown |= {self.home(t) for t in node.outputs if t not in self.stopped}
        reached = {self.home(self.loss)}
        for node in reversed(self.graph.order):
            if any(self.home(t) in reached and t not in self.stopped for t in node.outputs):
                reached |= {self.home(t) for t in node.inputs}
        needed = grown & reached
        for node in self.graph.order:
            together = {self.home(t) for t in node.gradients_together}
            needed |= together if together & needed else set()
        return frozenset(needed)

    def _back(self) -> list[Event]:
        asked = _Asked(self)
        return [
            asked.of(node)
            for node in reversed(self.graph.order)
            if any(self.home(t) in self.needed for t in node.outputs)
            and any(t in self.parameters or self.home(t) in self.needed for t in node.inputs)
        ]

    def _reached(self) -> None:
        """Every trainable weight gets a gradient, or is named."""
        read = {t for event in self.back for t in event.node.inputs}
        cut = [t.name for t in self.parameters if t not in read]
        if cut:
            raise ShapeError(
                f"no gradient would reach {', '.join(cut[:5])}: the loss does not depend on it, or "
                "a gradient is stopped on the way. Freeze it, or mend the graph."
            )

    def schedule(self, recompute: Recompute) -> Schedule:
        """All events, with what is computed again."""
        order = self.graph.order
        names = [n.name for n in order]
        body = len(order) if self.head_begin is None else names.index(self.head_begin)
        head = set(order[body:])
        forward = [self.event(n, "forward") for n in order]
        turned = [e for e in self.back if e.node in head]
        missing = _not_kept(self.graph, order[:body], recompute)
        again = _Again(self, set(missing))
        rest = [e for event in self.back if event.node not in head for e in again.before(event)]
        return Schedule(
            events=(*forward, *turned, *rest),
            head=range(body, len(order) + len(turned)),
            turn=len(order),
            again=frozenset(missing),
            same=self.same,
        )

    def event(self, node: Node, kind: Literal["forward", "again"]) -> Event:
        """A node's forward."""
        touched = (*node.inputs, *node.outputs)
        return Event(node, kind, tuple(dict.fromkeys(t.root for t in touched if self.placed(t))))

    def placed(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that a node writes, on the way forward or back, and has bytes."""
        written = tensor.root in self.graph.producer or tensor in self._rooms
        return written and tensor.dtype != "order"

    def gradient_nbytes(self, tensor: Tensor) -> int:
        """Bytes of an activation's gradient: float32 whatever the activation is."""
        return nbytes_of(as_rows(tensor), self.limits)


def as_rows(tensor: Tensor) -> Tensor:
    """A float tensor of the same shape."""
    return Tensor(tensor.name, tensor.shape)


def _not_kept(graph: Graph, body: Sequence[Node], recompute: Recompute) -> set[Tensor]:
    """Outputs of the body that are computed again when the way back wants them: of cheap nodes, or
    of all nodes but those that another part of the model (`layers.3.`) reads.
    """
    if recompute not in RECOMPUTE:
        raise InputError(
            f"no way to recompute {recompute!r}; --recompute is auto or one of "
            f"{', '.join(RECOMPUTE)}.",
            param="recompute",
        )
    if recompute == "none":
        return set()
    made = [(node, t) for node in body for t in node.outputs]
    if recompute == "cheap":
        return {t for node, t in made if node.CHEAP}
    read_elsewhere = {t.root for t in graph.outputs}
    for node in graph.order:
        for t in node.inputs:
            producer = graph.producer.get(t.root)
            if producer is not None and _part(producer) != _part(node):
                read_elsewhere.add(t.root)
    inside = set(body)
    for node in graph.order:
        if node not in inside:
            read_elsewhere |= {t.root for t in node.inputs}
    return {t for _, t in made if t not in read_elsewhere}


def _part(node: Node) -> str:
    """The scope of a node's name: layers.3."""
    return node.name[: node.name.rfind(".") + 1]


class _Again:
    """Puts the nodes that compute a missing activation again before the event that wants it."""

    def __init__(self, scheduler: Scheduler, missing: set[Tensor]) -> None:
        self._scheduler = scheduler
        self._missing = missing

    def before(self, event: Event) -> list[Event]:
        """The nodes to run again, then the event."""
        events: list[Event] = []
        for tensor in event.values:
            self._make(tensor, events)
        return [*events, event]

    def _make(self, tensor: Tensor, events: list[Event]) -> None:
        if tensor not in self._missing:
            return
        node = self._scheduler.graph.producer[tensor]
        self._missing -= set(node.outputs)
        again = self._scheduler.event(node, "again")
        for t in again.values:
            self._make(t, events)
        events.append(again)


class _Asked:
    """Calls a node's backward over values and gradients that take note, and runs nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        order = scheduler.graph.order
        tensors = [t for n in order for t in (*n.outputs, *n.rooms) if scheduler.placed(t)]
        limits = scheduler.limits
        sizes = [nbytes_of(t, limits) for t in tensors]
        sizes += [scheduler.gradient_nbytes(t) for t in scheduler.needed]
        # One memory for all: nothing is read or written, so no page of it is ever touched.
        memory = np.empty(max(sizes, default=0), np.uint8)
        operands = dict(scheduler.bound)
        operands.update({t: activation(t, memory, limits) for t in tensors})
        rows = {}
        for t in scheduler.needed:
            made = activation(as_rows(t), memory, limits)
            assert isinstance(made, Rows)
            rows[t] = made
        self._values = _NotedValues(operands)
        self._gradients = _NotedGradients(rows, scheduler.parameters, scheduler.same)

    def of(self, node: Node) -> Event:
        """The event of a node's way back."""
        self._values.asked.clear()
        self._gradients.asked.clear()
        node.backward(lambda _: None, self._values, self._gradients)
        values = tuple(t for t in self._values.asked if self._scheduler.placed(t))
        return Event(node, "backward", values, tuple(self._gradients.asked))


class _NotedValues(Values):
    def __init__(self, operands: dict[Tensor, Operand]) -> None:
        super().__init__(operands)
        self.asked: dict[Tensor, None] = {}

    def _get(self, tensor: Tensor, kind: type[Kind]) -> Kind:
        self.asked[tensor] = None
        return super()._get(tensor, kind)


class _NotedGradients(Gradients):
    def __init__(
        self,
        rows: Mapping[Tensor, Rows],
        parameters: Mapping[Tensor, Trained],
        same: Mapping[Tensor, Tensor],
    ) -> None:
        super().__init__(rows, parameters, same)
        self.asked: dict[Tensor, None] = {}

    def rows(self, tensor: Tensor) -> Rows | None:
        found = super().rows(tensor)
        if found is not None and tensor.base is None and tensor not in self._same:
            self.asked[tensor] = None
        return found
