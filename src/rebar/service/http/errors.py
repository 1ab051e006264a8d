"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` and a
fitting status.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from rebar.errors import (
    EngineError,
    InputError,
    ModelNameError,
    OverloadedError,
    RebarError,
)
from rebar.service.messages import Failure


class HttpError(RebarError):
    """A fault of the HTTP request itself: its path, method, size or encoding."""

    def __init__(
        self, status: int, message: str, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


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
        case RebarError():
            return 500, ErrorObject(str(error), "server_error", code="engine_error")
        case _:
            return 500, ErrorObject(INTERNAL, "server_error", code="internal_error")
    return status, ErrorObject(str(error), kind, error.param, error.code)


def error_response(error: Exception) -> Response:
    """The whole answer for an error."""
    status, body = describe(error)
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError | StoppingError):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, HttpError):
        headers.update(error.headers)
    content = msgspec.json.encode(ErrorBody(body))
    return Response(content, status, headers, media_type="application/json")


def error_of(failure: Failure) -> RebarError:
    """The error a delta reports."""
    if failure.caller:
        return InputError(failure.message, code=failure.code)
    if failure.code == "stopping":
        return StoppingError(failure.message)
    if failure.code == "timeout":
        return TimeLimitError(failure.message)
    return EngineError(failure.message)
