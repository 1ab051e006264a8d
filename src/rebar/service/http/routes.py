"""The routes. Each reads the raw body, decodes it with msgspec, and answers with ready bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rebar.errors import InputError
from rebar.service.body import decode_body
from rebar.service.grammar_check import GrammarChecker
from rebar.service.http import openapi
from rebar.service.http.answers import Heading, chat_answer, collect, completion_answer
from rebar.service.http.choices import Choices, Piece
from rebar.service.http.errors import HttpError
from rebar.service.http.metrics import ServiceMetrics
from rebar.service.http.middleware import STRAIGHT, record_of
from rebar.service.http.reading import read_body, until_disconnect
from rebar.service.http.sse import CHAT, COMPLETION, Dialect, EventWriter, events
from rebar.service.http.urgency import with_urgency
from rebar.service.router import ModelService, RequestStream, ServiceRouter
from rebar.service.validator import Job
from rebar.service.wire import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

INLINE_BYTES = 4 * 1024
"""A body up to this size is checked and tokenized in the event loop: 2 ms at 2 MB/s. Longer ones go
to a thread, so that they hold nobody up."""

T = TypeVar("T")
B = TypeVar("B", ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)


class EventStream(StreamingResponse):
    """A stream of events that lets go of its request however it ends."""

    def __init__(
        self, writer: EventWriter, choices: Choices, stream: RequestStream, first: Pieces
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        content = events(writer, choices, stream, first)
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._stream = stream
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until the client leaves."""
        try:
            with contextlib.suppress(ClientDisconnect):
                await until_disconnect(receive, self._send_all(send, scope.get(STRAIGHT, send)))
        finally:
            self._stream.close()
            notes = record_of(scope).notes
            notes["completion_tokens"] = self._choices.completion_tokens
            if self._choices.failure:
                notes["failed"] = self._choices.failure

    async def _send_all(self, send: Send, straight: Send) -> None:
        """The head through all layers, which have something to say of it; events straight to the
        server: six wrappers that pass them on cost more than writing them.
        """
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for chunk in self.body_iterator:
            await straight({"type": "http.response.body", "body": chunk, "more_body": True})
        await straight({"type": "http.response.body", "body": b"", "more_body": False})


Pieces = dict[int, Piece]


