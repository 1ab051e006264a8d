"""Around every request: its id, one log line, its numbers, and an answer even when everything
fails.

Pure ASGI: nothing is buffered and a client's leaving is seen by the route.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rebar.service.http.connection import CUT_OFF, REFUSED
from rebar.service.http.errors import DrainingError, error_response, speaks_anthropic
from rebar.service.http.lifecycle import OPERATIONS, Lifecycle
from rebar.service.http.metrics import ServiceMetrics
from rebar.service.validator import Caller

log = logging.getLogger("rebar.service.request")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

STRAIGHT = "rebar.straight"
"""Key in the scope: the server's own `send`, past every layer."""
CLIENT_LEFT = 499
"""Status in the log for a client that left before its answer (as nginx writes it)."""


@dataclass(slots=True)
class RequestRecord:
    """What is known of a request while it lasts; routes add `notes` for the log line."""

    caller: Caller
    started: float
    status: int = 0
    notes: dict[str, object] = field(default_factory=dict)

    def belongs_to(self, tenant: str) -> None:
        """A key has told whose request it is."""
        self.caller = replace(self.caller, tenant=tenant)
        self.notes["tenant"] = tenant


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request in progress."""
    record: RequestRecord = scope["request_record"]
    return record


def caller_of(headers: Headers) -> Caller:
    """X-Request-Id when it is well formed, else a new one; the trace id of W3C traceparent, else
    the same.
    """
    given = headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else "req-" + secrets.token_hex(12)
    trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return Caller(request_id, trace.group(1) if trace else request_id)


def error_answer(error: Exception, scope: Scope) -> Response:
    """The answer for an error of this request."""
    return error_response(error, scope["path"], record_of(scope).caller.request_id)


class RequestMiddleware:
    """Outermost but for Cors; nothing that happens inside leaves it without an answer and a log
    line.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, lifecycle: Lifecycle) -> None:
        self._app = app
        self._metrics = metrics
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(caller_of(Headers(scope=scope)), time.monotonic())
        scope["request_record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.caller.request_id
                if speaks_anthropic(scope["path"]):
                    headers["request-id"] = record.caller.request_id  # where its clients look
                if self._lifecycle.draining:
                    headers["Connection"] = "close"
            await send(message)

        operation = scope["path"] in OPERATIONS
        app = self._app
        if self._lifecycle.draining and not operation:
            app = error_answer(DrainingError(self._lifecycle.retry_after), scope)
        self._lifecycle.open += not operation
        try:
            await app(scope, receive, send_with_id)
        except ClientDisconnect:
            record.status = CLIENT_LEFT
        except Exception as error:
            log.exception("request %s failed", record.caller.request_id)
            if record.status:
                raise
            await error_answer(error, scope)(scope, receive, send_with_id)
        finally:
            self._lifecycle.open -= not operation
            self._end(scope, record)

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        seconds = time.monotonic() - record.started
        route = getattr(scope.get("route"), "path", "other")
        state = scope.get("state", {})
        status = state.get(REFUSED) or record.status or CLIENT_LEFT
        cut_off = state.get(CUT_OFF)
        if cut_off:
            record.notes["cut_off"] = cut_off
        self._count(route, status, seconds, cut_off)
        log.log(
            logging.DEBUG if route in OPERATIONS else logging.INFO,
            "%s %s %d %.1f ms id=%s%s",
            scope["method"] if len(scope["method"]) < 16 else "?",
            route,
            status,
            seconds * 1e3,
            record.caller.request_id,
            "".join(f" {key}={value}" for key, value in record.notes.items()),
        )

    def _count(self, route: str, status: int, seconds: float, cut_off: str | None) -> None:
        """Its numbers. What fails here is no fault of the request's."""
        try:
            if cut_off:
                self._metrics.cut_off(cut_off)
            self._metrics.request_ended(route, status, seconds)
        except Exception:
            log.exception("a measurement failed; requests go on, /metrics may be wrong")
