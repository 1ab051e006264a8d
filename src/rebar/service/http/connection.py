"""A client's connection, with an end to every wait: for a request that does not come whole, for a
reader that does not read.

The law: what waits for a client costs only that client. A transport above its high-water mark
(64 KiB unsent) pauses its own stream, deltas that come meanwhile are joined (router.RequestStream),
and when the mark is not left within `TimeLimits.write` the connection is reset. It is not closed
politely: a close waits until everything is sent, to somebody who does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rebar.service.http.lifecycle import TimeLimits

CUT_OFF = "cut_off"
"""Key in the scope's `state`: why the connection was reset."""


class ServerConfig(uvicorn.Config):
    """uvicorn's, with our limits and connections."""

    def __init__(self, app: ASGIApp, limits: TimeLimits) -> None:
        super().__init__(
            app,
            loop="uvloop",
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
        self.limits = limits


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with two timers."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ServerConfig)
        self._limits = config.limits
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its request has to follow."""
        super().connection_made(transport)
        self._expect_request()

    def on_message_begin(self) -> None:
        """The first byte of a request, which may be the second of a connection."""
        super().on_message_begin()
        self._expect_request()

    def on_message_complete(self) -> None:
        """A request is whole."""
        super().on_message_complete()
        _cancel(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side has ended it."""
        _cancel(self._reading)
        _cancel(self._writing)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is unsent than the high-water mark."""
        super().pause_writing()
        self._writing = self.loop.call_later(self._limits.write, self._cut, "slow_reader")

    def resume_writing(self) -> None:
        """Less is unsent than the low-water mark."""
        _cancel(self._writing)
        super().resume_writing()

    def _expect_request(self) -> None:
        _cancel(self._reading)
        self._reading = self.loop.call_later(self._limits.read, self._cut, "slow_request")

    def _cut(self, why: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.scope["state"][CUT_OFF] = why
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
