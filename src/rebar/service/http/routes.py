"""The routes. Each reads the raw body, decodes it with msgspec, and answers with ready bytes."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from rebar.errors import InputError
from rebar.service.body import decode_body
from rebar.service.from_messages import from_input
from rebar.service.http import openapi
from rebar.service.http.adapters import AdapterRoutes
from rebar.service.http.classify import ClassifyRoutes
from rebar.service.http.describe import describe_all, describe_model
from rebar.service.http.embeddings import EmbeddingRoutes
from rebar.service.http.errors import HttpError
from rebar.service.http.exchange import ChatExchange, CompletionExchange
from rebar.service.http.generating import Generating
from rebar.service.http.messages import MessagesExchange, TokenCount
from rebar.service.http.metrics import ServiceMetrics
from rebar.service.http.middleware import record_of
from rebar.service.http.off_loop import OffLoop
from rebar.service.http.reading import read_body
from rebar.service.http.responses import ResponsesExchange
from rebar.service.router import ServiceRouter
from rebar.service.tools import tools_of
from rebar.service.wire import DetokenizeBody, TokenizeBody
from rebar.service.wire_messages import CountTokensBody


class Routes:
    """The handlers and what they share."""

    def __init__(self, router: ServiceRouter, metrics: ServiceMetrics, off_loop: OffLoop) -> None:
        self._router = router
        self._metrics = metrics
        self._off_loop = off_loop
        self._generating = Generating(router, off_loop)

    async def chat(self, request: Request) -> Response:
        """Answers a conversation, whole or as a stream of events."""
        return await self._generating.answer(request, ChatExchange)

    async def completions(self, request: Request) -> Response:
        """Continues a prompt. Control tokens in the prompt's text are parsed as control tokens."""
        return await self._generating.answer(request, CompletionExchange)

    async def responses(self, request: Request) -> Response:
        """Answers a conversation in the words of OpenAI's Responses. Nothing is stored."""
        return await self._generating.answer(request, ResponsesExchange)

    async def messages(self, request: Request) -> Response:
        """Answers a conversation in the words of Anthropic's Messages."""
        return await self._generating.answer(request, MessagesExchange)

    async def count_tokens(self, request: Request) -> Response:
        """Tokens that POST /v1/messages would read for the same input."""
        raw = await read_body(request)

        def work() -> bytes:
            body = decode_body(raw, CountTokensBody)
            validator = self._router.route(body.model).validator
            count = from_input(body).told(
                lambda chat: len(validator.prompt_of(chat, tools_of(chat)))
            )
            return msgspec.json.encode(TokenCount(count))

        return _json_response(await self._off_loop.run(len(raw), work))

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
        listed = [each for service in self._router.services for each in describe_all(service)]
        return _json_response(msgspec.json.encode({"object": "list", "data": listed}))

    async def model(self, model: str) -> Response:
        """Describes one model."""
        route = self._router.find(model)
        adapter = route.service.adapters.get(route.validator.name)
        return _json_response(msgspec.json.encode(describe_model(route.service, adapter)))

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
                texts = {id: model.tokenizer.token_bytes(id) for id in set(ids)}
                shown = {id: text.decode("utf-8", "replace") for id, text in texts.items()}
                answer["token_strs"] = [shown[id] for id in ids]
            return msgspec.json.encode(answer)

        return _json_response(await self._off_loop.run(len(raw), work))

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids."""
        raw = await read_body(request)

        def work() -> bytes:
            body = decode_body(raw, DetokenizeBody)
            service = self._router.route(body.model)
            ids = service.validator.checked_ids(body.tokens, "tokens")
            return msgspec.json.encode({"prompt": service.model.tokenizer.decode(ids)})

        return _json_response(await self._off_loop.run(len(raw), work))

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def api_router(
    routes: Routes, embeddings: EmbeddingRoutes, classify: ClassifyRoutes, adapters: AdapterRoutes
) -> APIRouter:
    """Every route with its place in the OpenAPI document."""
    api = APIRouter()
    post, get = api.post, api.get
    post("/v1/chat/completions", **openapi.CHAT)(routes.chat)
    post("/v1/completions", **openapi.COMPLETIONS)(routes.completions)
    post("/v1/responses", **openapi.RESPONSES)(routes.responses)
    post("/v1/messages", **openapi.MESSAGES)(routes.messages)
    post("/v1/messages/count_tokens", **openapi.COUNT_TOKENS)(routes.count_tokens)
    post("/v1/embeddings", **openapi.EMBEDDINGS)(embeddings.embeddings)
    post("/v1/load_lora_adapter", **openapi.LOAD_ADAPTER)(adapters.load)
    post("/v1/unload_lora_adapter", **openapi.UNLOAD_ADAPTER)(adapters.unload)
    post("/v1/classify", **openapi.CLASSIFY)(classify.classify)
    get("/v1/requests/{request_id:path}", **openapi.REQUEST)(routes.request)
    get("/v1/models", **openapi.MODELS)(routes.models)
    get("/v1/models/{model:path}", **openapi.MODEL)(routes.model)
    post("/tokenize", **openapi.TOKENIZE)(routes.tokenize)
    post("/detokenize", **openapi.DETOKENIZE)(routes.detokenize)
    get("/metrics", **openapi.METRICS)(routes.metrics)
    return api
