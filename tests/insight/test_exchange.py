"""Reading an answer as a browser does: any chunking, any line end, any way in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from rebar.insight.exchange import FINISH, TEXT, Exchange, Outcome, SseParser

EVENTS = [
    (b"data: one\n\n", b"one"),
    (b"data:no space\n\n", b"no space"),
    (b"data: two\ndata: lines\n\n", b"two\nlines"),
    (b": a comment\n\n", None),
    (b"event: named\nid: 7\ndata: x\n\n", b"x"),
    (b"data\n\n", b""),
    (b"retry: 10\n\n", None),
    ("data: wörld 😀\n\n".encode(), "wörld 😀".encode()),
    (b"\n\n", None),
]


@given(st.data(), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_events_are_the_same_however_the_bytes_were_cut(
    data: st.DataObject, line_end: bytes, bom: bool
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(EVENTS), max_size=8))
    stream = b"".join(raw for raw, _ in chosen).replace(b"\n", line_end)
    stream = b"\xef\xbb\xbf" * bom + stream
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))) | {0, len(stream)})
    parser = SseParser()
    found = [event for a, b in pairwise(cuts) for event in parser.feed(stream[a:b])]
    # A comment that comes first takes the mark with it: it is of the stream, not of an event.
    assert found == [event for _, event in chosen if event is not None]


def test_an_event_without_its_end_is_none() -> None:
    assert SseParser().feed(b"data: half\n") == []


def test_text_in_an_answer_cannot_look_like_an_event() -> None:
    """What a model says is inside a JSON string, where quotes are escaped."""
    hostile = '{"content":"x","finish_reason":"stop","error":{"usage":{'
    payload = json.dumps({"choices": [{"delta": {"content": ""}, "said": hostile}]}).encode()
    assert not TEXT.search(payload)
    assert not FINISH.search(payload)
    assert b'"error"' not in payload
    assert b'"usage":' not in payload


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


def said(text: str, finish: str | None = None) -> bytes:
    event = {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'  # noqa: E501
DONE = b"data: [DONE]\n\n"


def serve_once(listening: socket.socket, pieces: tuple[bytes, ...], close: bool) -> None:
    """Sends these pieces to the first client, each in a write of its own."""
    connection, _ = listening.accept()
    with connection:
        connection.recv(1 << 16)
        with contextlib.suppress(ConnectionError):  # a client that leaves is part of it
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.02)
            while not close and connection.recv(1 << 16):
                pass


def exchanged(*pieces: bytes, close: bool = False, leaves_after: int | None = None) -> Outcome:
    """What a client makes of a server that sends these pieces, and then closes or waits."""

    async def run(port: int) -> Outcome:
        outcome = Outcome(0.0)
        exchange = Exchange(b"GET / HTTP/1.1\r\n\r\n", outcome, leaves_after)
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().create_connection(lambda: exchange, "127.0.0.1", port)
            await exchange.closed
        return outcome

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve_once, args=(listening, pieces, close))
        thread.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(run(listening.getsockname()[1]))
        thread.join(10)
        assert not thread.is_alive(), "the client did not close its connection"
    return outcome


def test_a_whole_answer() -> None:
    outcome = exchanged(
        CHUNKED + chunk(said("")), chunk(said("a")), chunk(said("b")) + chunk(said("c")),
        chunk(said("", "length")), chunk(USAGE + DONE) + b"0\r\n\r\n",
    )  # fmt: skip
    assert (outcome.error, outcome.finish, outcome.status) == ("", "length", 200)
    assert (outcome.texts, len(outcome.moments)) == (3, 2)  # b and c came together
    assert (outcome.prompt_tokens, outcome.tokens, outcome.cached_tokens) == (5, 9, 4)
    assert 0 < outcome.sent <= outcome.moments[0] < outcome.moments[1] <= outcome.ended


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((CHUNKED + chunk(said("a")),), "dropped"),
        ((b"",), "dropped"),
        ((CHUNKED + chunk(said("a")) + b"0\r\n\r\n",), "cut_off"),
        ((CHUNKED + chunk(b'data: {"error":{"code":"engine_ended"}}\n\n'),), "stream_engine_ended"),
        ((CHUNKED + chunk(b'data: {"error": oops\n\n'),), "bad_json"),
        ((b"nonsense\r\n\r\n",), "bad_http"),
        ((b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",), "http_500"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",), "no_stream"),
    ],
)
def test_every_other_end_has_a_cause(pieces: tuple[bytes, ...], error: str) -> None:
    outcome = exchanged(*pieces, close=True)
    assert outcome.error.split(":")[0] == error
    assert not outcome.good


def test_a_refusal_says_when_to_come_back() -> None:
    body = b'{"error":{"code":"rate_limit_exceeded"}}'
    outcome = exchanged(
        b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body), body
    )
    assert (outcome.error, outcome.retry_after) == ("http_429 rate_limit_exceeded", 7.0)


def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    outcome = exchanged(HEAD + b"\r\n" + said("a", "stop") + DONE, close=True)
    assert outcome.good


@pytest.mark.parametrize("texts", [0, 1, 2])
def test_who_leaves_is_no_error(texts: int) -> None:
    pieces = (CHUNKED + chunk(said("a")), *(chunk(said("b")) for _ in range(5)))
    outcome = exchanged(*pieces, leaves_after=texts)
    assert outcome.left
    assert outcome.error == ""
    assert outcome.texts == texts


def test_the_client_closes_after_the_end_mark() -> None:
    """A server that keeps the connection is not waited for."""
    assert exchanged(CHUNKED + chunk(said("a", "stop") + DONE)).good
