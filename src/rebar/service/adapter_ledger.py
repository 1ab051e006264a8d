"""Which adapters the next engine has to load, and which may have ended the one before."""

from __future__ import annotations

from collections.abc import Iterable

from rebar.service.messages import AdapterNews, AdapterOrder, Orders


class AdapterLedger:
    """Kept by a supervisor. most: deaths of engines while they loaded an adapter after which it is
    taken for their cause.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._orders: dict[str, AdapterOrder] = {}
        self._strikes: dict[str, int] = {}  # of those that this engine has not loaded yet

    def given(self, orders: Iterable[AdapterOrder]) -> None:
        """What the front asked for."""
        for order in orders:
            if order.path:
                self._orders[order.digest] = order
                self._strikes[order.digest] = 0
            else:
                self._orders.pop(order.digest, None)
                self._strikes.pop(order.digest, None)

    def heard(self, news: Iterable[AdapterNews]) -> None:
        """What the engine said of them."""
        for item in news:
            self._strikes.pop(item.digest, None)
            if item.error:
                self._orders.pop(item.digest, None)

    def again(self) -> Orders:
        """For an engine that takes over: everything."""
        self._strikes = {digest: self._strikes.get(digest, 0) for digest in self._orders}
        return Orders(adapters=list(self._orders.values()))

    def strike(self) -> list[AdapterNews]:
        """An engine has ended. Lets go of what it was loading too often: the first of those that
        were on their way, for they come one after another.
        """
        suspect = next(iter(self._strikes), None)
        if suspect is None:
            return []
        self._strikes[suspect] += 1
        if self._strikes[suspect] < self._most:
            return []
        del self._strikes[suspect], self._orders[suspect]
        text = f"The engine ended {self._most} times while it loaded this adapter."
        return [AdapterNews(suspect, text)]
