"""Where a server stands in its life, and how long it waits for whom.

The law: after the first signal nothing new is begun and what is open may finish, for as long as
`TimeLimits.drain`. The port stays open meanwhile, so that who comes is told where to turn to
(503, Retry-After, Connection: close) instead of finding nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from rebar.errors import InputError

OPERATIONS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""Paths that machines ask every few seconds: answered while draining, and no work of a client's."""

MAX_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds that the server waits.

    drain: for open requests after a signal. request: for a whole answer, from its admission.
    write: for a client that does not take what is sent. read: for a request to arrive whole, from
    its first byte, or from the connection when no byte comes. block: how long the event loop may
    be held up before that is logged.
    """

    drain: float = 10.0
    request: float = 600.0
    write: float = 30.0
    read: float = 30.0
    block: float = 0.25

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value <= MAX_SECONDS or (value == 0 and name != "drain"):
                raise InputError(
                    f"{value} is no time to wait. Give seconds, more than 0 and at most "
                    f"{MAX_SECONDS:.0f}.",
                    param=name,
                )


class Lifecycle:
    """What the middleware counts and the server asks. One event loop owns it; `drain` may be
    called by a signal handler."""

    def __init__(
        self, limits: TimeLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or TimeLimits()
        self.open = 0  # requests of clients in progress
        self._clock = clock
        self._deadline: float | None = None

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return self._deadline is not None

    @property
    def drained(self) -> bool:
        """Whether the server may end: nothing is open, or it lasted too long."""
        return self._deadline is not None and (self.open == 0 or self._clock() >= self._deadline)

    @property
    def retry_after(self) -> int:
        """Seconds until this address may be served again: the last open request is over then."""
        left = 0.0 if self._deadline is None else self._deadline - self._clock()
        return max(1, math.ceil(left))

    def drain(self) -> None:
        """Begins to refuse."""
        if self._deadline is None:
            self._deadline = self._clock() + self.limits.drain
