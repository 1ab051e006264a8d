"""Pages of other origins: which of them a browser lets read our answers. None, unless allowed.

Outermost and pure ASGI: every answer goes through it, streams and errors included, and a
pre-flight, which cannot carry a key, is answered here. Only browsers care; whoever else asks is
kept out by keys, not by this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rebar.errors import InputError
from rebar.service.http.errors import HttpError, error_response

ANY = "*"
METHODS = "GET, POST"
EXPOSED = "X-Request-Id, Retry-After"
MAX_AGE_SECONDS = 600
_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|[a-z]+://\[[0-9a-f:]+\](:\d+)?"
)
_FIELDS = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{0,2048}", re.ASCII)


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """The origins to allow, in the spelling of browsers. Raises InputError for what is none."""
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise InputError(
                f"{origin[:200]!r} is no origin. Write it as a browser does, like "
                "https://app.example or http://localhost:3000, without a path; * allows all.",
                param="cors_origin",
            )
    return tuple(dict.fromkeys(origins))


class Cors:
    """Adds the headers that let pages of `origins` read answers. They send no cookies: a key is in
    a header that the page's own code writes.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not self._origins:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        allowed = self._allowed(headers.get("origin"))
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(headers, allowed, scope["path"])(scope, receive, send)
            return

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._mark(MutableHeaders(scope=message), allowed)
            await send(message)

        await self._app(scope, receive, send_with_origin)

    def _allowed(self, origin: str | None) -> str | None:
        """What the answer says of this origin; None when it says nothing."""
        if origin is None:
            return None
        if ANY in self._origins:
            return ANY
        return origin if origin in self._origins else None

    def _mark(self, headers: MutableHeaders, allowed: str | None) -> None:
        if ANY not in self._origins:
            headers.add_vary_header("Origin")  # also where nothing is allowed: a cache must know
        if allowed is not None:
            headers["Access-Control-Allow-Origin"] = allowed
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def _preflight(self, asked: Headers, allowed: str | None, path: str) -> Response:
        if allowed is None:
            message = "Pages of this origin are not allowed here. Start with --cors-origin ORIGIN."
            answer = error_response(HttpError(403, message, "origin_not_allowed"), path)
        else:
            answer = Response(status_code=204)
            fields = asked.get("access-control-request-headers", "")
            if fields and _FIELDS.fullmatch(fields):
                answer.headers["Access-Control-Allow-Headers"] = fields
            answer.headers["Access-Control-Allow-Methods"] = METHODS
            answer.headers["Access-Control-Max-Age"] = str(MAX_AGE_SECONDS)
        self._mark(answer.headers, allowed)
        answer.headers.add_vary_header("Access-Control-Request-Headers")
        return answer
