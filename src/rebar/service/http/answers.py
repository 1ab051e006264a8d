"""Whole answers: the response objects of OpenAI's API and how they are filled."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from rebar.service.history import ChoiceStory
from rebar.service.http.choices import ChoiceEnd, Choices, Piece
from rebar.service.http.scores import (
    ChatLogprobs,
    CompletionLogprobs,
    CompletionScores,
    chat_logprobs,
)
from rebar.service.interfaces import TextTokenizer
from rebar.service.request_stream import RequestStream


class PromptDetails(msgspec.Struct):
    """cached_tokens: of the prompts, those that had been computed for another request before."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request. Each prompt counts once, however many choices; end tokens count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class CalledFunction(msgspec.Struct):
    """arguments: JSON in a string, as the model wrote it."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct):
    """A call that the model wants made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(msgspec.Struct):
    """The answer of a chat choice."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[CalledTool] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One choice of a chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChoiceEnd | None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    explanation: list[ChoiceStory] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct):
    """One choice of a plain answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: ChoiceEnd | None


class Completion(msgspec.Struct, kw_only=True):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    explanation: list[ChoiceStory] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Heading:
    """What every object of one answer begins with."""

    id: str
    created: int
    model: str


def usage_of(choices: Choices) -> Usage:
    """The bill of a request."""
    prompt, completion = choices.job.prompt_tokens, choices.completion_tokens
    details = PromptDetails(choices.cached_tokens)
    return Usage(prompt, completion, prompt + completion, details)


async def collect(choices: Choices, stream: RequestStream, first: dict[int, Piece]) -> list[Piece]:
    """Every choice, whole, in order; `first` is what has already come."""
    whole = [first.get(i) or Piece() for i in range(len(choices.job.packets))]
    while not stream.done:
        for index, piece in (await choices.next(stream)).items():
            whole[index].add(piece)
    return whole


def message_of(piece: Piece) -> AssistantMessage:
    """A whole answer: its text, and its calls where there are any."""
    if not piece.calls:
        return AssistantMessage(piece.text)
    calls: list[CalledTool] = []
    for part in piece.calls:
        if part.name is not None:
            calls.append(CalledTool(call_id(), CalledFunction(part.name, "")))
        calls[part.index].function.arguments += part.arguments
    return AssistantMessage(piece.text or None, tool_calls=calls)


def call_id() -> str:
    """A new id of a call."""
    return "call_" + secrets.token_hex(12)


def chat_answer(
    heading: Heading, tokenizer: TextTokenizer, choices: Choices, pieces: list[Piece]
) -> bytes:
    """The JSON of a whole chat answer."""
    scored = choices.job.scored
    listed = [
        ChatChoice(
            i,
            message_of(piece),
            chat_logprobs(tokenizer, piece.scored) if scored else None,
            piece.finish,
        )
        for i, piece in enumerate(pieces)
    ]
    return msgspec.json.encode(
        ChatCompletion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            choices=listed,
            usage=usage_of(choices),
            explanation=choices.explanation() or UNSET,
        )
    )


def completion_answer(
    heading: Heading, tokenizer: TextTokenizer, choices: Choices, pieces: list[Piece]
) -> bytes:
    """The JSON of a whole plain answer."""
    scored = choices.job.scored
    listed = [
        CompletionChoice(
            i,
            piece.text,
            CompletionScores(tokenizer).take(piece.scored) if scored else None,
            piece.finish,
        )
        for i, piece in enumerate(pieces)
    ]
    return msgspec.json.encode(
        Completion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            choices=listed,
            usage=usage_of(choices),
            explanation=choices.explanation() or UNSET,
        )
    )
