"""Deltas go to their connections without a task in between; whatever cannot, goes through it, in
order. Frames are waited for without being woken for nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from rebar.errors import EngineError
from rebar.graph.sequence import Row, SamplingParams
from rebar.service.frames import FrameReader, frame, receive
from rebar.service.http.connection import DirectBody
from rebar.service.messages import Delta, RequestPacket
from rebar.service.request_stream import RequestStream
from tests.service.live import Live, events_of

PACKET = RequestPacket(1, "r", "t", [1, 2], SamplingParams(), 8)


def stream_of() -> RequestStream:
    return RequestStream(lambda tickets: None, [PACKET], 0.0)


def test_what_is_not_taken_is_read_in_order() -> None:
    """Taken only while the reader waits for more, so nothing overtakes what it still holds."""

    async def scenario() -> tuple[list[str], list[str]]:
        stream, written, willing, read = stream_of(), list[str](), [True], list[str]()

        def take(delta: Delta) -> bool:
            if willing[0]:
                written.append(delta.text)
            return willing[0]

        stream.pass_on(take)
        stream.put(Delta(ticket=1, text="a"))  # nobody waits yet: for the reader
        read.append((await stream.next())[0].text)
        reading = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.put(Delta(ticket=1, text="b"))
        stream.put(Delta(ticket=1, text="c"))
        willing[0] = False
        stream.put(Delta(ticket=1, text="d"))
        willing[0] = True
        stream.put(Delta(ticket=1, text="e"))  # behind "d", which the reader has not had yet
        read.append((await reading)[0].text)
        reading = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.put(Delta(ticket=1, text="f", finish="stop"))  # the last one is the reader's
        read.append((await reading)[0].text)
        assert stream.done
        return written, read

    assert asyncio.run(scenario()) == (["b", "c"], ["a", "de", "f"])


def test_an_error_while_passing_on_is_the_streams_own() -> None:
    """It must end its stream, not the report that carries the others' deltas."""

    async def scenario() -> None:
        stream = stream_of()

        def take(delta: Delta) -> bool:
            raise EngineError("it cannot be written")

        stream.pass_on(take)
        reading = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.put(Delta(ticket=1, text="a"))
        stream.put(Delta(ticket=1, text="b"))
        with pytest.raises(EngineError, match="cannot be written"):
            await reading

    asyncio.run(scenario())


def test_streams_over_a_socket_are_passed_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real server: nearly every event goes this way, and the text is whole. Each step
    waits until the text of the step before has been read, so none are joined on a busy machine.
    """
    read = threading.Semaphore(1)

    def wait_for_reader(rows: list[Row]) -> None:
        assert read.acquire(timeout=5), "the text of the step before was not sent"

    parts: list[bytes] = []
    write = DirectBody.write

    def counted(self: DirectBody, part: bytes) -> None:
        parts.append(part)
        write(self, part)

    monkeypatch.setattr(DirectBody, "write", counted)
    live.runner.script = list(b"abcdefghijklmnopqrstuvwxyz")
    live.runner.before = wait_for_reader
    texts: list[str] = []
    body = {"prompt": "go", "stream": True, "max_tokens": 26}
    with live.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                texts.append(json.loads(line[6:])["choices"][0]["text"])
                read.release()
    assert "".join(texts) == "abcdefghijklmnopqrstuvwxyz"
    assert len(parts) > 13


def test_an_error_while_writing_ends_that_stream_alone(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: DirectBody, part: bytes) -> None:
        raise EngineError("it cannot be written")

    live.runner.script = list(b"abcdef")
    live.runner.slow = 0.005
    with monkeypatch.context() as patched:
        patched.setattr(DirectBody, "write", failing)
        answer = live.complete(prompt="go", stream=True, max_tokens=6)
    assert events_of(answer.text)[-1]["error"]["message"] == "it cannot be written"
    live.at_rest(within=1.0)


def test_messages_are_waited_for_as_long_as_the_socket_says() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        reader = FrameReader(str)
        theirs.sendall(frame("whole")[:3])
        with pytest.raises(TimeoutError):
            receive(ours, reader)
        ours.settimeout(None)
        threading.Timer(0.05, theirs.sendall, [frame("whole")[3:]]).start()
        assert receive(ours, reader) == ["whole"]
        theirs.close()
        assert receive(ours, reader) == []
