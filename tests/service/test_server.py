"""The life of a server process: port, signals, draining (CASES A-d3, A-l1, A-l6)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvloop

from rebar.errors import InputError
from rebar.service.server import bind, listeners
from tests.service.live import events_of

ROOT = Path(__file__).parents[2]
STREAM = {"prompt": "go", "stream": True}


def refused_while_draining(url: str) -> None:
    """New work gets a 503 that says when to come back; machines still get their answers."""
    with httpx.Client(base_url=url, trust_env=False) as client:
        work = client.post("/v1/completions", json={"prompt": "go"})
        assert work.status_code == 503
        assert work.json()["error"]["code"] == "stopping"
        assert 1 <= int(work.headers["retry-after"]) <= 2
        assert work.headers["connection"] == "close"
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        assert client.get("/health/live").status_code == 200
        assert client.get("/health").json()["draining"] is True
        assert client.get("/metrics").status_code == 200


@contextlib.contextmanager
def server(
    port: int = 0, *, load: float = 0.0, drain: float = 5.0
) -> Iterator[subprocess.Popen[str]]:
    """A server process; killed at the end if it still lives."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.serve_scripted", str(port), str(load), str(drain)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def address(process: subprocess.Popen[str]) -> str:
    assert line(process) == "loading"
    return line(process)


class Stream(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__()
        self.url, self.max_tokens, self.text = url, max_tokens, ""
        self.first = threading.Event()
        self.start()
        assert self.first.wait(10)

    def run(self) -> None:
        body = {**STREAM, "max_tokens": self.max_tokens}
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            httpx.Client(trust_env=False, timeout=20) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=body) as answer,
        ):
            for chunk in answer.iter_text():
                self.text += chunk
                self.first.set()


def test_a_turn_of_the_loop_accepts_many_connections() -> None:
    """libuv takes one connection a turn and listening socket. In a burst of thousands the queue of
    a busy front was full for seconds, and the kernel reset what it could not keep.
    """
    count = 64

    async def turns_for_all() -> int:
        loop, accepted = asyncio.get_running_loop(), 0

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal accepted
                accepted += 1
                transport.abort()  # type: ignore[attr-defined]

        with contextlib.ExitStack() as stack:
            sock = bind("127.0.0.1", 0)
            for _ in range(count):
                stack.enter_context(socket.create_connection(sock.getsockname()))
            for listener in listeners(sock):
                server = await loop.create_server(Accepted, sock=listener)
                stack.callback(server.close)
            turns = 0
            while accepted < count:
                await asyncio.sleep(0)
                turns += 1
        return turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns_for_all()) <= 24


def test_signal_lets_a_short_stream_finish_and_ends_a_long_one() -> None:
    """A-d3: shutdown waited for endless streams; now they end with an error after the limit.
    Meanwhile the server says to everybody else that it is going.
    """
    with server(drain=1.0) as process:
        url = address(process)
        assert httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200
        short, long = Stream(url, 8), Stream(url, 90_000)
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        refused_while_draining(url)
        assert process.wait(30) == 0
        assert time.monotonic() - started < 15.0  # the long one would say a minute's worth
        short.join(5)
        long.join(5)
        assert events_of(short.text)[-1] == "[DONE]"
        assert events_of(long.text)[-1]["error"]["code"] == "stopping"
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(second: signal.Signals) -> None:
    """A-d3: a second Ctrl-C hung as well."""
    with server(drain=60) as process:
        stream = Stream(address(process), 90_000)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        started = time.monotonic()
        process.send_signal(second)
        assert process.wait(30) == 128 + second
        assert time.monotonic() - started < 20.0  # of a drain of 60
        stream.join(5)


def test_idle_server_stops_quickly_and_its_port_is_free_again() -> None:
    """A-l6: TIME_WAIT of the last connection does not keep a restart from binding."""
    with server() as process:
        url = address(process)
        httpx.get(f"{url}/health", trust_env=False).raise_for_status()
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
    port = int(url.rsplit(":", 1)[1])
    with server(port) as process:
        assert address(process) == url


def test_taken_port_is_told_before_the_model_is_loaded() -> None:
    """A-l6: it was discovered only after minutes of loading."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        started = time.monotonic()
        with server(port, load=60) as process:
            out, error = process.communicate(timeout=40)
            assert process.returncode == 2
            assert "loading" not in out
            assert str(port) in error
            assert "--port" in error
        # Most of it is Python and FastAPI being imported: 2 s; the model would take 60.
        assert time.monotonic() - started < 30.0
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_two_servers_cannot_both_take_a_port() -> None:
    """Binding without listening succeeded for both."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(InputError, match=str(port)):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70_000), ("no such host", 1), ("192.0.2.1", 80)]
)
def test_addresses_that_cannot_be(host: str, port: int) -> None:
    with pytest.raises(InputError):
        bind(host, port)


def test_signal_while_loading_ends_it() -> None:
    """A-l1: nothing handled the signal until start-up had ended."""
    with server(load=60) as process:
        assert line(process) == "loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) == -signal.SIGTERM
