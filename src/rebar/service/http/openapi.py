"""The OpenAPI document: schemas come from the very structs that decode and encode, so they cannot
drift.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rebar.service.history import RequestStory
from rebar.service.http.answers import ChatCompletion, Completion
from rebar.service.http.embeddings import EmbeddingList
from rebar.service.http.errors import AnthropicErrorBody, ErrorBody
from rebar.service.http.messages import MessageObject, TokenCount
from rebar.service.http.responses import ResponseObject
from rebar.service.wire import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    TokenizeBody,
)
from rebar.service.wire_messages import CountTokensBody, MessagesBody
from rebar.service.wire_responses import ResponsesBody


class ModelObject(msgspec.Struct):
    """A served model. max_model_len: most tokens of prompt and answer together."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct):
    """The served models."""

    object: str
    data: list[ModelObject]


class TokenizeAnswer(msgspec.Struct):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The answer of POST /detokenize."""

    prompt: str


class EngineHealth(msgspec.Struct):
    """How one engine fares. pid: the process that computes, null while the next one starts. open:
    choices accepted and not ended, of which the engine computes `running`; blocks are those of the
    KV cache. An engine at rest has none of the former and all of the latter free.
    """

    model: str
    healthy: bool
    pid: int | None
    steps: int
    open: int
    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    restarts: int
    silent_seconds: float


class Health(msgspec.Struct):
    """The answer of GET /health."""

    status: str
    draining: bool
    engines: list[EngineHealth]


class State(msgspec.Struct):
    """The answer of GET /health/ready and /health/live."""

    status: str


TYPES: tuple[type[msgspec.Struct], ...] = (
    ChatBody,
    CompletionBody,
    TokenizeBody,
    DetokenizeBody,
    ChatCompletion,
    Completion,
    EmbeddingBody,
    EmbeddingList,
    ResponsesBody,
    ResponseObject,
    MessagesBody,
    MessageObject,
    CountTokensBody,
    TokenCount,
    ErrorBody,
    AnthropicErrorBody,
    ModelObject,
    ModelList,
    TokenizeAnswer,
    DetokenizeAnswer,
    RequestStory,
    Health,
    State,
)
REF = "#/components/schemas/{name}"


def component_schemas() -> dict[str, Any]:
    """JSON schemas of every body, by name."""
    return msgspec.json.schema_components(TYPES, ref_template=REF)[1]


def _content(kind: type[msgspec.Struct], media_type: str = "application/json") -> dict[str, Any]:
    return {"content": {media_type: {"schema": {"$ref": REF.format(name=kind.__name__)}}}}


def _errors(*statuses: int, body: type[msgspec.Struct] = ErrorBody) -> dict[int | str, Any]:
    meanings = {
        400: "A parameter is not valid; `param` names it",
        404: "No such model, or no such request",
        413: "The body is too large",
        415: "The body is compressed",
        429: "The queue is full; Retry-After says when to come back",
        500: "The engine failed; the request can be sent again",
        503: "The server is stopping; Retry-After says when to come back",
        504: "The answer took longer than the server, or X-Deadline-Ms, allows",
    }
    return {s: {"description": meanings[s], **_content(body)} for s in statuses}


def _post(
    body: type[msgspec.Struct],
    answer: type[msgspec.Struct],
    *,
    stream: bool = False,
    errors: tuple[int, ...],
    error: type[msgspec.Struct] = ErrorBody,
) -> dict[str, Any]:
    ok: dict[str, Any] = {"description": "The answer", **_content(answer)}
    if stream:
        ok["description"] = "The answer; with `stream` a stream of server-sent events"
        ok["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "openapi_extra": {"requestBody": {"required": True, **_content(body)}},
        "responses": {200: ok, **_errors(*errors, body=error)},
        "response_model": None,
    }


def _get(answer: type[msgspec.Struct], *errors: int) -> dict[str, Any]:
    ok = {"description": "The answer", **_content(answer)}
    return {"responses": {200: ok, **_errors(*errors)}, "response_model": None}


_GENERATION = (400, 404, 413, 415, 429, 500, 503, 504)
_TEXT = (400, 404, 413, 415)
CHAT = _post(ChatBody, ChatCompletion, stream=True, errors=_GENERATION)
COMPLETIONS = _post(CompletionBody, Completion, stream=True, errors=_GENERATION)
EMBEDDINGS = _post(EmbeddingBody, EmbeddingList, errors=_GENERATION)
RESPONSES = _post(ResponsesBody, ResponseObject, stream=True, errors=_GENERATION)
MESSAGES = _post(
    MessagesBody, MessageObject, stream=True, errors=_GENERATION, error=AnthropicErrorBody
)
COUNT_TOKENS = _post(CountTokensBody, TokenCount, errors=_TEXT, error=AnthropicErrorBody)
TOKENIZE = _post(TokenizeBody, TokenizeAnswer, errors=_TEXT)
DETOKENIZE = _post(DetokenizeBody, DetokenizeAnswer, errors=_TEXT)
MODELS = _get(ModelList)
MODEL = _get(ModelObject, 404)
HEALTH: dict[str, Any] = _get(Health)
HEALTH["responses"][503] = {"description": "An engine does not advance", **_content(Health)}
READY: dict[str, Any] = _get(State)
READY["responses"][503] = {"description": "No new requests, for now", **_content(State)}
LIVE = _get(State)
REQUEST = _get(RequestStory, 404)
METRICS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Prometheus exposition format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
    "response_model": None,
}
