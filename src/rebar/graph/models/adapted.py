"""Where a decoder can have adapters: the parts of each layer, their sizes, and the nodes behind
their products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rebar import _native
from rebar.graph.builder import Builder
from rebar.graph.models.config import DecoderConfig
from rebar.graph.nodes_lora import adapters_shape
from rebar.graph.tensor import Tensor
from rebar.hal import WeightFormat, aligned

MAX_RANK = 1024
_F32 = int(WeightFormat.F32)

# A layer's products, and the parts that stand side by side in the output of each.
PRODUCTS: dict[str, tuple[str, ...]] = {
    "qkv": ("q", "k", "v"),
    "out": ("out",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}
PARTS: tuple[str, ...] = tuple(part for parts in PRODUCTS.values() for part in parts)


def part_shape(c: DecoderConfig, part: str) -> tuple[int, int]:
    """(outputs, inputs) of a part of a layer."""
    if part in ("q", "k", "v"):
        heads = c.heads if part == "q" else c.kv_heads
        return heads * c.head_dim, c.width
    if part == "out":
        return c.width, c.heads * c.head_dim
    return (c.width, c.mlp_width) if part == "down" else (c.mlp_width, c.width)


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """How many adapters a decoder can hold, of what rank at most, and for which parts."""

    slots: int
    rank: int
    parts: frozenset[str] = frozenset(PARTS)


def pair_bytes(config: DecoderConfig, part: str, rank: int) -> tuple[int, int]:
    """Bytes of A (rank, k) and of B (n, rank) of a part, packed."""
    n, k = part_shape(config, part)
    a, b = _native.packed_nbytes(_F32, rank, k), _native.packed_nbytes(_F32, n, rank)
    return aligned(a), aligned(b)


def slot_bytes(config: DecoderConfig, room: AdapterRoom) -> int:
    """Bytes of one slot: an adapter of the largest rank on every part it may change."""
    layer = sum(sum(pair_bytes(config, part, room.rank)) for part in PARTS if part in room.parts)
    return config.layers * layer


@dataclass(frozen=True, slots=True)
class Adapted:
    """Puts adapters behind products while a decoder is built. tables: what holds them, by layer and
    product.
    """

    config: DecoderConfig
    room: AdapterRoom | None
    tables: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    def __call__(self, g: Builder, layer: int, name: str, x: Tensor, product: Tensor) -> Tensor:
        """The product `name` of x with what adapters add; the product itself where they may not."""
        room = self.room
        if room is None or room.parts.isdisjoint(PRODUCTS[name]):
            return product
        shapes = [part_shape(self.config, part) for part in PRODUCTS[name]]
        widths = tuple(n for n, _ in shapes)
        shape = adapters_shape(room.slots, room.rank, shapes[0][1], widths)
        table = self.tables[layer, name] = Tensor(f"layers.{layer}.{name}.adapters", shape, "lora")
        return g.adapted(name, x, product, table)
