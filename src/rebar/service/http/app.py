"""The FastAPI application: routes, errors, middleware, start and stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from rebar.errors import RebarError
from rebar.service.body import MAX_DEPTH
from rebar.service.http.access import Access
from rebar.service.http.adapters import AdapterRoutes
from rebar.service.http.classify import ClassifyRoutes
from rebar.service.http.connection import MAX_HEAD_BYTES
from rebar.service.http.cors import Cors
from rebar.service.http.embeddings import EmbeddingRoutes
from rebar.service.http.errors import HttpError
from rebar.service.http.health import HealthRoutes
from rebar.service.http.keys import KeyGuard
from rebar.service.http.lifecycle import Lifecycle
from rebar.service.http.loop_guard import LoopGuard
from rebar.service.http.metrics import ServiceMetrics
from rebar.service.http.middleware import STRAIGHT, RequestMiddleware, error_answer
from rebar.service.http.off_loop import OffLoop
from rebar.service.http.openapi import ANY_WAY, SECURITY, component_schemas
from rebar.service.http.reading import MAX_BODY_BYTES
from rebar.service.http.routes import Routes, api_router
from rebar.service.router import ServiceRouter
from rebar.service.validator import DEFAULT_COMPLETION_TOKENS, GREEDY_BELOW

VERSION = "0.1.0"
DESCRIPTION = f"""
An exact language model server. The bits of an answer depend on the model, the prompt, the
parameters and the seed, and on nothing else.

**Limits.** A body may have {MAX_BODY_BYTES // 2**20} MiB, uncompressed, and JSON nested
{MAX_DEPTH} deep; a head {MAX_HEAD_BYTES // 2**10} KiB. Text must be UTF-8 without lone surrogates,
numbers finite. An unknown parameter is refused, not ignored.

**Rules.** `max_tokens` beyond the context is lowered to what is left; a prompt that leaves no room
is refused, never cut. Absent, it means all that is left in chat and {DEFAULT_COMPLETION_TOKENS}
in plain completions. `completion_tokens` counts every sampled id, the end token included.
Temperatures up to {GREEDY_BELOW} are greedy. Without a `seed` one is drawn. Choice i of `n` has a
seed of its own, made of the request's. In chat, control tokens in the text of a message are plain
text; in `/v1/completions` and `/tokenize` they are control tokens. Text parts of a message are
joined by a line end.

**Embeddings** are hidden states behind the final norm, their mean or (`pooling`: `last`) the last
one, at length 1. `dimensions` keeps the first so many numbers, at length 1 again. Control tokens in
a text are plain text; a text longer than the context is refused.

**Images.** `/v1/classify` takes PNG files, not interlaced and without transparent pixels, in
base64, or raw pixels from 0 to 255; of the size that the model was trained on, since scaling is the
caller's choice. Colours become gray by ITU-R 601 where the model takes gray. Probabilities are the
softmax of the model's logits.

**Keys.** Where the server was started with API keys, every path but /health, /health/ready,
/health/live and /metrics wants one, as `Authorization: Bearer KEY` or in `x-api-key`. Requests of
one tenant do not share computed prompts with another's, nor see its history.

**Responses and Messages** are turned into chat requests. Nothing is stored: a conversation comes
whole with each request. What a route does not know of these APIs it refuses by name. Where Messages
counts tokens, those that had been computed before are in `cache_read_input_tokens`, apart from
`input_tokens`.

**Adapters** (LoRA) are named by `model` like the model itself; GET /v1/models lists them with their
`parent`. One that is unloaded finishes its open answers first. Loading and unloading wants
`Content-Type: application/json`, which no page of another origin can send unasked, and where there
are keys an admin's. All who have a key see all adapters.

**Errors** are `{{"error": {{"message", "type", "param", "code"}}}}`, under /v1/messages
`{{"type": "error", "error": {{"type", "message"}}, "request_id"}}`. A failure after a stream began
is one such event (`error` and `response.failed` of Responses); then it ends, without `[DONE]`.
A client that closes its side of the connection, even only for writing, has left: its work ends.
"""


class RebarApp(FastAPI):
    """FastAPI whose OpenAPI document has the msgspec schemas as components."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Keeps the server's own `send` for what no layer has to look at."""
        if scope["type"] == "http":
            scope[STRAIGHT] = send
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(component_schemas())
            components["securitySchemes"] = SECURITY
            document["security"] = ANY_WAY
            self.openapi_schema = document
        return self.openapi_schema


def create_app(
    router: ServiceRouter, lifecycle: Lifecycle | None = None, access: Access | None = None
) -> FastAPI:
    """The application over `router`, whose workers it starts and stops with its own life.

    access: who may ask; None for everybody, and no page of another origin.
    """
    access = access or Access()
    lifecycle = lifecycle or Lifecycle()
    guard = LoopGuard(lifecycle.limits.block)
    metrics = ServiceMetrics(router, guard)
    off_loop = OffLoop()
    routes = Routes(router, metrics, off_loop)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        router.start()
        guard.start()
        yield
        guard.stop()
        await router.stop()
        off_loop.close()

    app = RebarApp(
        title="Rebar",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # it would load its scripts from somebody else's server
        redoc_url=None,
    )
    app.state.metrics = metrics
    inputs = EmbeddingRoutes(router, off_loop), ClassifyRoutes(router, off_loop)
    app.include_router(api_router(routes, *inputs, AdapterRoutes(router)))
    app.include_router(HealthRoutes(router, lifecycle).api())
    app.add_exception_handler(RebarError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_middleware(KeyGuard, keys=access.keys)  # the last one added is the first one asked
    app.add_middleware(RequestMiddleware, metrics=metrics, lifecycle=lifecycle)
    app.add_middleware(Cors, origins=access.origins)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_answer(error, request.scope)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such path, wrong method."""
    assert isinstance(error, HTTPException)
    what = {404: "There is no such path", 405: "This path does not take that method"}
    message = (
        what.get(error.status_code, str(error.detail)) + ". GET /openapi.json says what there is."
    )
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = dict(error.headers) if error.headers else None
    return error_answer(HttpError(error.status_code, message, code, headers), request.scope)
