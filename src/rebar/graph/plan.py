"""The memory plan: every activation gets a place in one arena, and places are used again once their
tensor is dead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.graph.node import Node, Values
from rebar.graph.tensor import GROUPS, Tensor
from rebar.hal import Block, Domain, Limits, Operand, Pool, QuantizedRows, Rows, aligned

SLACK = 4096
"""Of a pool that holds one arena: rounding up to its alignment."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a tensor lies in the arena, and the nodes (by place in the order) between which it must
    stay.
    """

    offset: int
    nbytes: int
    born: int
    dies: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements of all activations; nbytes: the arena they need together."""

    placements: Mapping[Tensor, Placement]
    nbytes: int

    def bind(self, arena: Block, limits: Limits, bound: Mapping[Tensor, Operand]) -> Values:
        """Memory for every tensor: the arena's for activations, the caller's for the rest."""
        operands: dict[Tensor, Operand] = dict(bound)
        memory = arena.bytes()
        for tensor, at in self.placements.items():
            operands[tensor] = activation(tensor, memory[at.offset : at.offset + at.nbytes], limits)
        return Values(operands)

    def allocate(
        self, pool: Pool, limits: Limits, bound: Mapping[Tensor, Operand], what: str
    ) -> Values:
        """`bind` with an arena of this plan's own from the pool."""
        return self.bind(pool.allocate(max(self.nbytes, 1), what), limits, bound)


def activation(tensor: Tensor, memory: NDArray[np.uint8], limits: Limits) -> Rows | QuantizedRows:
    """An activation of the most rows at the beginning of memory."""
    count = count_of(tensor, limits)
    if tensor.dtype in GROUPS:
        stride = _native.quantized_stride(tensor.width)
        raw = memory[: count * stride].reshape(count, stride)
        return QuantizedRows(raw, tensor.width, GROUPS[tensor.dtype])
    floats = memory.view(np.float32)[: count * tensor.width]
    return Rows(floats.reshape(count, tensor.width))


def count_of(tensor: Tensor, limits: Limits) -> int:
    """Most rows of an activation; work of a fixed number of rows needs no more than a step has."""
    size = tensor.shape[0]
    return size.rows(limits) if isinstance(size, Domain) else min(size, limits.rows)


def nbytes_of(tensor: Tensor, limits: Limits) -> int:
    """Bytes of an activation for the most rows."""
    row = _native.quantized_stride(tensor.width) if tensor.dtype in GROUPS else tensor.width * 4
    return aligned(max(count_of(tensor, limits), 1) * row)


def make_plan(
    order: Sequence[Node], kept: Sequence[Tensor], limits: Limits, *, reuse: bool = True
) -> Plan:
    """Greedy by size (Pisarchyk & Lee, arXiv:2001.03288): the largest tensor first, each at the
    lowest offset where it meets no tensor alive at the same time. `kept` outlive the last node.
    reuse False: no place is used twice (for watching).
    """
    lives = lifetimes(order, kept)
    if not reuse:
        lives = dict.fromkeys(lives, (0, len(order)))
    needs = {t: (nbytes_of(t, limits), lives[t], t.name) for t in lives}
    placements = place(needs)
    return Plan(placements, extent(placements.values()))


Key = TypeVar("Key", bound=Hashable)


def place(needs: Mapping[Key, tuple[int, tuple[int, int], str]]) -> dict[Key, Placement]:
    """Places for what needs (bytes, (born, dies)); the name decides between equals."""
    placements: dict[Key, Placement] = {}
    for key, (nbytes, (born, dies), _) in sorted(
        needs.items(), key=lambda n: (-n[1][0], n[1][1], n[1][2])
    ):
        rivals = [p for p in placements.values() if p.born <= dies and born <= p.dies]
        placements[key] = Placement(lowest_gap(rivals, nbytes), nbytes, born, dies)
    return placements


def extent(placements: Iterable[Placement]) -> int:
    """Bytes of an arena that holds them."""
    return max((p.offset + p.nbytes for p in placements), default=0)


def lifetimes(order: Sequence[Node], kept: Sequence[Tensor]) -> dict[Tensor, tuple[int, int]]:
    """First and last node, by place, that touch each activation that a node writes."""
    lives: dict[Tensor, tuple[int, int]] = {}
    for i, node in enumerate(order):
        for tensor in node.outputs:
            if tensor.dtype != "order":
                lives[tensor.root] = (i, i)
        for tensor in node.inputs:
            if tensor.root in lives:
                lives[tensor.root] = (lives[tensor.root][0], i)
    for tensor in kept:
        lives[tensor.root] = (lives[tensor.root][0], len(order))
    return lives


def lowest_gap(rivals: Sequence[Placement], nbytes: int) -> int:
    """The lowest offset at which nbytes bytes overlap no rival."""
    offset = 0
    for rival in sorted(rivals, key=lambda p: p.offset):
        if offset + nbytes <= rival.offset:
            break
        offset = max(offset, rival.offset + rival.nbytes)
    return offset
