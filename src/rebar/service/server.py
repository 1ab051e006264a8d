"""Running the HTTP server: the port first, then the model, then requests until a signal.

One SIGTERM or SIGINT: no new connections, open requests finish, those that last longer than the
grace end with an error, exit code 0. A second signal ends the process at once. An engine process
leaves when its connection to this one ends, however that comes about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from rebar.errors import InputError
from rebar.service.http.app import create_app
from rebar.service.router import ModelService, ServiceRouter

log = logging.getLogger("rebar.service")

DEFAULT_GRACE_SECONDS = 10.0
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises InputError when the port cannot be had.

    It listens at once: two servers that merely bind the same port would both believe to have it.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"Port {port} does not exist; ports are 0 to 65535.", param="port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"Port {port} on {host} cannot be used: {reason}. Stop the program that has it, or "
            "choose another with --port (0 takes a free one).",
            param="port",
        ) from error


def serve(
    load: Callable[[], ModelService],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serves until a signal. `load` is called once the port is ours; `on_ready` gets the address.

    Raises InputError for a port that cannot be had, and whatever `load` raises.
    """
    sock = bind(host, port)
    with contextlib.closing(sock):
        router = ServiceRouter([load()])
        server = GracefulServer(router, grace_seconds, on_ready)
        server.run(sockets=[sock])


class GracefulServer(uvicorn.Server):
    """uvicorn with the signal rules above."""

    def __init__(
        self,
        router: ServiceRouter,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            create_app(router),
            loop="uvloop",
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(grace_seconds) + 2),
        )
        super().__init__(config)
        self._router = router
        self._grace = grace_seconds
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to answer, then says so."""
        await super().startup(sockets=sockets)
        if self._on_ready and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets open requests finish, for as long as the grace."""
        timer = asyncio.get_running_loop().call_later(self._grace, self._router.abandon)
        try:
            await super().shutdown(sockets=sockets)
        finally:
            timer.cancel()

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
        if self.should_exit:
            log.warning("second signal: ending now, open requests are lost")
            os._exit(128 + sig)
        log.info("signal %d: finishing open requests, at most %.0f s", sig, self._grace)
        self.should_exit = True