class Routes:
    """The handlers and what they share."""

    def __init__(self, router: ServiceRouter, metrics: ServiceMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self._text_threads = ThreadPoolExecutor(2, thread_name_prefix="rebar-text")
        self._grammar_thread = ThreadPoolExecutor(1, thread_name_prefix="rebar-check")
        self._checker = GrammarChecker()

    def close(self) -> None:
        """Ends the text threads and the grammar checker."""
        self._text_threads.shutdown(wait=False)
        self._grammar_thread.shutdown(wait=False)
        self._checker.close()

    async def chat(self, request: Request) -> Response:
        """Answers a conversation, whole or as a stream of events."""
        return await self._generate(request, ChatBody, CHAT)

    async def completions(self, request: Request) -> Response:
        """Continues a prompt. Control tokens in the prompt's text are parsed as control tokens."""
        return await self._generate(request, CompletionBody, COMPLETION)

    async def _generate(
        self, request: Request, form: type[ChatBody] | type[CompletionBody], dialect: Dialect
    ) -> Response:
        record = record_of(request.scope)
        service, job = await self._validated(request, form)
        job = with_urgency(job, request.headers, record.started)
        record.notes.update(prompt_tokens=job.prompt_tokens, n=job.n)
        choices, stream = Choices(job), service.submit(job.packets, record.started)
        answer: Response | None = None
        try:
            answer = await self._answer(request, service, dialect, choices, stream)
            return answer
        finally:
            if not isinstance(answer, EventStream):  # which lets go by itself, at its end
                stream.close()
                record.notes["completion_tokens"] = choices.completion_tokens

    async def _validated(
        self, request: Request, form: type[ChatBody] | type[CompletionBody]
    ) -> tuple[ModelService, Job]:
        raw = await read_body(request)
        caller = record_of(request.scope).caller

        def validate() -> tuple[ModelService, Job]:
            body = decode_body(raw, form)
            service = self._router.route(body.model)
            if isinstance(body, ChatBody):
                return service, service.validator.chat(body, caller)
            return service, service.validator.completion(body, caller)

        service, job = await self._off_loop(len(raw), validate)
        if job.grammar:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._grammar_thread, self._checker.check, job.grammar)
        return service, job

    async def _answer(
        self,
        request: Request,
        service: ModelService,
        dialect: Dialect,
        choices: Choices,
        stream: RequestStream,
    ) -> Response:
        job, tokenizer = choices.job, service.model.tokenizer
        first = await until_disconnect(request.receive, self._first(choices, stream))
        prefix = "chatcmpl-" if dialect is CHAT else "cmpl-"
        heading = Heading(prefix + secrets.token_hex(12), int(time.time()), job.model)
        if job.stream:
            writer = EventWriter(dialect, heading, tokenizer, choices)
            return EventStream(writer, choices, stream, first)
        pieces = await until_disconnect(request.receive, collect(choices, stream, first))
        write = chat_answer if dialect is CHAT else completion_answer
        return _json_response(write(heading, tokenizer, choices, pieces))

    async def _first(self, choices: Choices, stream: RequestStream) -> Pieces:
        """Waits for the first thing to show: until then a failure can still have a status of its
        own.
        """
        pieces: Pieces = {}
        while not any(piece.text or piece.calls or piece.finish for piece in pieces.values()):
            for index, piece in (await choices.next(stream)).items():
                pieces.setdefault(index, Piece()).add(piece)
        return pieces

    async def request(self, request: Request, request_id: str) -> Response:
        """What happened to a recent request, by its X-Request-Id: when, and what it waited for."""
        tenant = record_of(request.scope).caller.tenant
        for service in self._router.services:
            story = service.history.get(request_id, tenant)
            if story is not None:
                return _json_response(msgspec.json.encode(story))
        raise HttpError(404, "No request of this id, or too long ago.", "request_not_found")

    async def models(self) -> Response:
        """Lists the served models."""
        listed = [describe_model(service) for service in self._router.services]
        return _json_response(msgspec.json.encode({"object": "list", "data": listed}))

    async def model(self, model: str) -> Response:
        """Describes one model."""
        return _json_response(msgspec.json.encode(describe_model(self._router.route(model))))

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or of a conversation."""
        raw = await read_body(request)

        def work() -> bytes:
            body = decode_body(raw, TokenizeBody)
            model = self._router.route(body.model).model
            if (body.prompt is None) == (body.messages is None):
                raise InputError("Give `prompt` or `messages`, one of them.", param="prompt")
            if body.messages is not None:
                validator = self._router.route(body.model).validator
                ids = validator.chat_prompt(
                    body.messages, add_generation_prompt=body.add_generation_prompt
                )
            else:
                bos = None if body.add_special_tokens else False
                ids = model.tokenizer.encode(body.prompt or "", special=True, bos=bos)
            answer: dict[str, Any] = {
                "count": len(ids),
                "max_model_len": model.limits.max_total,
                "tokens": ids,
            }
            if body.return_token_strs:
                pieces = (model.tokenizer.token_bytes(token) for token in ids)
                answer["token_strs"] = [raw.decode("utf-8", "replace") for raw in pieces]
            return msgspec.json.encode(answer)

        return _json_response(await self._off_loop(len(raw), work))

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids."""
        raw = await read_body(request)

        def work() -> bytes:
            body = decode_body(raw, DetokenizeBody)
            service = self._router.route(body.model)
            ids = service.validator.checked_ids(body.tokens, "tokens")
            return msgspec.json.encode({"prompt": service.model.tokenizer.decode(ids)})

        return _json_response(await self._off_loop(len(raw), work))

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Runs `work`, in a thread when the body is long enough to hold up other clients."""
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, work)


def describe_model(service: ModelService) -> dict[str, object]:
    """A model in OpenAI's shape; max_model_len as vLLM names it."""
    model = service.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "rebar",
        "max_model_len": model.limits.max_total,
    }


def _json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def api_router(routes: Routes) -> APIRouter:
    """Every route with its place in the OpenAPI document."""
    api = APIRouter()
    post, get = api.post, api.get
    post("/v1/chat/completions", **openapi.CHAT)(routes.chat)
    post("/v1/completions", **openapi.COMPLETIONS)(routes.completions)
    get("/v1/requests/{request_id:path}", **openapi.REQUEST)(routes.request)
    get("/v1/models", **openapi.MODELS)(routes.models)
    get("/v1/models/{model:path}", **openapi.MODEL)(routes.model)
    post("/tokenize", **openapi.TOKENIZE)(routes.tokenize)
    post("/detokenize", **openapi.DETOKENIZE)(routes.detokenize)
    get("/metrics", **openapi.METRICS)(routes.metrics)
    return api
