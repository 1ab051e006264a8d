"""Graph: nodes in topological order. It can be watched node by node, or compiled into one Program
with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rebar.errors import ShapeError
from rebar.graph.node import Cost, Node, Values
from rebar.graph.plan import Plan, make_plan
from rebar.graph.tape import Tape
from rebar.graph.tensor import Tensor
from rebar.hal import DeviceManager, Domain, Limits, Program, Step


class Observer(Protocol):
    """Watches a graph run node by node."""

    def after_forward(self, node: Node, values: Values) -> None:
        """Called when a node's outputs are there."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph as one flat program. first_launch: where each node's launches begin."""

    program: Program
    values: Values
    first_launch: dict[str, int]


class Graph:
    """Nodes that the outputs need, in an order in which every input comes before its use.

    Errors: ShapeError for a tensor written twice or a cycle, naming the nodes.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Tensor]) -> None:
        self.outputs = tuple(outputs)
        self.producer = self._producers(nodes)
        self.order = self._sort(nodes)

    @staticmethod
    def _producers(nodes: Sequence[Node]) -> dict[Tensor, Node]:
        producer: dict[Tensor, Node] = {}
        for node in nodes:
            for tensor in node.outputs:
                if tensor in producer:
                    raise ShapeError(
                        f"{tensor.name} is written by {producer[tensor].name} and {node.name}"
                    )
                producer[tensor] = node
        return producer

    def _sort(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Depth first from the outputs, without recursion; nodes nobody needs are left out, ties
        keep the given order.
        """
        wanted = {self.producer[t.root] for t in self.outputs if t.root in self.producer}
        stack, needed = list(wanted), set(wanted)
        while stack:
            for tensor in stack.pop().inputs:
                before = self.producer.get(tensor.root)
                if before is not None and before not in needed:
                    needed.add(before)
                    stack.append(before)
        order: list[Node] = []
        done: set[Node] = set()
        waiting = [n for n in nodes if n in needed]
        while waiting:
            for node in waiting:  # one pass suffices when the given order is already topological
                if self._befores(node) <= done:
                    order.append(node)
                    done.add(node)
            left = [n for n in waiting if n not in done]
            if len(left) == len(waiting):
                raise ShapeError(f"a cycle through {', '.join(n.name for n in waiting[:8])}")
            waiting = left
        return tuple(order)

    def _befores(self, node: Node) -> set[Node]:
        return {self.producer[t.root] for t in node.inputs if t.root in self.producer}

    def cost(self, rows: int, logit_rows: int, positions: int) -> Cost:
        """Operations and bytes of one step."""
        total = Cost()
        for node in self.order:
            out = node.outputs[0]
            total += node.cost(rows if out.domain is Domain.ROWS else logit_rows, positions)
        return total

    def plan(self, limits: Limits, *, reuse: bool = True) -> Plan:
        """Where every activation lies."""
        return make_plan(self.order, self.outputs, limits, reuse=reuse)

    def run(
        self,
        device: DeviceManager,
        step: Step,
        values: Values,
        limits: Limits,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Node by node: debug, trace, train. Observers see each node's outputs before a later node
        may reuse their place.
        """
        for node in self.order:
            tape = Tape(device.program(limits))
            node.forward(tape, values)
            tape.run(step)
            for observer in observers:
                observer.after_forward(node, values)

    def compile(self, device: DeviceManager, values: Values, limits: Limits) -> CompiledGraph:
        """All launches in one program: one native call a step."""
        tape = Tape(device.program(limits))
        first: dict[str, int] = {}
        for node in self.order:
            first[node.name] = len(tape)
            node.forward(tape, values)
        return CompiledGraph(tape.program, values, first)
