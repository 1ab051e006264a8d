"""OpenAI's Responses: the response object, and the events of its stream in their order.

created, in_progress; then each output item, one after the other: added, its content, done; then
completed, incomplete or failed. A whole answer is what its stream would have built: one code makes
both, so they cannot differ.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, Self

import msgspec

from rebar.service.body import decode_body
from rebar.service.converted import Converted
from rebar.service.from_responses import from_responses
from rebar.service.http.answers import call_id
from rebar.service.http.choices import ChoiceEnd, Choices, Piece
from rebar.service.http.errors import describe
from rebar.service.http.exchange import ConvertedExchange, Reply, Writer
from rebar.service.tool_parser import CallPiece
from rebar.service.wire_responses import ResponsesBody

Status = Literal["in_progress", "completed", "incomplete"]
_json = msgspec.json.encode


class OutputText(msgspec.Struct):
    """The text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []
    type: Literal["output_text"] = "output_text"


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: Status = "in_progress"
    content: list[OutputText] = []
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model wants made. arguments: JSON in a string, as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


class InputDetails(msgspec.Struct):
    """cached_tokens: of the input, those that had been computed for another request before."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """There is no reasoning apart from the text."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a request; end tokens count."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(msgspec.Struct):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFault(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The answer of POST /v1/responses, with what was asked for beside it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: Literal[False] = False
    error: ResponseFault | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[OutputMessage | OutputCall] = []
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float = 1.0
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float = 1.0
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}


ECHOED = (
    "instructions", "max_output_tokens", "parallel_tool_calls", "temperature", "tool_choice",
    "top_p", "user", "metadata",
)  # fmt: skip


class ResponsesExchange(ConvertedExchange):
    """POST /v1/responses."""

    prefix = "resp_"

    def __init__(self, body: ResponsesBody, converted: Converted) -> None:
        super().__init__(converted)
        self._body = body

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The request in these bytes."""
        body = decode_body(raw, ResponsesBody)
        return cls(body, from_responses(body))

    def writer(self, reply: Reply) -> ResponsesWriter:
        """Writes the answer as a stream."""
        return ResponsesWriter(self._heading(reply), reply.choices)

    def _heading(self, reply: Reply) -> ResponseObject:
        """The response before anything was said."""
        body, heading = self._body, reply.heading
        echoed = {name: getattr(body, name) for name in ECHOED if getattr(body, name) is not None}
        if body.text is not None and body.text.format is not None:
            echoed["text"] = {"format": body.text.format}
        return ResponseObject(
            id=heading.id,
            created_at=heading.created,
            model=heading.model,
            tools=[msgspec.to_builtins(tool) for tool in body.tools or []],
            **echoed,
        )


class ResponsesWriter(Writer):
    """Writes the events of one response, and keeps the response as it grows."""

    def __init__(self, response: ResponseObject, choices: Choices) -> None:
        self.answer = response
        self._choices = choices
        self._sent = 0
        self._open: OutputMessage | OutputCall | None = None
        self._said: list[str] = []  # of the open item
        self._delta = b""  # what comes before the text of one of its deltas
        self._finish: ChoiceEnd | None = None

    def opening(self) -> bytes:
        """Says that there will be a response."""
        created = self._event("response.created", response=self.answer)
        return created + self._event("response.in_progress", response=self.answer)

    def piece(self, index: int, piece: Piece) -> bytes:
        """New text, new parts of calls."""
        out = b""
        for part in piece.parts:
            out += self._call(part) if isinstance(part, CallPiece) else self._text(part)
        self._finish = piece.finish or self._finish
        return out

    def closing(self) -> bytes:
        """The end of the last item and of the response."""
        out = b"" if self._open or self.answer.output else self._message()
        cut = self._finish == "length"
        out += self._close("incomplete" if cut else "completed")
        self.answer.status = "incomplete" if cut else "completed"
        if cut:
            self.answer.incomplete_details = Incomplete()
        self.answer.usage = usage_of(self._choices)
        return out + self._event(f"response.{self.answer.status}", response=self.answer)

    def failure(self, error: Exception) -> bytes:
        """What a stream says last when it cannot go on."""
        _, told = describe(error)
        self.answer.status = "failed"
        self.answer.error = ResponseFault("server_error", told.message)
        event = self._event("error", code=told.code, message=told.message, param=told.param)
        return event + self._event("response.failed", response=self.answer)

    def _text(self, text: str) -> bytes:
        out = b""
        if not isinstance(self._open, OutputMessage):
            out = self._close() + self._message()
        self._said.append(text)
        return out + self._more(text, b',"logprobs":[]')

    def _call(self, part: CallPiece) -> bytes:
        out = b""
        if part.name is not None:
            call = OutputCall(id=_new("fc_"), call_id=call_id(), name=part.name)
            out = self._close() + self._begin(call)
            self._expect("response.function_call_arguments.delta", call.id)
        if part.arguments:
            self._said.append(part.arguments)
            out += self._more(part.arguments)
        return out

    def _message(self) -> bytes:
        """Opens a message."""
        message = OutputMessage(id=_new("msg_"))
        out = self._begin(message)
        where = self._where(message.id)
        out += self._event("response.content_part.added", **where, part=OutputText(""))
        self._expect("response.output_text.delta", message.id, b',"content_index":0')
        return out

    def _begin(self, item: OutputMessage | OutputCall) -> bytes:
        self._open, self._said = item, []
        at = len(self.answer.output)
        return self._event("response.output_item.added", output_index=at, item=item)

    def _close(self, status: Status = "completed") -> bytes:
        """Ends the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        whole, where = "".join(self._said), self._where(item.id)
        if isinstance(item, OutputMessage):
            text = OutputText(whole)
            item.content = [text]
            out = self._event("response.output_text.done", **where, text=whole, logprobs=[])
            out += self._event("response.content_part.done", **where, part=text)
        else:
            item.arguments = whole
            del where["content_index"]
            done = "response.function_call_arguments.done"
            out = self._event(done, **where, name=item.name, arguments=whole)
        item.status = status
        at = len(self.answer.output)
        self.answer.output = [*self.answer.output, item]
        return out + self._event("response.output_item.done", output_index=at, item=item)

    def _where(self, item_id: str) -> dict[str, Any]:
        return {"item_id": item_id, "output_index": len(self.answer.output), "content_index": 0}

    def _expect(self, event: str, item_id: str, more: bytes = b"") -> None:
        """Makes what comes before each delta of the item, once."""
        head = (event.encode(), event.encode(), _json(item_id), len(self.answer.output), more)
        self._delta = (
            b'event: %b\ndata: {"type":"%b","item_id":%b,"output_index":%d%b,"delta":' % head
        )

    def _more(self, text: str, after: bytes = b"") -> bytes:
        """A delta of the open item."""
        number = self._number()
        return self._delta + _json(text) + after + b',"sequence_number":%d}\n\n' % number

    def _event(self, event: str, **fields: object) -> bytes:
        data = _json({"type": event, **fields, "sequence_number": self._number()})
        return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"

    def _number(self) -> int:
        self._sent += 1
        return self._sent - 1


def usage_of(choices: Choices) -> ResponseUsage:
    """The bill of a request."""
    read, said = choices.job.prompt_tokens, choices.completion_tokens
    cached = InputDetails(choices.cached_tokens)
    return ResponseUsage(read, cached, said, OutputDetails(), read + said)


def _new(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
