"""Below the routes: what is no HTTP, offers of other protocols, requests without end. PROBE after
each.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.service.http.connection import MAX_HEAD_BYTES
from rebar.service.http.lifecycle import TimeLimits
from tests.service.fakes import ScriptedRunner
from tests.service.live import PLAIN, Client, Live, events_of, scripted_service, serving, wait_for
from tests.service.rebar_process import RebarProcess
from tests.service.test_metrics_hostile import request

BODY = {"prompt": "go", "max_tokens": 3}
H2C = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2_Settings": "AAMAAABkAAQCAAAAAAIAAAAA",
}


def exchange(port: int, *parts: bytes, answers: int = 1) -> bytes:
    """Sends the parts one after the other; everything that comes until the other side ends it, or
    until so many answers are whole.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        for part in parts:
            sock.sendall(part)
            time.sleep(0.001 if len(parts) > 1 else 0)
        got = b""
        while len(bodies_of(got)) < answers:
            try:
                data = sock.recv(1 << 16)
            except ConnectionResetError:
                break
            if not data:
                break
            got += data
        return got


def bodies_of(raw: bytes) -> list[bytes]:
    """Of the answers that are there whole, each with its Content-Length."""
    found: list[bytes] = []
    while raw:
        head, mark, rest = raw.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if not mark or not length or len(rest) < int(length[1]):
            break
        found.append(rest[: int(length[1])])
        raw = rest[int(length[1]) :]
    return found


def error_of(answer: bytes, status: int) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in head.lower()
    error: dict[str, object] = json.loads(body)["error"]
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,  # https, as people type it
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"GET /v1/mo\0dels HTTP/1.1\r\n\r\n",
        "GET /v1/é HTTP/1.1\r\n\r\n".encode(),
        b"ODD0 / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n\r\n\r\nrubbish\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_an_error_object(anywhere: Client, raw: bytes) -> None:
    """It was answered with a plain text that no client can read."""
    assert error_of(exchange(anywhere.port, raw), 400)["code"] == "invalid_http"


def counted(live: Live) -> dict[tuple[str, str], float]:
    """Requests so far by route and status."""
    pattern = r'rebar_http_requests_total\{route="(.*?)",status="(\d+)"\} (\S+)'
    found = re.findall(pattern, live.http.get("/metrics").text)
    return {(route, status): float(count) for route, status, count in found}


@pytest.mark.parametrize(
    ("raw", "route", "status"),
    [
        (b"rubbish\r\n\r\n", "other", "400"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "other", "400"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * (MAX_HEAD_BYTES + (1 << 18)), "other", "431"),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "/tokenize",
            "400",
        ),
        (
            b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nrubbish\r\n\r\n",
            "other",
            "400",
        ),
    ],
)
def test_what_is_refused_before_its_route_is_counted_once(
    live: Live, raw: bytes, route: str, status: str
) -> None:
    """A flood of heads without end was nowhere in /metrics; a body that was none counted as a
    client that had left.
    """
    before = counted(live)
    exchange(live.port, raw, answers=3)
    live.at_rest()
    key = (route, status)
    wait_for(lambda: counted(live).get(key, 0) == before.get(key, 0) + 1)
    after = counted(live)
    grew = {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)}
    grew.pop(("/metrics", "200"), None)
    grew.pop(("/health", "200"), None)
    grew.pop(("/health/live", "200"), None)
    assert grew == {key: 1}


@pytest.mark.parametrize(
    "rubbish", [b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"a" * (1 << 20)]
)
def test_rubbish_that_comes_with_a_request_spoils_no_answer(live: Live, rubbish: bytes) -> None:
    """It was answered before the request was, which then could not be, with an error in the log."""
    raw = request("POST", PLAIN, {**BODY, "temperature": 0}).encode()
    got = exchange(live.port, raw + rubbish, answers=3)
    assert got.count(b"HTTP/1.1 ") == 1
    (body,) = bodies_of(got)
    expected = live.complete(max_tokens=3, temperature=0).json()["choices"]
    assert json.loads(body)["choices"] == expected


def test_a_coding_of_the_transfer_is_told(anywhere: Client) -> None:
    """The compressed bytes were read as JSON, and the error spoke of that."""
    raw = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    error = error_of(exchange(anywhere.port, raw), 415)
    assert error["code"] == "unsupported_encoding"


