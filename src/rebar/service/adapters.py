"""An engine's adapters, by digest: which slot each has, which are on their way, which may leave.

An adapter comes a few layers a turn, so that those who decode beside it wait no longer than for a
prompt; it leaves when the last choice that uses it has ended. Owned by whoever owns the engine.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rebar.errors import EngineError, RebarError
from rebar.service.messages import AdapterNews, AdapterOrder

if TYPE_CHECKING:
    from rebar.graph.lora import Adapter, AdapterSlots, SlotLoad

TURN_SECONDS = 0.005
"""So long a turn may pack layers while others compute; a layer is packed in any case."""


class EngineAdapters:
    """slots: where adapters are computed from; None for no room. read: opens a folder whose content
    the front has checked, by path and digest.
    """

    def __init__(
        self, slots: AdapterSlots | None, read: Callable[[Path, str], Adapter] | None = None
    ) -> None:
        self._slots, self._read = slots, read
        self._slot: dict[str, int] = {}
        self._users: Counter[str] = Counter()
        self._leaving: set[str] = set()
        self._coming: OrderedDict[str, AdapterOrder] = OrderedDict()
        self._load: SlotLoad | None = None
        self._news: list[AdapterNews] = []

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self._coming)

    @property
    def loaded(self) -> int:
        """Adapters that rows may take."""
        return len(self._slot)

    def obey(self, order: AdapterOrder) -> None:
        """Begins to load, or lets go."""
        digest = order.digest
        if order.path:
            self._leaving.discard(digest)
            if digest in self._slot:
                self._news.append(AdapterNews(digest))
            else:
                self._coming.setdefault(digest, order)
        elif digest in self._coming:
            self._give_up(digest)
        elif digest in self._slot:
            self._leaving.add(digest)
            self._release(digest)

    def advance(self, clock: Callable[[], float]) -> None:
        """Goes on loading for a few milliseconds."""
        began = clock()
        while self._coming:
            digest, order = next(iter(self._coming.items()))
            try:
                self._pack(digest, order)
            except (RebarError, OSError) as error:
                self._give_up(digest)
                self._news.append(AdapterNews(digest, str(error)))
            if clock() - began >= TURN_SECONDS:
                return

    def _pack(self, digest: str, order: AdapterOrder) -> None:
        if self._slots is None or self._read is None:
            raise EngineError("This engine has no room for adapters. Start it with --max-adapters.")
        if self._load is None:
            self._load = self._slots.begin(self._read(Path(order.path), digest))
        if self._load.advance():
            self._slot[digest] = self._load.slot
            self._load = None
            del self._coming[digest]
            self._news.append(AdapterNews(digest))

    def _give_up(self, digest: str) -> None:
        """Forgets one that is on its way; only the first can have a slot already."""
        first = next(iter(self._coming)) == digest
        del self._coming[digest]
        if first and self._load is not None and self._slots is not None:
            self._slots.release(self._load.slot)
            self._load = None

    def news(self) -> list[AdapterNews]:
        """What became of orders since the last call."""
        news, self._news = self._news, []
        return news

    def coming(self, digest: str) -> bool:
        """Whether a choice has to wait for it."""
        return digest in self._coming

    def slot(self, digest: str) -> int:
        """The slot of a choice's adapter, -1 for "". EngineError for one that is not here."""
        if not digest:
            return -1
        if digest not in self._slot:
            raise EngineError("The adapter is not loaded here. Load it, then send this again.")
        return self._slot[digest]

    def enter(self, digest: str) -> None:
        """A choice begins to use it."""
        if digest:
            self._users[digest] += 1

    def leave(self, digest: str) -> None:
        """A choice has ended."""
        if digest:
            self._users[digest] -= 1
            self._release(digest)

    def _release(self, digest: str) -> None:
        if digest in self._leaving and self._users[digest] <= 0 and self._slots is not None:
            self._leaving.discard(digest)
            del self._users[digest]
            self._slots.release(self._slot.pop(digest))

    def check(self, users: Counter[str]) -> None:
        """Asserts that the books agree with the choices held."""
        assert {d: n for d, n in self._users.items() if n} == users, "an adapter has other users"
        assert set(users) <= set(self._slot), "a choice uses an adapter that is not loaded"
        held = len(self._slot) + (self._load is not None)
        assert self._slots is None or held + self._slots.free == self._slots.room.slots, "lost slot"
