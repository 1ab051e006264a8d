"""Running the HTTP server: the port first, then the model, then requests until a signal.

One SIGTERM or SIGINT: new requests get a 503, open ones finish, those that last longer than the
limit end with an error, exit code 0. A second signal ends the process at once. An engine process
leaves when its connection to this one ends, however that comes about.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from rebar.errors import InputError
from rebar.hal.processes import allow_connections
from rebar.service.collector import settle
from rebar.service.http.access import Access
from rebar.service.http.app import create_app
from rebar.service.http.connection import BACKLOG, ServerConfig
from rebar.service.http.lifecycle import Lifecycle, TimeLimits
from rebar.service.router import ModelService, ServiceRouter

log = logging.getLogger("rebar.service")

ACCEPTS = 4
"""Connections accepted in a turn of the event loop. libuv takes one a listening socket, and a turn
of a busy front lasts a millisecond: a burst of thousands waited for seconds, and the kernel reset
those it could not keep. A connection that comes alone costs 4 us more for each look in vain; with
four, accepting keeps up with reading what was accepted."""
MAX_UNSENT_BYTES = 64 * 1024
"""What the kernel holds of a connection and has not sent; else it takes up to 4 MB of a stream that
nobody reads, and we learn of it only then. Accepted sockets inherit it."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises InputError when the port cannot be had.

    It listens at once: two servers that merely bind the same port would both believe to have it.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"Port {port} does not exist; ports are 0 to 65535.", param="port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"Port {port} on {host} cannot be used: {reason}. Stop the program that has it, or "
            "choose another with --port (0 takes a free one).",
            param="port",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
    return sock


def listeners(sock: socket.socket) -> list[socket.socket]:
    """The socket, once for each connection that a turn accepts. All of them are to be closed."""
    return [sock, *(sock.dup() for _ in range(ACCEPTS - 1))]


def serve(
    load: Callable[[], ModelService],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: TimeLimits | None = None,
    access: Access | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serves until a signal. `load` is called once the port is ours; `on_ready` gets the address.

    Raises InputError for a port that cannot be had, and whatever `load` raises.
    """
    sock = bind(host, port)
    allow_connections()
    with contextlib.closing(sock):
        router = ServiceRouter([load()])
        settle()
        server = GracefulServer(router, Lifecycle(limits), on_ready, access)
        server.run(sockets=listeners(sock))


class GracefulServer(uvicorn.Server):
    """uvicorn with the signal rules above."""

    def __init__(
        self,
        router: ServiceRouter,
        lifecycle: Lifecycle | None = None,
        on_ready: Callable[[str], None] | None = None,
        access: Access | None = None,
    ) -> None:
        self._lifecycle = lifecycle or Lifecycle()
        for service in router.services:
            service.request_seconds = self._lifecycle.limits.request
        app = create_app(router, self._lifecycle, access)
        super().__init__(ServerConfig(app, self._lifecycle.limits))
        self._router = router
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to answer, then says so."""
        await super().startup(sockets=sockets)
        if self._on_ready and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        return await super().on_tick(counter) or self._lifecycle.drained

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what is still open with an error, tells the clients, then ends the workers."""
        self._router.abandon()
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGTERM and SIGINT; unlike uvicorn's own, does not raise them again."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end at once, with the shell's exit code for that signal."""
        if self._lifecycle.draining:
            log.warning("second signal: ending now, open requests are lost")
            os._exit(128 + sig)
        limit = self._lifecycle.limits.drain
        log.info(
            "signal %d: finishing %d open requests, at most %.0f s; new ones get a 503",
            sig,
            self._lifecycle.open,
            limit,
        )
        self._lifecycle.drain()
