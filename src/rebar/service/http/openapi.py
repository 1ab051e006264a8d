"""The OpenAPI document: schemas come from the very structs that decode and encode, so they cannot
drift.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rebar.service.history import RequestStory
from rebar.service.http.adapters import UnloadedAdapter
from rebar.service.http.answers import ChatCompletion, Completion
from rebar.service.http.classify import ClassificationList
from rebar.service.http.embeddings import EmbeddingList
from rebar.service.http.errors import AnthropicErrorBody, ErrorBody
from rebar.service.http.messages import MessageObject, TokenCount
from rebar.service.http.responses import ResponseObject
from rebar.service.wire import (
    ChatBody,
    ClassifyBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    LoadAdapterBody,
    TokenizeBody,
    UnloadAdapterBody,
)
from rebar.service.wire_messages import CountTokensBody, MessagesBody
from rebar.service.wire_responses import ResponsesBody


class ModelObject(msgspec.Struct):
    """A served model, or an adapter of `parent`. root: where it came from, as the server was told.
    max_model_len: most tokens of prompt and answer together.
    """

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    max_model_len: int
    parent: str | msgspec.UnsetType = msgspec.UNSET


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
    ClassifyBody,
    ClassificationList,
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
    LoadAdapterBody,
    UnloadAdapterBody,
    UnloadedAdapter,
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


SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Ways to send a key; none is needed where the server was started without keys."""
ANY_WAY: list[dict[str, list[str]]] = [{"bearer": []}, {"x-api-key": []}, {}]


def _header(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": schema, "description": description}


REQUEST_ID = _header(
    "X-Request-Id",
    {"type": "string", "pattern": "^[A-Za-z0-9._:/+=@-]{1,128}$"},
    "Follows the request through logs and history; drawn when absent or of another form.",
)
URGENCY = [
    _header("X-Priority", {"enum": ["high", "normal", "low"]}, "Decides over `priority`."),
    _header(
        "X-Deadline-Ms",
        {"type": "integer", "minimum": 1, "maximum": 86_400_000},
        "Milliseconds after which the answer is of no use.",
    ),
]


def _errors(*statuses: int, body: type[msgspec.Struct] = ErrorBody) -> dict[int | str, Any]:
    meanings = {
        400: "A parameter is not valid; `param` names it",
        401: "An API key is needed, or this one is not known",
        403: "An admin's key is needed",
        404: "No such model, or no such request",
        409: "The name is taken",
        413: "The body is too large",
        415: "The body is compressed, or not said to be JSON where that is asked for",
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
    work: bool = True,
    error: type[msgspec.Struct] = ErrorBody,
) -> dict[str, Any]:
    """stream: may answer in events. work: goes through the engine, and so may have to wait."""
    ok: dict[str, Any] = {"description": "The answer", **_content(answer)}
    if stream:
        ok["description"] = "The answer; with `stream` a stream of server-sent events"
        ok["content"]["text/event-stream"] = {"schema": {"description": "Events"}}
    parameters = [REQUEST_ID, *URGENCY] if work else [REQUEST_ID]
    statuses = (400, 401, 404, 413, 415, 429, 500, 503, 504) if work else _TEXT
    return {
        "openapi_extra": {
            "parameters": parameters,
            "requestBody": {"required": True, **_content(body)},
        },
        "responses": {200: ok, **_errors(*statuses, body=error)},
        "response_model": None,
    }


def _get(answer: type[msgspec.Struct], *errors: int) -> dict[str, Any]:
    ok = {"description": "The answer", **_content(answer)}
    return {"responses": {200: ok, **_errors(401, *errors, 500, 503)}, "response_model": None}


def _open(answer: type[msgspec.Struct]) -> dict[str, Any]:
    """A question of machines, for which no key is needed."""
    ok = {"description": "The answer", **_content(answer)}
    return {"responses": {200: ok}, "openapi_extra": {"security": []}, "response_model": None}


_TEXT = (400, 401, 404, 413, 415, 500, 503)
CHAT = _post(ChatBody, ChatCompletion, stream=True)
COMPLETIONS = _post(CompletionBody, Completion, stream=True)
EMBEDDINGS = _post(EmbeddingBody, EmbeddingList)
CLASSIFY = _post(ClassifyBody, ClassificationList)
RESPONSES = _post(ResponsesBody, ResponseObject, stream=True)
MESSAGES = _post(MessagesBody, MessageObject, stream=True, error=AnthropicErrorBody)
COUNT_TOKENS = _post(CountTokensBody, TokenCount, work=False, error=AnthropicErrorBody)
TOKENIZE = _post(TokenizeBody, TokenizeAnswer, work=False)
DETOKENIZE = _post(DetokenizeBody, DetokenizeAnswer, work=False)
LOAD_ADAPTER = _post(LoadAdapterBody, ModelObject, work=False)
LOAD_ADAPTER["responses"] |= _errors(403, 409)
UNLOAD_ADAPTER = _post(UnloadAdapterBody, UnloadedAdapter, work=False)
UNLOAD_ADAPTER["responses"] |= _errors(403)
UNLOAD_ADAPTER["responses"][202] = {
    "description": "Off the list; it leaves when its open answers have ended",
    **_content(UnloadedAdapter),
}
MODELS = _get(ModelList)
MODEL = _get(ModelObject, 404)
HEALTH = _open(Health)
HEALTH["responses"][503] = {"description": "An engine does not advance", **_content(Health)}
READY = _open(State)
READY["responses"][503] = {"description": "No new requests, for now", **_content(State)}
LIVE = _open(State)
REQUEST = _get(RequestStory, 404)
METRICS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Prometheus exposition format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
    "openapi_extra": {"security": []},
    "response_model": None,
}
