"""Server-sent events: a prefix built once per request, escaped text, a suffix. No object is encoded
per token.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rebar.errors import RebarError
from rebar.service.http.answers import Heading, call_id, usage_of
from rebar.service.http.choices import Choices, Piece
from rebar.service.http.errors import ErrorBody, describe
from rebar.service.http.scores import CompletionScores, chat_logprobs
from rebar.service.interfaces import TextTokenizer
from rebar.service.request_stream import RequestStream
from rebar.service.tool_parser import CallPiece

if TYPE_CHECKING:
    from rebar.service.http.exchange import Writer

log = logging.getLogger("rebar.service.request")

DONE = b"data: [DONE]\n\n"
_json = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Dialect:
    """How chat and plain completions differ on the wire: the bytes around a piece's text."""

    object: bytes
    before_text: bytes
    after_text: bytes
    empty: bytes
    opening: bytes | None


CHAT = Dialect(
    object=b"chat.completion.chunk",
    before_text=b',"delta":{"content":',
    after_text=b"}",
    empty=b',"delta":{}',
    opening=b',"delta":{"role":"assistant","content":""}',
)
COMPLETION = Dialect(
    object=b"text_completion",
    before_text=b',"text":',
    after_text=b"",
    empty=b',"text":""',
    opening=None,
)


class EventWriter:
    """Writes the events of one request."""

    def __init__(
        self, dialect: Dialect, heading: Heading, tokenizer: TextTokenizer, choices: Choices
    ) -> None:
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._choices = choices
        self._scores = [CompletionScores(tokenizer) for _ in choices.job.packets]
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b' % (
            _json(heading.id),
            dialect.object,
            heading.created,
            _json(heading.model),
        )
        self._prefix = self._head + b',"choices":[{"index":'
        self._tail = b'}],"usage":null}\n\n' if choices.job.include_usage else b"}]}\n\n"
        self._scored = choices.job.scored
        # What stands around the text of nearly every event: once a token, these are joined.
        self._before = [
            self._prefix + b"%d" % i + dialect.before_text for i in range(len(choices.job.packets))
        ]
        self._after = dialect.after_text + b',"logprobs":null,"finish_reason":null' + self._tail

    def opening(self) -> bytes:
        """What comes before the first text of every choice."""
        opening = self._dialect.opening
        if opening is None:
            return b""
        return b"".join(self._event(i, opening) for i in range(len(self._choices.job.packets)))

    def piece(self, index: int, piece: Piece) -> bytes:
        """New text of a choice, and its end when it has come."""
        if piece.text and not (self._scored or piece.calls or piece.finish):
            return self._before[index] + _json(piece.text) + self._after
        out = b""
        dialect = self._dialect
        if piece.text or piece.scored:
            text = dialect.before_text + _json(piece.text) + dialect.after_text
            out = self._event(index, text, logprobs=self._logprobs(index, piece))
        for call in piece.calls:
            out += self._event(index, b',"delta":{"tool_calls":[' + _call(call) + b"]}")
        if piece.finish:
            out += self._event(index, dialect.empty, finish=b'"%b"' % piece.finish.encode())
        return out

    def closing(self) -> bytes:
        """The usage and what happened, when asked for, and the end mark."""
        end = b""
        if self._choices.job.include_usage:
            end += b',"usage":' + _json(usage_of(self._choices))
        explanation = self._choices.explanation()
        if explanation is not None:
            end += b',"explanation":' + _json(explanation)
        return self._head + b',"choices":[]' + end + b"}\n\n" + DONE if end else DONE

    def failure(self, error: Exception) -> bytes:
        """What a stream says last when it cannot go on."""
        return b"data: " + _json(ErrorBody(describe(error)[1])) + b"\n\n"

    def _event(
        self, index: int, middle: bytes, *, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        return (
            self._prefix
            + b"%d" % index
            + middle
            + b',"logprobs":'
            + logprobs
            + b',"finish_reason":'
            + finish
            + self._tail
        )

    def _logprobs(self, index: int, piece: Piece) -> bytes:
        if not self._choices.job.scored:
            return b"null"
        if self._dialect is CHAT:
            return _json(chat_logprobs(self._tokenizer, piece.scored))
        return _json(self._scores[index].take(piece.scored))


def _call(part: CallPiece) -> bytes:
    """A part of a call as OpenAI streams it: id, type and name come first, then arguments."""
    if part.name is None:
        return b'{"index":%d,"function":{"arguments":%b}}' % (part.index, _json(part.arguments))
    head = (part.index, _json(call_id()), _json(part.name))
    return b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}' % head


async def events(
    writer: Writer, choices: Choices, stream: RequestStream, first: dict[int, Piece]
) -> AsyncIterator[bytes]:
    """Every event of a stream whose first pieces have come. A failure is told in an event, then it
    ends.
    """
    try:
        yield writer.opening() + b"".join(writer.piece(i, piece) for i, piece in first.items())
        while not stream.done:
            pieces = await choices.next(stream)
            chunk = b"".join(writer.piece(i, piece) for i, piece in pieces.items())
            if chunk:
                yield chunk
        yield writer.closing()
    except Exception as error:
        if not isinstance(error, RebarError):
            log.exception("a stream failed")
        choices.failure = type(error).__name__
        yield writer.failure(error)
