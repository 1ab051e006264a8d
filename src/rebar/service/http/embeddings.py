"""POST /v1/embeddings: vectors of texts, through the same queue and steps as every answer."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
from fastapi import Request, Response

from rebar.service.body import decode_body
from rebar.service.embedding import shortened
from rebar.service.embedding_request import EmbeddingJob, embedding_job
from rebar.service.http.middleware import record_of
from rebar.service.http.off_loop import OffLoop
from rebar.service.http.reading import read_body, until_disconnect
from rebar.service.http.urgency import with_urgency
from rebar.service.http.waves import vectors_of
from rebar.service.router import ModelService, ServiceRouter
from rebar.service.wire import EmbeddingBody


class EmbeddingUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One text's vector: numbers, or their float32 bytes (little-endian) in base64."""

    embedding: list[float] | str
    index: int
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    """The answer of POST /v1/embeddings, in the order of the texts."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class EmbeddingRoutes:
    """The handler and what it needs."""

    def __init__(self, router: ServiceRouter, off_loop: OffLoop) -> None:
        self._router = router
        self._off_loop = off_loop

    async def embeddings(self, request: Request) -> Response:
        """One vector of length 1 for each text: its hidden states behind the final norm, their
        mean or the last one. A text's vector does not depend on the others. GET
        /v1/requests/{id} tells of the latest 64 texts.
        """
        raw = await read_body(request)
        record = record_of(request.scope)

        def validate() -> tuple[ModelService, EmbeddingJob]:
            body = decode_body(raw, EmbeddingBody)
            route = self._router.route(body.model)
            return route.service, embedding_job(route.validator, body, record.caller)

        service, job = await self._off_loop.run(len(raw), validate)
        job = with_urgency(job, request.headers, record.started)
        counts = {"prompt_tokens": job.prompt_tokens, "inputs": len(job.packets)}
        record.notes.update(counts, model=job.model)
        vectors = await until_disconnect(
            request.receive, vectors_of(service, job.model, job.packets, record.started)
        )
        answer = await self._off_loop.run(len(vectors) * 4096, lambda: answer_of(job, vectors))
        return Response(answer, media_type="application/json")


def answer_of(job: EmbeddingJob, vectors: list[bytes]) -> bytes:
    """The JSON of the answer."""
    listed = [Embedding(_written(job, vector), i) for i, vector in enumerate(vectors)]
    usage = EmbeddingUsage(job.prompt_tokens, job.prompt_tokens)
    return msgspec.json.encode(EmbeddingList(listed, job.model, usage))


def _written(job: EmbeddingJob, vector: bytes) -> list[float] | str:
    numbers = shortened(vector, job.dimensions)
    return base64.b64encode(numbers.tobytes()).decode() if job.base64 else numbers.tolist()
