"""What one request waits for: the deltas of its choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rebar.service.messages import Delta, RequestPacket


class RequestStream:
    """The deltas of one request's choices, in order, as they come. One task reads it.

    What piled up while the reader was busy is joined, one delta a choice: a client that does not
    read holds its text and a number a token. Close it in every case: that is what cancels.
    """

    def __init__(
        self, cancel: Callable[[list[int]], None], packets: list[RequestPacket], started: float
    ) -> None:
        self.started = started
        self._cancel = cancel
        self._open = {packet.ticket for packet in packets}
        self._index = {packet.ticket: packet.index for packet in packets}
        self._arrived: dict[int, Delta] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._pass_on: Callable[[Delta], bool] | None = None
        self.timer: asyncio.TimerHandle | None = None  # its end, when it lasts too long

    @property
    def done(self) -> bool:
        """Whether every choice has ended and been read."""
        return not self._open and not self._arrived

    def index(self, delta: Delta) -> int:
        """The number of the choice a delta belongs to."""
        return self._index[delta.ticket]

    async def next(self) -> list[Delta]:
        """What has come since the last call, at least one delta."""
        if not self._arrived:
            # Not an asyncio.Event: this is once a token, and an Event costs three times as much.
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, {}
        return list(arrived.values())

    def pass_on(self, take: Callable[[Delta], bool]) -> None:
        """From now on `take` gets deltas as they come, without a turn of the loop and a task in
        between: while the reader waits in next(), and but for the last ones. One it says False to
        is for the reader. What it raises next() raises.
        """
        self._pass_on = take

    def put(self, delta: Delta) -> None:
        """Called by the router."""
        waiter = self._waiter if self._waiter is not None and not self._waiter.done() else None
        if waiter is not None and self._pass_on is not None and not delta.last:
            try:
                if self._pass_on(delta):
                    return
            except Exception as error:
                waiter.set_exception(error)
                return
        before = self._arrived.get(delta.ticket)
        if before is None:
            self._arrived[delta.ticket] = delta
        else:
            before.join(delta)
        if delta.last:
            self._open.discard(delta.ticket)
        if waiter is not None:
            waiter.set_result(None)

    def close(self) -> None:
        """Gives up what is not finished. Harmless when all is."""
        if self.timer is not None:
            self.timer.cancel()
        tickets, self._open = list(self._open), set()
        if tickets:
            self._cancel(tickets)