@pytest.mark.parametrize("offer", [H2C, {"Connection": "upgrade", "Upgrade": "websocket"}])
@pytest.mark.parametrize("cut", [0, 1, 30, 120, 200])
def test_an_offer_of_another_protocol_is_no_reason_to_lose_a_body(
    anywhere: Client, offer: dict[str, str], cut: int
) -> None:
    """Java's client and `curl --http2` offer h2c with every request. The parser then took the body
    for the other protocol: "Input data was truncated".
    """
    raw = request("POST", PLAIN, {**BODY, "temperature": 0}, **offer).encode()
    expected = anywhere.complete(max_tokens=3, temperature=0).json()["choices"]
    got = bodies_of(exchange(anywhere.port, raw[:cut], raw[cut:]))
    got += bodies_of(exchange(anywhere.port, raw + raw, answers=2))  # the second one is read, too
    assert [json.loads(body)["choices"] for body in got] == [expected] * 3


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_requests(running_server: Live, data: st.DataObject) -> None:
    """A request with bytes changed, cut out and doubled: answered with a status or not at all,
    never with a 5xx.
    """
    raw = bytearray(request("POST", PLAIN, BODY, **data.draw(st.sampled_from([{}, H2C]))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with socket.create_connection(("127.0.0.1", running_server.port), timeout=10) as sock:
        sock.sendall(bytes(raw))
        sock.shutdown(socket.SHUT_WR)  # a client that has left; nothing of it may stay
        got = b""
        while part := sock.recv(1 << 16):
            got += part
    assert b"HTTP/1.1 5" not in got


def test_nothing_stays_of_damaged_requests(live: Live) -> None:
    """PROBE after all of them."""
    live.at_rest()


ENDLESS = {
    "path": (b"GET /", b"a" * 1000),
    "header": (b"GET / HTTP/1.1\r\nA: ", b"a" * 1000),
    "headers": (b"GET / HTTP/1.1\r\n", b"A: b\r\n" * 200),
    "name": (b"GET / HTTP/1.1\r\n", b"a" * 1000),
    "chunk extension": (
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;",
        b"a" * 1000,
    ),
    "trailer": (
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nA: ",
        b"a" * 1000,
    ),
    "trailers": (
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
        b"A: b\r\n" * 200,
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_head_without_end(processes: RebarProcess, what: str) -> None:
    """A-c9: the parser has no limit; the time limit let gigabytes in for half a minute."""
    before = processes.resident_bytes()
    begin, more = ENDLESS[what]
    sent = 0
    with socket.create_connection(("127.0.0.1", processes.port), timeout=10) as sock:
        sock.sendall(begin)
        try:
            while sent < 100 << 20:
                sent += sock.send(more * 50)
        except ConnectionError:
            pass
    # What the kernel takes in both directions comes on top: some MB on loopback.
    assert sent < MAX_HEAD_BYTES + (16 << 20)
    assert processes.resident_bytes() - before < 8 << 20


def test_a_large_head_is_told(anywhere: Client) -> None:
    raw = request("GET", "/v1/models", A="a" * (MAX_HEAD_BYTES + (1 << 18)))
    assert error_of(exchange(anywhere.port, raw.encode()), 431)["code"] == "head_too_large"
    assert anywhere.http.get("/v1/models", headers={"A": "a" * 40_000}).status_code == 200


def test_small_parts_of_a_body_are_no_large_head(anywhere: Client) -> None:
    """100,000 chunks of one byte: five bytes around each that are no body."""
    body = json.dumps({"prompt": "a" * 100_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(anywhere.port, head + chunks)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module")
def patient_server() -> Iterator[Live]:
    """A second for a request to come whole."""
    runner = ScriptedRunner(kv_blocks=256, max_context=1024)
    with serving(runner, scripted_service(runner), TimeLimits(read=1.0)) as live:
        yield live


@pytest.mark.parametrize("behind", [b"", b"POST /v1/completions HT", b"rubbish\r\n\r\n"])
def test_what_comes_behind_a_request_does_not_reach_its_answer(
    patient_server: Live, behind: bytes
) -> None:
    """Rubbish behind a request was answered in the middle of the stream, later it cut the stream
    short; the beginning of a next request that did not go on reset it when the read time was over.
    """
    live = patient_server
    live.runner.script, live.runner.slow = list(b"abcdefghij" * 3), 0.05
    raw = request("POST", PLAIN, {"prompt": "go", "max_tokens": 40, "stream": True}).encode()
    got = b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as sock:
        sock.sendall(raw)
        got += sock.recv(1 << 16)
        sock.sendall(behind)
        while b"[DONE]" not in got and (part := sock.recv(1 << 16)):
            got += part
    assert got.count(b"HTTP/1.1") == 1
    events = events_of(unchunked(got.partition(b"\r\n\r\n")[2]))
    text = "".join(event["choices"][0]["text"] for event in events if event != "[DONE]")
    assert (text, events[-1]) == ("abcdefghij" * 3, "[DONE]")
    live.probe()


def unchunked(body: bytes) -> str:
    """The chunks that came whole."""
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        if not size or len(rest) < int(size, 16):
            break
        out, body = out + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return out.decode()


def test_many_idle_connections_cost_nobody_else(anywhere: Client) -> None:
    """200 connections that say nothing, and 200 that said half a line."""
    held = [socket.create_connection(("127.0.0.1", anywhere.port)) for _ in range(200)]
    for sock in held[::2]:
        sock.sendall(b"POST /v1/comp")
    answers: list[int] = []

    def ask() -> None:
        answers.append(anywhere.complete(max_tokens=2).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    for sock in held:
        sock.close()
