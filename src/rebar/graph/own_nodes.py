"""Nodes of one's own in a graph that is already written: behind a node by its name, or instead of
it.

The graph is changed before anything is fused, and nothing else of it knows: readers of the node
read what the own node makes. A file that is served has no place for such a node; what serves is the
graph without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from rebar.errors import ShapeError
from rebar.graph.graph import Graph
from rebar.graph.models.decoder import Decoder
from rebar.graph.node import Node
from rebar.graph.nodes_numpy import NumPyNode
from rebar.graph.tensor import Shape, Tensor
from rebar.hal import Domain, WeightFormat

Own = Callable[[str, tuple[Tensor, ...], Tensor], NumPyNode]
"""Makes a node of a name, what it reads and what it makes: a subclass of NumPyNode does, or a
functools.partial of one with fields."""


@dataclass(frozen=True, slots=True)
class OwnNodes:
    """after: by a node's name what its output goes through before anybody reads it; called as the
    node with `.own` behind. instead: what reads the node's inputs and makes its output in its
    place, under its name. ShapeError for a name that is none, and for shapes that differ.
    """

    after: Mapping[str, Own] = field(default_factory=dict)
    instead: Mapping[str, Own] = field(default_factory=dict)

    def in_decoder(self, decoder: Decoder) -> Decoder:
        """The decoder with them, not yet fused."""
        if not self.after and not self.instead:
            return decoder
        graph, now = self._spliced(decoder.graph)
        hidden, logits = (now.get(t, t) for t in (decoder.hidden, decoder.logits))
        return replace(decoder, graph=graph, hidden=hidden, logits=logits)

    @property
    def settings(self) -> dict[str, str]:
        """What a checkpoint says of them (graph/learner_settings.py)."""
        places = (("after", self.after), ("instead of", self.instead))
        return {
            f"own node {place} {name}": getattr(own, "__qualname__", repr(own))
            for place, nodes in places
            for name, own in nodes.items()
        }

    def _spliced(self, graph: Graph) -> tuple[Graph, dict[Tensor, Tensor]]:
        """The graph with them, and what stands for the outputs of the nodes that were named."""
        known = {node.name for node in graph.order}
        if wrong := [name for name in (*self.after, *self.instead) if name not in known]:
            raise ShapeError(
                f"no node {', '.join(wrong)} in the graph. Names are as layers.0.after_mlp: those "
                "of learner.graph with fused=False."
            )
        nodes: list[Node] = []
        now: dict[Tensor, Tensor] = {}
        for node in graph.order:
            moved = _reading(node, now)
            if node.name in self.instead:
                moved = _made(node.name, self.instead[node.name], _read(moved), node)
                now[node.outputs[0]] = moved.out
            nodes.append(moved)
            if node.name in self.after:
                before = moved.outputs[0]
                own = _made(f"{node.name}.own", self.after[node.name], (before,), node)
                now[node.outputs[0]] = own.out
                nodes.append(own)
        return Graph(nodes, [now.get(t, t) for t in graph.outputs]), now


NO_NODES = OwnNodes()


def _made(name: str, own: Own, reads: tuple[Tensor, ...], node: Node) -> NumPyNode:
    """The own node, whose output has the shape of the node's."""
    due = node.outputs[0]
    if due.dtype != "f32":
        raise ShapeError(f"{node.name} makes nothing that a node written in NumPy could read.")
    made = own(name, reads, Tensor(name, due.shape))
    shape = made.shape(*(t.shape for t in reads))
    if shape != due.shape:
        raise ShapeError(f"{name} makes {_words(shape)}; it should make {_words(due.shape)}.")
    return made


def _words(shape: Shape) -> str:
    return " x ".join(s.name.lower() if isinstance(s, Domain) else str(s) for s in shape)


def _read(node: Node) -> tuple[Tensor, ...]:
    for t in node.inputs:
        if t.dtype != "f32" and not isinstance(t.dtype, WeightFormat):
            raise ShapeError(
                f"{node.name} reads {t.name} of {t.dtype}, which a node written in NumPy cannot. "
                "Put it behind another node."
            )
    return node.inputs


def _reading(node: Node, now: Mapping[Tensor, Tensor]) -> Node:
    """The node, reading what stands for tensors now."""
    given = set(node.inputs)
    changes: dict[str, object] = {}
    for name in (f.name for f in fields(node)):
        value = getattr(node, name)
        if isinstance(value, Tensor) and value in given:
            changes[name] = _now(value, now)
        elif isinstance(value, tuple) and value and set(value) <= given:
            changes[name] = tuple(_now(t, now) for t in value)
    return replace(node, **changes)  # type: ignore[arg-type]


def _now(tensor: Tensor, now: Mapping[Tensor, Tensor]) -> Tensor:
    """What stands for a tensor, or for the columns of one that it is."""
    if tensor.base is None:
        return now.get(tensor, tensor)
    whole = _now(tensor.base, now)
    if whole is tensor.base:
        return tensor
    return whole.columns(tensor.begin, tensor.begin + tensor.width)
