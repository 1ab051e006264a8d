"""The front's adapters of one model: by what names clients ask for them, and how many choices use
each. The engine knows them by digest only.

The law: an adapter that is listed is loaded, or on its way to the engine of the moment. One that is
taken off the list is no longer found by name; its open choices go on, and the engine lets go of it
when the last of them has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from rebar.errors import EngineError, InputError, ModelNameError
from rebar.service.messages import AdapterNews, AdapterOrder, Orders
from rebar.service.model import ServedAdapter

log = logging.getLogger("rebar.service")

LOAD_SECONDS = 60.0
"""An engine that has not loaded an adapter by then never will; a restart in between is well within
it."""
NAME_TAKEN = "adapter_exists"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", re.ASCII)


class TakenAdapter(Protocol):
    """An adapter that was copied and checked (rebar.graph.lora.Adapter)."""

    @property
    def path(self) -> Path:
        """Folder of the copy."""

    @property
    def digest(self) -> str:
        """sha256 of its files, in hex."""


class AdapterSource(Protocol):
    """Where adapters come from (rebar.dataflow.adapters.AdapterStore)."""

    def take(self, folder: Path, /) -> TakenAdapter:
        """Copies and checks one. ModelFileError, InputError."""


class AdapterBook:
    """source, slots: None and 0 for no room. give: sends orders to whoever computes; set by the
    service that owns the book.
    """

    def __init__(self, source: AdapterSource | None = None, slots: int = 0) -> None:
        self.source, self.slots = source, slots
        self.give: Callable[[Orders], bool] = lambda orders: False
        self.taken: frozenset[str] = frozenset()  # names that the model itself has
        self._listed: dict[str, ServedAdapter] = {}
        self._paths: dict[str, str] = {}
        self._pending: dict[str, tuple[str, asyncio.Future[str]]] = {}
        self._users: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    @property
    def listed(self) -> list[ServedAdapter]:
        """In the order in which they came."""
        return list(self._listed.values())

    def get(self, name: str) -> ServedAdapter | None:
        """The adapter of that name."""
        return self._listed.get(name)

    def open_choices(self, adapter: ServedAdapter) -> int:
        """Choices in progress that use it."""
        return self._users[adapter.digest]

    def accepted(self, adapter: ServedAdapter) -> int:
        """Choices that used it since it was loaded."""
        return self._accepted[adapter.digest]

    def take(self, name: str, folder: Path) -> TakenAdapter:
        """Copies and checks an adapter; may take long, and needs no loop. InputError, and
        ModelFileError for what is wrong with the folder.
        """
        self._check_name(name)
        if self.source is None:
            raise InputError(
                "There is no room for adapters here. Start the server with --max-adapters.",
                param="lora_name",
                code="no_room_for_adapters",
            )
        return self.source.take(folder)

    def preload(self, name: str, taken: TakenAdapter, source: str) -> None:
        """Lists one before the service starts; `orders` then loads it."""
        self._check_room(name, taken.digest)
        self._list(name, taken, source)

    def orders(self) -> Orders:
        """What loads all that is listed."""
        digests = dict.fromkeys(adapter.digest for adapter in self.listed)
        return Orders(adapters=[AdapterOrder(digest, self._paths[digest]) for digest in digests])

    async def load(self, name: str, taken: TakenAdapter, source: str) -> ServedAdapter:
        """Loads one while others are served; it is listed when rows can take it. InputError for a
        name that is taken and where no slot is free, EngineError when the engine says no.
        """
        self._check_room(name, taken.digest)
        waiter = asyncio.get_running_loop().create_future()
        self._pending[name] = taken.digest, waiter
        try:
            if not self.give(Orders(adapters=[AdapterOrder(taken.digest, str(taken.path))])):
                raise EngineError("The engine is not running. Try again when /health says ok.")
            error = await asyncio.wait_for(waiter, LOAD_SECONDS)
            if error:
                raise EngineError(f"The adapter could not be loaded: {error}")
            return self._list(name, taken, source)
        except TimeoutError:
            raise EngineError(
                f"The adapter was not loaded within {LOAD_SECONDS:.0f} s. Try again later."
            ) from None
        finally:
            del self._pending[name]
            self._let_go(taken.digest)

    def unload(self, name: str) -> ServedAdapter:
        """Takes one off the list. ModelNameError for a name that is none."""
        adapter = self._listed.pop(name, None)
        if adapter is None:
            raise ModelNameError(
                f"No adapter {name[:200]!r} is loaded. GET /v1/models lists those that are.",
                param="lora_name",
                code="adapter_not_found",
            )
        self._let_go(adapter.digest)
        return adapter

    def news(self, news: Iterable[AdapterNews]) -> None:
        """What an engine said. One that cannot be loaded again after a restart is taken off."""
        for item in news:
            for digest, waiter in self._pending.values():
                if digest == item.digest and not waiter.done():
                    waiter.set_result(item.error)
            if item.error:
                for adapter in [a for a in self.listed if a.digest == item.digest]:
                    log.error("adapter %s is gone: %s", adapter.name, item.error)
                    self.unload(adapter.name)

    def enter(self, digest: str, choices: int) -> None:
        """So many choices begin with an adapter, or "" for none. ModelNameError when it has just
        been taken off the list.
        """
        if not digest:
            return
        names = [adapter.name for adapter in self.listed if adapter.digest == digest]
        if not names:
            raise ModelNameError(
                "This adapter was just unloaded. GET /v1/models lists what is served.",
                param="model",
                code="model_not_found",
            )
        self._users[digest] += choices
        self._accepted[digest] += choices

    def leave(self, digest: str, choices: int = 1) -> None:
        """So many choices have ended; the engine was told before, or told us."""
        if not digest:
            return
        self._users[digest] -= choices
        if not self._users[digest]:
            del self._users[digest]
            self._let_go(digest)

    def _list(self, name: str, taken: TakenAdapter, source: str) -> ServedAdapter:
        self._paths[taken.digest] = str(taken.path)
        adapter = ServedAdapter(name, taken.digest, source, int(time.time()))
        self._listed[name] = adapter
        return adapter

    def _needed(self) -> set[str]:
        """Digests that must stay loaded."""
        pending = {digest for digest, _ in self._pending.values()}
        return {a.digest for a in self.listed} | pending | set(self._users)

    def _let_go(self, digest: str) -> None:
        if digest not in self._needed():
            self._paths.pop(digest, None)
            self._accepted.pop(digest, None)
            self.give(Orders(adapters=[AdapterOrder(digest)]))

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(
                "An adapter's name has 1 to 128 letters, digits or . _ : / @ + -, and begins with "
                "a letter or a digit. Choose another.",
                param="lora_name",
            )
        if name in self._listed or name in self._pending or name in self.taken:
            raise InputError(
                f"The name {name!r} is taken. Unload that adapter first, or choose another name.",
                param="lora_name",
                code=NAME_TAKEN,
            )

    def _check_room(self, name: str, digest: str) -> None:
        self._check_name(name)
        needed = self._needed() | {digest}
        if len(needed) > self.slots:
            raise InputError(
                f"All {self.slots} places for adapters are in use. Unload one (its open answers "
                "are finished first), or start the server with a larger --max-adapters.",
                param="lora_name",
                code="adapters_full",
            )
