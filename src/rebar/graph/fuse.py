"""Fusions: rewrites of a graph that save passes over memory and keep every bit. One that changed
the order of a sum would not be made.

- Quantize at the producer: a norm, gated activation or attention that feeds a Quantize writes the
  int8 rows itself.
- Rotation at the cache: what rotates q and k and stores k and v is one launch.
- Residual in the product: a Linear, or what an adapter makes of it, whose only reader adds it to
  something adds it itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rebar.graph.graph import Graph
from rebar.graph.node import Node
from rebar.graph.nodes import Add, Gated, Linear, LoraUp, Quantize, RmsNorm
from rebar.graph.nodes_attention import Append, Attention, Rope, RopeAppend
from rebar.graph.tensor import Tensor


def fuse(graph: Graph) -> Graph:
    """The same arithmetic in fewer nodes."""
    return fuse_residual(fuse_quantize(fuse_rope_append(graph)))


def fuse_rope_append(graph: Graph) -> Graph:
    """Joins each Append with the Rope that makes its k and the Rope of the attention behind it,
    where both turn by one table and nobody else reads the rotated k.
    """
    readers = readers_of(graph)
    behind = {n.after: n for n in graph.order if isinstance(n, Attention)}
    merged: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in graph.order:
        attention = behind.get(node.out) if isinstance(node, Append) else None
        if not isinstance(node, Append) or attention is None or readers[node.k] != 1:
            continue
        k, q = graph.producer.get(node.k), graph.producer.get(attention.q)
        if isinstance(k, Rope) and isinstance(q, Rope) and k.table is q.table:
            name = f"{q.name}_append"
            inputs = (q.x, k.x, node.v, q.table, node.cache)
            merged[node] = RopeAppend(name, *inputs, q.out, node.out, q.heads)
            gone |= {k, q}
    nodes = [merged.get(n, n) for n in graph.order if n not in gone]
    return Graph(nodes, graph.outputs)


def readers_of(graph: Graph) -> Counter[Tensor]:
    """How many nodes, and the caller, read each tensor or a slice of it."""
    readers = Counter(t.root for n in graph.order for t in n.inputs)
    readers.update(t.root for t in graph.outputs)
    return readers


def fuse_quantize(graph: Graph) -> Graph:
    """Moves each Quantize into the node that makes its input, where that node can."""
    quantize = {
        n.x: n
        for n in graph.order
        if isinstance(n, Quantize) and can_quantize(graph.producer.get(n.x), n.x)
    }
    moved = set(quantize.values())
    nodes: list[Node] = []
    for node in graph.order:
        if node in moved:
            continue
        if isinstance(node, RmsNorm | Gated | Attention) and node.out in quantize:
            node = replace(node, quantized=quantize[node.out].out)
        nodes.append(node)
    return Graph(nodes, graph.outputs)


def can_quantize(producer: Node | None, x: Tensor) -> bool:
    """Whether the producer of x can write int8 rows besides."""
    if isinstance(producer, RmsNorm):
        return producer.groups == 1 and producer.out is x
    if isinstance(producer, Attention):
        return int(producer.cache.shape[2]) % 32 == 0 and producer.out is x
    return isinstance(producer, Gated) and producer.out is x


def fuse_residual(graph: Graph) -> Graph:
    """Turns Add(a, Linear(...)) into a Linear with a residual when nobody else reads the product;
    LoraUp likewise.
    """
    readers = readers_of(graph)
    gone: set[Node] = set()
    merged: dict[Node, Node] = {}
    for node in graph.order:
        if not isinstance(node, Add):
            continue
        for product, other in ((node.b, node.a), (node.a, node.b)):
            linear = graph.producer.get(product)
            if (
                isinstance(linear, Linear | LoraUp)
                and linear.residual is None
                and readers[product] == 1
                and linear not in gone
            ):
                merged[node] = replace(linear, out=node.out, residual=other)
                gone.add(linear)
                break
    nodes = [merged.get(n, n) for n in graph.order if n not in gone]
    return Graph(nodes, graph.outputs)
