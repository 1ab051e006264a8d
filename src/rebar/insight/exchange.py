"""One request and its streamed answer, as a browser sees it, at the least cost for the machine that
both sides share: bytes in, counters out. JSON is read only where an event says more than text.

The law: an exchange is over when its connection is closed, by whichever side; whoever waits for
`closed` leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import httptools

MAX_BODY = 1 << 16  # of an answer that is no stream; what is beyond is not read
TEXT = re.compile(rb'"(?:content|text|arguments|reasoning_content)": ?"(?!")')
"""An event that shows text. In a string quotes are escaped, so no text can look like it."""
FINISH = re.compile(rb'"finish_reason": ?"(\w+)"')
BOM = b"\xef\xbb\xbf"


class SseParser:
    """Cuts a byte stream into the data of its events (HTML standard, 9.2.6), however it was cut.

    Event names, ids and comments are dropped: a client of this API does not need them.
    """

    __slots__ = ("_after_return", "_first", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._first = True
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole now."""
        if self._after_return or b"\r" in data:
            data = self._line_feeds(data)
        blocks = (self._rest + data).split(b"\n\n")
        self._rest = blocks.pop()
        if blocks and self._first:
            self._first = False
            blocks[0] = blocks[0].removeprefix(BOM)
        return [found for block in blocks if (found := _data_of(block)) is not None]

    def _line_feeds(self, data: bytes) -> bytes:
        """CR LF and CR end a line as LF does; the two of a pair may come in two pieces."""
        if self._after_return and data:
            data = data.removeprefix(b"\n")
            self._after_return = False
        if data.endswith(b"\r"):
            self._after_return = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line == b"data" or line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines) if lines else None


@dataclass(slots=True)
class Outcome:
    """What became of a request. Moments are seconds of one clock.

    due: when its user came. moments: when text arrived; events of one read are one arrival. texts:
    events with text. error: why it did not succeed, "" for success; left: its user went away.
    payloads: of all events, when they are kept.
    """

    due: float
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    retry_after: float | None = None
    texts: int = 0
    moments: array[float] = field(default_factory=lambda: array("d"))
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    left: bool = False
    payloads: list[bytes] | None = None

    @property
    def good(self) -> bool:
        """Whether the answer came, whole."""
        return not self.error and not self.left

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as the server counts them, else events with text."""
        return self.output_tokens or self.texts

    def take_usage(self, usage: dict[str, Any]) -> None:
        """Books the server's own count."""
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        self.output_tokens = int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = int(details.get("cached_tokens") or 0)


class Exchange(asyncio.Protocol):
    """Sends `request` once connected and fills `outcome` until the connection is closed."""

    def __init__(self, request: bytes, outcome: Outcome, leaves_after: int | None = None) -> None:
        self.outcome = outcome
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._leaves_after = leaves_after
        self._parser = httptools.HttpResponseParser(self)
        self._sse = SseParser()
        self._transport: asyncio.Transport | None = None
        self._stream = self._done = self._whole = False
        self._body = b""
        self._now = 0.0

    def give_up(self, why: str) -> None:
        """Ends it from this side, now."""
        if not self._over:
            self.outcome.error = why
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """The user goes away."""
        if not self._over:
            self.outcome.left = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def connected(self) -> bool:
        """Whether there ever was a connection, so that `closed` will come."""
        return self._transport is not None

    @property
    def _over(self) -> bool:
        return bool(self._done or self._whole or self.outcome.error or self.outcome.left)

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Sends the request."""
        self._transport = transport
        self.outcome.sent = time.monotonic()
        transport.write(self._request)
        if self._leaves_after == 0:
            self.leave()

    def data_received(self, data: bytes) -> None:
        """Reads what came."""
        self._now = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._over:
                self.outcome.error = f"bad_http: {error}"
        if self._over and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever made it. A stream that was not ended by its server was lost."""
        outcome = self.outcome
        outcome.ended = outcome.ended or time.monotonic()
        if not self._over:
            outcome.error = "dropped" if exc is None else f"dropped: {type(exc).__name__}"
        if not outcome.error and not outcome.left:
            outcome.error = self._verdict()
        if not self.closed.done():
            self.closed.set_result(None)

    def _verdict(self) -> str:
        if self.outcome.status != 200:
            return f"http_{self.outcome.status}{_code_of(self._body)}"
        if not self._stream:
            return "no_stream"
        return "" if self._done or self.outcome.finish else "cut_off"

    # What the HTTP parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps what matters."""
        name = name.lower()
        if name == b"content-type":
            self._stream = value.lower().startswith(b"text/event-stream")
        elif name == b"retry-after" and value.isdigit():
            self.outcome.retry_after = float(value)

    def on_headers_complete(self) -> None:
        """The status is known."""
        self.outcome.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        if not self._stream or self.outcome.status != 200:
            self._body = (self._body + body)[:MAX_BODY]
            return
        before = self.outcome.texts
        for payload in self._sse.feed(body):
            self._event(payload)
        moments = self.outcome.moments
        # A chunked answer may have several pieces in one read: one arrival.
        if self.outcome.texts > before and (not moments or moments[-1] != self._now):
            moments.append(self._now)
        if self._leaves_after is not None and self.outcome.texts >= self._leaves_after:
            self.leave()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._whole = True
        self.outcome.ended = self._now

    def _event(self, payload: bytes) -> None:
        outcome = self.outcome
        if outcome.payloads is not None:
            outcome.payloads.append(payload)
        if TEXT.search(payload):
            outcome.texts += 1
        if found := FINISH.search(payload):
            outcome.finish = found[1].decode()
        if payload == b"[DONE]":
            self._done = True
            outcome.ended = self._now
        elif b'"usage":' in payload or b'"error"' in payload:
            self._more(payload)

    def _more(self, payload: bytes) -> None:
        """An event that may be more than text."""
        try:
            event = json.loads(payload)
        except ValueError:
            self.outcome.error = "bad_json"
            return
        if event.get("usage"):
            self.outcome.take_usage(event["usage"])
        if event.get("error"):
            error = event["error"]
            code = error.get("code") or error.get("type") if isinstance(error, dict) else None
            self.outcome.error = f"stream_{code or 'error'}"


def _code_of(body: bytes) -> str:
    """The error's own name out of an OpenAI error body."""
    try:
        error = json.loads(body)["error"]
        code = error.get("code") or error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f" {code}" if code else ""
