"""Anthropic's Messages: the message object, and the events of its stream in their order.

message_start; each content block, one after the other: start, deltas, stop; message_delta with the
reason and the bill, message_stop. A whole answer is what its stream would have built: one code
makes both.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, Self

import msgspec

from rebar.service.body import decode_body
from rebar.service.from_messages import from_messages
from rebar.service.http.choices import ChoiceEnd, Choices, Piece
from rebar.service.http.errors import anthropic_error
from rebar.service.http.exchange import ConvertedExchange, Reply, Writer
from rebar.service.tool_parser import CallPiece
from rebar.service.wire_messages import MessagesBody

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
REASONS: dict[ChoiceEnd, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_json = msgspec.json.encode


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call that the model wants made. input: {} where the answer ended in the middle of it."""

    id: str
    name: str
    input: dict[str, Any] = {}


class MessagesUsage(msgspec.Struct):
    """Tokens of a request. What had been computed before is counted apart: the input is the sum of
    all three.
    """

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class MessageObject(msgspec.Struct, kw_only=True):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ToolUseBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class TokenCount(msgspec.Struct):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessagesExchange(ConvertedExchange):
    """POST /v1/messages."""

    prefix = "msg_"

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The request in these bytes."""
        return cls(from_messages(decode_body(raw, MessagesBody)))

    def writer(self, reply: Reply) -> MessagesWriter:
        """Writes the answer as a stream."""
        heading = reply.heading
        usage = usage_of(reply.choices)
        message = MessageObject(id=heading.id, model=heading.model, usage=usage)
        return MessagesWriter(message, reply.choices)


class MessagesWriter(Writer):
    """Writes the events of one message, and keeps the message as it grows."""

    def __init__(self, message: MessageObject, choices: Choices) -> None:
        self.answer = message
        self._choices = choices
        self._open: TextBlock | ToolUseBlock | None = None
        self._said: list[str] = []  # of the open block
        self._delta = b""  # what comes before the text of one of its deltas
        self._finish: ChoiceEnd = "stop"

    def opening(self) -> bytes:
        """Says that there will be a message, and what its input comes to."""
        self.answer.usage = usage_of(self._choices)
        return _event("message_start", message=self.answer) + PING

    def piece(self, index: int, piece: Piece) -> bytes:
        """New text, new parts of calls."""
        out = b""
        for part in piece.parts:
            out += self._call(part) if isinstance(part, CallPiece) else self._text(part)
        self._finish = piece.finish or self._finish
        self.answer.stop_sequence = piece.stopped_by or self.answer.stop_sequence
        return out

    def closing(self) -> bytes:
        """The end of the last block and of the message."""
        message = self.answer
        out = self._close()
        message.stop_reason = REASONS[self._finish]
        if message.stop_reason != "end_turn":
            message.stop_sequence = None  # that of a call is ours
        elif message.stop_sequence is not None:
            message.stop_reason = "stop_sequence"
        message.usage = usage_of(self._choices)
        why = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        out += _event("message_delta", delta=why, usage=message.usage)
        return out + _event("message_stop")

    def failure(self, error: Exception) -> bytes:
        """What a stream says last when it cannot go on."""
        return b"event: error\ndata: " + _json(anthropic_error(error)) + b"\n\n"

    def _text(self, text: str) -> bytes:
        out = b""
        if not isinstance(self._open, TextBlock):
            out = self._close() + self._begin(TextBlock(""))
            self._expect(b"text_delta", b"text")
        return out + self._more(text)

    def _call(self, part: CallPiece) -> bytes:
        out = b""
        if part.name is not None:
            call = ToolUseBlock("toolu_" + secrets.token_hex(12), part.name)
            out = self._close() + self._begin(call)
            self._expect(b"input_json_delta", b"partial_json")
        return out + self._more(part.arguments) if part.arguments else out

    def _begin(self, block: TextBlock | ToolUseBlock) -> bytes:
        self._open, self._said = block, []
        at = len(self.answer.content)
        return _event("content_block_start", index=at, content_block=block)

    def _close(self) -> bytes:
        """Ends the open block, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return b""
        whole = "".join(self._said)
        if isinstance(block, TextBlock):
            block.text = whole
        else:
            block.input = _object(whole)
        at = len(self.answer.content)
        self.answer.content = [*self.answer.content, block]
        return _event("content_block_stop", index=at)

    def _expect(self, kind: bytes, name: bytes) -> None:
        """Makes what comes before each delta of the block, once."""
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (len(self.answer.content), kind, name)
        )

    def _more(self, text: str) -> bytes:
        """A delta of the open block."""
        self._said.append(text)
        return self._delta + _json(text) + b"}}\n\n"


def usage_of(choices: Choices) -> MessagesUsage:
    """The bill of a request."""
    cached = choices.cached_tokens
    return MessagesUsage(
        choices.job.prompt_tokens - cached,
        choices.completion_tokens,
        cache_read_input_tokens=cached,
    )


def _object(text: str) -> dict[str, Any]:
    """The arguments of a call; {} where they were cut, or nested without end."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _event(event: str, **fields: object) -> bytes:
    data = _json({"type": event, **fields})
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
