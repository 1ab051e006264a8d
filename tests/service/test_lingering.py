"""An answer that comes before the request is whole reaches a client that is still sending it.

Closed at once, with bytes unread, the kernel resets the connection, and the answer is lost with it:
behind nginx a 413 was a 502, and for most clients a broken pipe.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from rebar.service.http.connection import LINGER_BYTES
from rebar.service.http.reading import MAX_BODY_BYTES
from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, serving, wait_for

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
MEGABYTE = b"x" * (1 << 20)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(ScriptedRunner()) as live:
        yield live


def everything(sock: socket.socket) -> bytes:
    """Until the other side ends it; raises when it is reset."""
    said = b""
    while data := sock.recv(1 << 16):
        said += data
    return said


def test_a_client_that_sends_it_all_first_reads_why_it_should_not_have(live: Live) -> None:
    size = MAX_BODY_BYTES + (1 << 20)
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock:
        sock.sendall(HEAD.format(size).encode())
        for _ in range(size >> 20):
            sock.sendall(MEGABYTE)
            time.sleep(0.01)  # the answer is out, and its connection closed, long before the end
        said = everything(sock)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in said
    live.probe()


def test_one_that_waits_for_the_answer_is_not_kept_waiting(live: Live) -> None:
    """It has sent nothing of its body; the end of the answer is the end of the connection."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock:
        sock.sendall(HEAD.format(10**9).encode())
        assert everything(sock).startswith(b"HTTP/1.1 413 ")


def test_one_that_never_stops_is_cut_off(live: Live) -> None:
    sent = 0
    with (
        socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock,
        contextlib.suppress(ConnectionError),
    ):
        sock.sendall(HEAD.format(10**9).encode())
        while sent < 64 * LINGER_BYTES:
            sent += sock.send(MEGABYTE)
    assert sent < 8 * LINGER_BYTES
    live.probe()


def test_one_that_says_nothing_more_is_not_kept_for_ever(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebar.service.http.connection.LINGER_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock:
        sock.sendall(HEAD.format(10**9).encode())
        assert b" 413 " in everything(sock)

        def reset() -> bool:
            try:
                sock.sendall(b"x")
            except ConnectionError:
                return True
            return False

        wait_for(reset)


def test_a_head_that_is_too_large_is_told_too(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        for i in range(1024):
            sock.sendall(b"X-%d: " % i + b"y" * 1024 + b"\r\n")
        assert everything(sock).startswith(b"HTTP/1.1 431 ")
    live.probe()
