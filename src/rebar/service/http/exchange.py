"""One request in the words of one API: what it asks for, and how its answer is written.

Chat, plain completions, Responses and Messages are four Exchanges; everything between reading a
body and writing an answer is one way for all (generating.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import msgspec

from rebar.errors import InputError
from rebar.service.body import decode_body
from rebar.service.converted import Converted
from rebar.service.http.answers import Heading, chat_answer, completion_answer
from rebar.service.http.choices import Choices, Piece
from rebar.service.http.sse import CHAT, COMPLETION, EventWriter
from rebar.service.interfaces import TextTokenizer
from rebar.service.validator import Caller, Job, Validator
from rebar.service.wire import ChatBody, CompletionBody


@dataclass(frozen=True, slots=True)
class Reply:
    """What an answer is written from."""

    heading: Heading
    tokenizer: TextTokenizer
    choices: Choices


class Writer(Protocol):
    """Writes the events of one stream."""

    def opening(self) -> bytes:
        """What comes before the first piece."""

    def piece(self, index: int, piece: Piece, /) -> bytes:
        """What is new in a choice."""

    def closing(self) -> bytes:
        """What comes when every choice has ended."""

    def failure(self, error: Exception, /) -> bytes:
        """What a stream says last when it cannot go on."""


class GrowingWriter(Writer, Protocol):
    """Keeps the whole answer as its events are written."""

    @property
    def answer(self) -> msgspec.Struct:
        """What the events so far have built."""


class Exchange(ABC):
    """A request that was read, not yet checked against a model."""

    prefix: ClassVar[str]
    """Of the answer's id."""

    @classmethod
    @abstractmethod
    def read(cls, raw: bytes) -> Self:
        """The request in these bytes. Raises InputError."""

    @property
    @abstractmethod
    def model(self) -> str | None:
        """The model it names."""

    @abstractmethod
    def job(self, validator: Validator, caller: Caller) -> Job:
        """The packets it comes to. Raises InputError naming the field."""

    def named(self, error: InputError) -> InputError:
        """An error about the job, in the words of this API."""
        return error

    @abstractmethod
    def whole(self, reply: Reply, pieces: list[Piece]) -> bytes:
        """The JSON of a whole answer."""

    @abstractmethod
    def writer(self, reply: Reply) -> Writer:
        """Writes the answer as a stream."""


class ConvertedExchange(Exchange):
    """A request of another API that goes on as a chat request. A whole answer is what its stream
    would have built: one code makes both, so they cannot differ.
    """

    def __init__(self, converted: Converted) -> None:
        self._converted = converted

    @property
    def model(self) -> str | None:
        """The model it names."""
        return self._converted.chat.model

    def job(self, validator: Validator, caller: Caller) -> Job:
        """The packets it comes to."""
        return self._converted.told(lambda chat: validator.chat(chat, caller))

    def named(self, error: InputError) -> InputError:
        """An error about the job, in the words of this API."""
        return self._converted.renamed(error)

    def whole(self, reply: Reply, pieces: list[Piece]) -> bytes:
        """The JSON of a whole answer."""
        writer = self.writer(reply)
        writer.piece(0, pieces[0])
        writer.closing()
        return msgspec.json.encode(writer.answer)

    @abstractmethod
    def writer(self, reply: Reply) -> GrowingWriter:
        """Writes the answer as a stream."""


class ChatExchange(Exchange):
    """POST /v1/chat/completions."""

    prefix = "chatcmpl-"

    def __init__(self, body: ChatBody) -> None:
        self._body = body

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The request in these bytes."""
        return cls(decode_body(raw, ChatBody))

    @property
    def model(self) -> str | None:
        """The model it names."""
        return self._body.model

    def job(self, validator: Validator, caller: Caller) -> Job:
        """The packets it comes to."""
        return validator.chat(self._body, caller)

    def whole(self, reply: Reply, pieces: list[Piece]) -> bytes:
        """The JSON of a whole answer."""
        return chat_answer(reply.heading, reply.tokenizer, reply.choices, pieces)

    def writer(self, reply: Reply) -> Writer:
        """Writes the answer as a stream."""
        return EventWriter(CHAT, reply.heading, reply.tokenizer, reply.choices)


class CompletionExchange(Exchange):
    """POST /v1/completions."""

    prefix = "cmpl-"

    def __init__(self, body: CompletionBody) -> None:
        self._body = body

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The request in these bytes."""
        return cls(decode_body(raw, CompletionBody))

    @property
    def model(self) -> str | None:
        """The model it names."""
        return self._body.model

    def job(self, validator: Validator, caller: Caller) -> Job:
        """The packets it comes to."""
        return validator.completion(self._body, caller)

    def whole(self, reply: Reply, pieces: list[Piece]) -> bytes:
        """The JSON of a whole answer."""
        return completion_answer(reply.heading, reply.tokenizer, reply.choices, pieces)

    def writer(self, reply: Reply) -> Writer:
        """Writes the answer as a stream."""
        return EventWriter(COMPLETION, reply.heading, reply.tokenizer, reply.choices)
