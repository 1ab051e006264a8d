"""Slots that adapters are served from: memory that was planned, filled while steps go on, seen by
the kernels all at once.

The law: a slot's memory is written only while no step can read it. Its entries in the tables come
last, between two steps, and go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError, MemoryBudgetError
from rebar.graph.lora.folder import Adapter
from rebar.graph.lora.modules import Place
from rebar.graph.models.adapted import PARTS, PRODUCTS, AdapterRoom, pair_bytes, slot_bytes
from rebar.graph.models.config import DecoderConfig
from rebar.graph.parameters import fill, matrix, view
from rebar.hal import LoraPair, LoraTable, Pool

Tables = Mapping[tuple[int, str], LoraTable]  # by layer and product


class SlotLoad:
    """An adapter on its way into a slot. Each `advance` packs a layer; after the last it is in."""

    def __init__(self, slots: AdapterSlots, slot: int, adapter: Adapter) -> None:
        self.slot, self.adapter = slot, adapter
        self._slots = slots
        self._pairs: dict[Place, LoraPair] = {}
        self._layers = iter(range(slots.config.layers))

    def advance(self) -> bool:
        """Packs the next layer; True when rows may take the slot."""
        layer = next(self._layers, None)
        if layer is None:
            self._slots.install(self.slot, self._pairs)
            return True
        for place, low in self.adapter.parts.items():
            if place.layer == layer:
                a, b = low.matrices()
                self._pairs[place] = self._slots.pack(self.slot, place, a, b, low.scale)
        return False


class AdapterSlots:
    """`room.slots` slots out of `pool`, behind the tables of a decoder."""

    def __init__(
        self, config: DecoderConfig, room: AdapterRoom, pool: Pool, tables: Tables
    ) -> None:
        self.config, self.room = config, room
        self._tables = tables
        nbytes = slot_bytes(config, room)
        self._memory = [
            pool.allocate(nbytes, f"adapter {slot}").bytes()[:nbytes].view(np.float32)
            for slot in range(room.slots)
        ]
        self._free = list(range(room.slots - 1, -1, -1))
        self._products: dict[int, frozenset[str]] = {}
        self._offsets = dict(self._places())

    def _places(self) -> Iterator[tuple[Place, tuple[int, int]]]:
        """Where a slot keeps A and B of each part."""
        at = 0
        for layer in range(self.config.layers):
            for part in (part for part in PARTS if part in self.room.parts):
                a, b = pair_bytes(self.config, part, self.room.rank)
                yield Place(layer, part), (at, at + a)
                at += a + b

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def check(self, adapter: Adapter) -> None:
        """Raises InputError for an adapter that no slot could hold."""
        if adapter.rank > self.room.rank:
            raise InputError(
                f"{adapter.path}: rank {adapter.rank}, and slots were planned for "
                f"{self.room.rank}. Load with --max-lora-rank {adapter.rank}.",
                param="lora_path",
                code="rank_too_large",
            )

    def begin(self, adapter: Adapter) -> SlotLoad:
        """Takes a slot for an adapter. MemoryBudgetError when none is free."""
        self.check(adapter)
        if not self._free:
            raise MemoryBudgetError(
                f"all {self.room.slots} slots hold adapters. Unload one, or load with a larger "
                "--max-adapters.",
                needed=1,
                available=0,
            )
        return SlotLoad(self, self._free.pop(), adapter)

    def load(self, adapter: Adapter) -> int:
        """The whole way at once; gives the slot."""
        loading = self.begin(adapter)
        while not loading.advance():
            pass
        return loading.slot

    def release(self, slot: int) -> None:
        """Empties a slot that no sequence uses any more."""
        self.install(slot, {})
        self._free.append(slot)

    def install(self, slot: int, pairs: Mapping[Place, LoraPair]) -> None:
        """What the kernels see of a slot from now on."""
        parts = {place.part for place in pairs}
        changed = (product for product, of in PRODUCTS.items() if not parts.isdisjoint(of))
        self._products[slot] = frozenset(changed)
        for (layer, product), table in self._tables.items():
            for i, part in enumerate(PRODUCTS[product]):
                table.put(slot, i, pairs.get(Place(layer, part)))

    def products(self, slots: Iterable[int]) -> frozenset[str]:
        """The products of a layer that one of these slots changes."""
        nothing: frozenset[str] = frozenset()
        return nothing.union(*(self._products.get(slot, nothing) for slot in slots))

    def pack(
        self,
        slot: int,
        place: Place,
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        scale: float,
    ) -> LoraPair:
        """A part's matrices in the slot's memory, as kernels read them."""
        first, second = (
            matrix(view(self._memory[slot], at // 4, values.shape))
            for at, values in zip(self._offsets[place], (a, b), strict=True)
        )
        fill(first, a)
        fill(second, b)
        return LoraPair(first, second, scale)
