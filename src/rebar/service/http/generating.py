"""From a request to its answer, whole or as a stream: the one way of every API that generates."""

from __future__ import annotations

import contextlib
import secrets
import time
from functools import partial

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rebar.errors import InputError
from rebar.service.http.answers import Heading, collect
from rebar.service.http.choices import Choices, Piece
from rebar.service.http.connection import DirectBody
from rebar.service.http.exchange import Exchange, Reply, Writer
from rebar.service.http.middleware import STRAIGHT, record_of
from rebar.service.http.off_loop import OffLoop
from rebar.service.http.reading import read_body, until_disconnect
from rebar.service.http.sse import events
from rebar.service.http.urgency import with_urgency
from rebar.service.messages import Delta
from rebar.service.request_stream import RequestStream
from rebar.service.router import ModelService, ServiceRouter
from rebar.service.validator import Job

SCORE_BYTES = 64
"""What writing a scored token is worth in bytes of text; with alternatives it is more."""
Pieces = dict[int, Piece]


class EventStream(StreamingResponse):
    """A stream of events that lets go of its request however it ends."""

    def __init__(
        self, writer: Writer, choices: Choices, stream: RequestStream, first: Pieces
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        content = events(writer, choices, stream, first)
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._writer = writer
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
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        body = DirectBody.of(straight)
        if body is not None:
            self._stream.pass_on(partial(self._pass_on, body))
        async for chunk in self.body_iterator:
            await straight({"type": "http.response.body", "body": chunk, "more_body": True})
        await straight({"type": "http.response.body", "body": b"", "more_body": False})

    def _pass_on(self, body: DirectBody, delta: Delta) -> bool:
        """Writes what a delta says. False when its client does not read: then it is joined."""
        if not body.ready:
            return False
        index = self._stream.index(delta)
        event = self._writer.piece(index, self._choices.piece(index, delta))
        if event:
            body.write(event)
        return True


class Generating:
    """Answers requests of every Exchange."""

    def __init__(self, router: ServiceRouter, off_loop: OffLoop) -> None:
        self._router = router
        self._off_loop = off_loop

    async def answer(self, request: Request, kind: type[Exchange]) -> Response:
        """One request, from its bytes to its answer."""
        record = record_of(request.scope)
        exchange, service, job = await self._validated(request, kind)
        job = with_urgency(job, request.headers, record.started)
        record.notes.update(model=job.model, prompt_tokens=job.prompt_tokens, n=job.n)
        choices, stream = Choices(job), service.submit(job.packets, record.started, job.model)
        answer: Response | None = None
        try:
            answer = await self._answer(request, service, exchange, choices, stream)
            return answer
        finally:
            if not isinstance(answer, EventStream):  # which lets go by itself, at its end
                stream.close()
                record.notes["completion_tokens"] = choices.completion_tokens

    async def _validated(
        self, request: Request, kind: type[Exchange]
    ) -> tuple[Exchange, ModelService, Job]:
        raw = await read_body(request)
        caller = record_of(request.scope).caller

        def validate() -> tuple[Exchange, ModelService, Job]:
            exchange = kind.read(raw)
            route = self._router.route(exchange.model)
            return exchange, route.service, exchange.job(route.validator, caller)

        exchange, service, job = await self._off_loop.run(len(raw), validate)
        if job.grammar:
            try:
                await self._off_loop.check(job.grammar, job.place)
            except InputError as error:
                raise exchange.named(error) from None
        return exchange, service, job

    async def _answer(
        self,
        request: Request,
        service: ModelService,
        exchange: Exchange,
        choices: Choices,
        stream: RequestStream,
    ) -> Response:
        first = await until_disconnect(request.receive, self._first(choices, stream))
        id = exchange.prefix + secrets.token_hex(12)
        heading = Heading(id, int(time.time()), choices.job.model)
        reply = Reply(heading, service.model.tokenizer, choices)
        if choices.job.stream:
            return EventStream(exchange.writer(reply), choices, stream, first)
        pieces = await until_disconnect(request.receive, collect(choices, stream, first))
        size = sum(len(piece.text) + SCORE_BYTES * len(piece.scored) for piece in pieces)
        body = await self._off_loop.run(size, lambda: exchange.whole(reply, pieces))
        return Response(body, media_type="application/json")

    async def _first(self, choices: Choices, stream: RequestStream) -> Pieces:
        """Waits for the first thing to show: until then a failure can still have a status of its
        own.
        """
        pieces: Pieces = {}
        while not any(piece.text or piece.calls or piece.finish for piece in pieces.values()):
            for index, piece in (await choices.next(stream)).items():
                pieces.setdefault(index, Piece()).add(piece)
        return pieces
