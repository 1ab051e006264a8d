"""Clients that keep the server waiting, answers without end, a loop that is held up (A-d2)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rebar.errors import InputError
from rebar.service.http.lifecycle import Lifecycle, TimeLimits
from rebar.service.http.loop_guard import LoopGuard
from rebar.service.messages import Delta, TokenScore
from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, events_of, said, scripted_service, serving, wait_for
from tests.service.rebar_process import resident_bytes

LIMITS = TimeLimits(write=0.3, read=0.5, block=0.2)


@pytest.fixture(scope="module")
def strict_server() -> Iterator[Live]:
    runner = ScriptedRunner(kv_blocks=20_000, max_context=100_000)
    with serving(runner, scripted_service(runner, max_running=32), LIMITS) as live:
        yield live


@pytest.fixture
def strict(strict_server: Live) -> Iterator[Live]:
    strict_server.runner.reset()
    yield strict_server
    strict_server.probe()


def metric(live: Live, name: str) -> float:
    lines = live.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def unread(live: Live) -> socket.socket:
    """A client that asks for an endless stream and never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", live.port))
    raw = json.dumps({"prompt": "go", "max_tokens": 90_000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)
    return sock


def ended(sock: socket.socket) -> bool:
    """Whether the other side ends it without a word."""
    try:
        return not sock.recv(1)
    except ConnectionError:
        return True


def test_slow_readers_are_cut_off_and_nobody_else_is(strict: Live) -> None:
    """A-d2: an unbounded queue a client grew for as long as the client did not read. Twenty of
    them: memory stays where it is, each is cut off, and who reads has every token meanwhile.
    """
    strict.runner.choose = lambda sequence, position: ord("z")
    strict.runner.slow = 0.0002
    before = metric(strict, 'rebar_http_connections_cut_off_total{cause="slow_reader"}')
    memory = resident_bytes()
    sockets = [unread(strict) for _ in range(20)]
    wait_for(lambda: strict.service.open == 20)
    text, finish, tokens = said(strict.complete(max_tokens=300, stream=True))
    assert (text, finish, tokens) == ("z" * 300, "length", None)
    most = 0
    while strict.service.open:
        most = max(most, resident_bytes() - memory)
        time.sleep(0.01)
    assert most < 20 << 20
    strict.at_rest()
    after = metric(strict, 'rebar_http_connections_cut_off_total{cause="slow_reader"}')
    assert after - before == 20
    for sock in sockets:
        sock.close()


def test_a_reader_that_is_late_gets_everything(strict: Live) -> None:
    """What came while it did not read is joined, and lacks nothing."""
    text = bytes(97 + i % 26 for i in range(3000))
    strict.runner.script = list(text)
    body = {"prompt": "go", "max_tokens": 3000, "stream": True}
    pieces = b""
    with strict.http.stream("POST", "/v1/completions", json=body) as answer:
        for i, raw in enumerate(answer.iter_raw(4096)):
            time.sleep(0.05 if i % 20 == 5 else 0)
            pieces += raw
    events = events_of(pieces.decode())
    shown = "".join(event["choices"][0]["text"] for event in events[:-1])
    assert shown == text.decode()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HT", b"POST / HTTP/1.1\r\nA: b\r\n"])
def test_requests_that_do_not_come_whole_are_cut_off(strict: Live, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as sock:
        sock.sendall(sent)
        assert ended(sock)


def test_a_body_that_does_not_come_is_cut_off(strict: Live) -> None:
    before = metric(strict, 'rebar_http_connections_cut_off_total{cause="slow_request"}')
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as sock:
        sock.sendall(head)
        assert ended(sock)
    name = 'rebar_http_connections_cut_off_total{cause="slow_request"}'
    wait_for(lambda: metric(strict, name) == before + 1)


def test_an_answer_that_takes_too_long_ends(strict: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends with it, and the client is told, by a status while that is possible."""
    monkeypatch.setattr(strict.service, "request_seconds", 0.3)
    strict.runner.choose = lambda sequence, position: ord("z")
    strict.runner.slow = 0.02
    with ThreadPoolExecutor(2) as pool:
        streamed = pool.submit(strict.complete, max_tokens=5000, stream=True)
        whole = strict.complete(max_tokens=5000)
        assert whole.status_code == 504
        assert whole.json()["error"]["code"] == "timeout"
        assert events_of(streamed.result(10).text)[-1]["error"]["code"] == "timeout"
    strict.at_rest()
    assert metric(strict, 'rebar_request_failures_total{cause="timeout"') == 2


def test_joined_deltas_say_what_both_said() -> None:
    first = Delta(1, "a", [97], [TokenScore(97, -1.0)], [TokenScore(5, -2.0)])
    first.join(Delta(1, "b", [98, 256], [TokenScore(98, -1.5)], [], finish="stop"))
    scores = [TokenScore(97, -1.0), TokenScore(98, -1.5)]
    assert first == Delta(1, "ab", [97, 98, 256], scores, [TokenScore(5, -2.0)], "stop")
    assert first.last


def test_the_guard_says_how_long_and_where(caplog: pytest.LogCaptureFixture) -> None:
    guard = LoopGuard(limit=0.1)

    def sleepy() -> None:
        time.sleep(0.6)

    async def run() -> None:
        guard.start()
        await asyncio.sleep(0.25)
        assert guard.blocks == 0
        sleepy()
        await asyncio.sleep(0.25)
        guard.stop()

    with caplog.at_level(logging.WARNING, logger="rebar.service.loop"):
        asyncio.run(run())
    assert guard.blocks >= 1
    assert guard.longest_seconds >= 0.4
    assert guard.blocked_seconds >= guard.longest_seconds
    assert "sleepy (test_limits.py:" in caplog.text


def test_draining_ends_when_nothing_is_open_or_at_the_limit() -> None:
    now = 100.0
    life = Lifecycle(TimeLimits(drain=5.0), clock=lambda: now)
    life.open = 1
    assert not life.draining
    assert not life.drained
    life.drain()
    assert life.draining
    assert not life.drained
    assert life.retry_after == 5
    now = 102.5
    life.drain()  # the limit counts from the first
    assert life.retry_after == 3
    life.open = 0
    assert life.drained
    life.open = 1
    now = 105.0
    assert life.drained
    assert life.retry_after == 1


@pytest.mark.parametrize("limits", [{"drain": -1.0}, {"write": 0.0}, {"request": float("nan")}])
def test_times_that_cannot_be(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match="no time to wait"):
        TimeLimits(**limits)
