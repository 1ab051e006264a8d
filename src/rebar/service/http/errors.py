"""Errors as clients expect them, with a fitting status: OpenAI's
`{"error": {"message", "type", "param", "code"}}`, and under /v1/messages Anthropic's
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from rebar.errors import (
    DeadlineError,
    EngineError,
    InputError,
    ModelNameError,
    OverloadedError,
    RebarError,
)
from rebar.service.messages import DEADLINE, Failure


class HttpError(RebarError):
    """A fault of the HTTP request itself: its path, method, size or encoding."""

    def __init__(
        self, status: int, message: str, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


class KeyRefusedError(HttpError):
    """No API key, or one that is not known here. The connection ends: whoever has no key need not
    send the rest of a large body.
    """

    def __init__(self, *, given: bool) -> None:
        what = "This API key is not known here." if given else "An API key is needed."
        message = f"{what} Send yours as `Authorization: Bearer KEY` or in `x-api-key`."
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        super().__init__(401, message, "invalid_api_key", headers)


class AdminNeededError(HttpError):
    """A key that may ask, but not change what is served."""

    def __init__(self) -> None:
        message = (
            "This needs an admin's key. Whoever runs the server gives one with REBAR_ADMIN_KEY, or "
            "by the word `admin` behind a key of --api-keys-file."
        )
        super().__init__(403, message, "admin_key_needed")


class StoppingError(EngineError):
    """The server stops before the answer is complete."""

    retry_after = 1


class DrainingError(StoppingError):
    """The server takes no new requests. retry_after: seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("The server is stopping. Send the request to another, or again later.")
        self.retry_after = retry_after


class TimeLimitError(EngineError):
    """The answer took longer than the server waits for one."""


class ErrorObject(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not 2xx."""

    error: ErrorObject


class AnthropicErrorObject(msgspec.Struct):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct):
    """The body of every answer under /v1/messages that is not 2xx."""

    error: AnthropicErrorObject
    request_id: str | None = None
    type: Literal["error"] = "error"


MESSAGES_PATH = "/v1/messages"
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; other refusals are invalid_request_error, other failures api_error."""

INTERNAL = "Something failed inside the server. The log has the details under this request's id."


def describe(error: Exception) -> tuple[int, ErrorObject]:
    """Status and body of an error."""
    match error:
        case ModelNameError():
            status, kind = 404, "invalid_request_error"
        case InputError():
            status, kind = 400, "invalid_request_error"
        case OverloadedError():
            return 429, ErrorObject(str(error), "rate_limit_error", code="rate_limit_exceeded")
        case HttpError():
            return error.status, ErrorObject(str(error), "invalid_request_error", code=error.code)
        case StoppingError():
            return 503, ErrorObject(str(error), "server_error", code="stopping")
        case TimeLimitError():
            return 504, ErrorObject(str(error), "server_error", code="timeout")
        case DeadlineError():
            return 504, ErrorObject(str(error), "deadline_error", code=DEADLINE)
        case RebarError():
            return 500, ErrorObject(str(error), "server_error", code="engine_error")
        case _:
            return 500, ErrorObject(INTERNAL, "server_error", code="internal_error")
    return status, ErrorObject(str(error), kind, error.param, error.code)


def speaks_anthropic(path: str) -> bool:
    """Whether the answers of this path have Anthropic's shapes."""
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def anthropic_error(error: Exception, request_id: str | None = None) -> AnthropicErrorBody:
    """An error in Anthropic's shape. A parameter at fault is named in the message."""
    status, body = describe(error)
    kind = ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return AnthropicErrorBody(AnthropicErrorObject(kind, body.message), request_id)


def error_response(error: Exception, path: str = "", request_id: str | None = None) -> Response:
    """The whole answer for an error, in the shape of the path's API."""
    status, body = describe(error)
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError | StoppingError):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, HttpError):
        headers.update(error.headers)
    shaped = anthropic_error(error, request_id) if speaks_anthropic(path) else ErrorBody(body)
    content = msgspec.json.encode(shaped)
    return Response(content, status, headers, media_type="application/json")


def error_of(failure: Failure, place: str = "") -> RebarError:
    """The error a delta reports. place: where a grammar was asked for, if one was."""
    if failure.caller:
        param = place if failure.code == "invalid_grammar" and place else None
        return InputError(failure.message, param=param, code=failure.code)
    if failure.code == "stopping":
        return StoppingError(failure.message)
    if failure.code == "timeout":
        return TimeLimitError(failure.message)
    if failure.code == DEADLINE:
        return DeadlineError(failure.message)
    return EngineError(failure.message)
