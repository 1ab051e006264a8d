"""A client's connection, with an end to every wait: for a request that does not come whole, for a
reader that does not read. And with an end to what a request may bring besides its body.

The law: what waits for a client costs only that client. A transport above its high-water mark
(64 KiB unsent) pauses its own stream, deltas that come meanwhile are joined (router.RequestStream),
and when the mark is not left within `TimeLimits.write` the connection is reset. It is not closed
politely: a close waits until everything is sent, to somebody who does not read.

An offer to speak another protocol (`Upgrade: h2c`, which Java's client and `curl --http2` add to
every request) is not taken up, as HTTP allows: the request is answered as if it had not been made.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, cast

import httptools
import msgspec
import uvicorn
from fastapi import FastAPI
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from rebar.service.http.errors import ErrorBody, HttpError, describe
from rebar.service.http.lifecycle import TimeLimits
from rebar.service.http.metrics import ServiceMetrics

log = logging.getLogger("rebar.service.request")

BACKLOG = 4096
"""Connections that wait to be accepted: as many as Linux allows by default (somaxconn)."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request before its body, and of what stands between two parts of a body in chunks. A part as
large as one read of the socket (256 KiB) may come on top."""
LINGER_BYTES, LINGER_SECONDS = 8 << 20, 2.0
"""What a client may still send, and for how long, after an answer that ended its request early."""
_OFFER = re.compile(rb"upgrade|connection|http2-settings", re.IGNORECASE)
REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
CUT_OFF = "cut_off"
"""Key in the scope's `state`: why the connection was reset."""
REFUSED = "refused"
"""Key in the scope's `state`: the status that a request got whose body was none."""


class ServerConfig(uvicorn.Config):
    """uvicorn's, with our limits and connections."""

    def __init__(self, app: FastAPI, limits: TimeLimits) -> None:
        """app: as create_app makes it, with its metrics."""
        super().__init__(
            app,
            loop="uvloop",
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
        self.limits = limits
        self.metrics: ServiceMetrics = app.state.metrics


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
        self._metrics = config.metrics
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._bare = 0  # bytes since the last part of a body, or the last request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its request has to follow."""
        self._spare_bytes: int | None = None  # that may still come; they are not read
        self._all_said = False
        gentle = cast("asyncio.Transport", _Gentle(transport, self))
        super().connection_made(gentle)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._spare_bytes is not None:
            self._spare_bytes -= len(data)
            if self._spare_bytes < 0:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self._bare += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(HttpError(400, "This is no HTTP request.", "invalid_http"))
        if self._bare > MAX_HEAD_BYTES:
            message = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes. Send less."
            self._refuse(HttpError(431, message, "head_too_large"))

    def on_message_begin(self) -> None:
        """The first byte of a request, which may be the second of a connection."""
        super().on_message_begin()
        self._expect_request()

    def on_headers_complete(self) -> None:
        """The head is whole. One with an offer comes a second time, without."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._bare = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._bare = 0
        if not self.parser.should_upgrade():
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

    def _decline(self, rest: bytes) -> None:
        """Reads a request with an offer again, without it. rest: what came after its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(HttpError(400, "This is no proxy.", "invalid_http"))
            return
        head = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        head += [b"%b: %b" % pair for pair in self.headers if not _OFFER.fullmatch(pair[0])]
        self.parser, self._bare = httptools.HttpRequestParser(self), 0
        self.data_received(b"\r\n".join([*head, b"", rest]))

    def _refuse(self, error: HttpError) -> None:
        """Says what was wrong and ends the connection. What follows a whole request that is being
        answered ends it after that answer, without a word: words would go into its stream.
        """
        if self.transport.is_closing():
            return
        log.info("- other %d: %s", error.status, error)
        if self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete):
            self.cycle.keep_alive, self._spare_bytes = False, LINGER_BYTES
            self._metrics.refused(error.status)
            return
        status, what = describe(error)
        body = msgspec.json.encode(ErrorBody(what))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            line = b"HTTP/1.1 %d %b\r\n" % (status, REASONS[status])
            self.transport.write(line + head % len(body) + b"\r\n" + body)
            self._count_refused(status)
        self.linger()

    def _count_refused(self, status: int) -> None:
        """Once: a request whose head was whole has a record in the middleware, which ends now."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.scope["state"][REFUSED] = status
        else:
            self._metrics.refused(status)

    @property
    def lingering(self) -> bool:
        """Whether all is said and only the client's last bytes are waited for."""
        return self._all_said

    @property
    def halfway(self) -> bool:
        """Whether the client is in the middle of a request."""
        return self.cycle is not None and self.cycle.more_body

    def linger(self) -> None:
        """Ends our side and drops what the client still sends, for a while.

        Closed with bytes unread, the kernel resets the connection, and a client that is still
        sending loses the answer that says why it should not: nginx made a 502 of a 413.
        """
        if not self._all_said:
            self._all_said, self._spare_bytes = True, LINGER_BYTES
            self.transport.write_eof()
            self.flow.resume_reading()
            _cancel(self._reading)
            self._reading = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _expect_request(self) -> None:
        _cancel(self._reading)
        self._reading = self.loop.call_later(self._limits.read, self._lost_patience)

    def _lost_patience(self) -> None:
        """A request has not come whole. One that follows another on its connection may wait for as
        long as that one is being answered: nobody reads it meanwhile.
        """
        before = self.cycle
        answering = before is not None and not (before.more_body or before.response_complete)
        if answering or self.flow.read_paused:
            self._expect_request()
        else:
            self._cut("slow_request")

    def _cut(self, why: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.scope["state"][CUT_OFF] = why  # counted where the request ends
        else:
            self._metrics.cut_off(why)
        self.transport.abort()


class DirectBody:
    """Writes parts of an answer into its connection at once. The server's own `send` does the same
    with an await, a message and a look at everything that cannot have changed since the head.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @classmethod
    def of(cls, send: Send) -> DirectBody | None:
        """For the answer whose head went through this `send` of the server's; None where it is not
        sent in chunks by this server.
        """
        cycle = getattr(send, "__self__", None)
        if not isinstance(cycle, RequestResponseCycle) or cycle.scope["method"] == "HEAD":
            return None
        return cls(cycle) if cycle.chunked_encoding else None

    @property
    def ready(self) -> bool:
        """Whether the connection takes more now: its client reads, and is there."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, part: bytes) -> None:
        """A part, not empty. Only when ready."""
        self._write(b"%x\r\n%b\r\n" % (len(part), part))


class _Gentle:
    """A connection's transport whose `close` lets a client finish its sentence."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self.write = transport.write  # once an event: no look-up in between

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is answered."""
        return self._connection.lingering or self._transport.is_closing()

    def close(self) -> None:
        """At once when all was read, else as soon as that is so."""
        if self._connection.halfway and not self._transport.is_closing():
            self._connection.linger()
        elif not self._connection.lingering:
            self._transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
