"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while others are
served. Paths, fields and manners as vLLM has them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from fastapi import Request, Response

from rebar.errors import InputError, ModelFileError
from rebar.service.adapter_book import NAME_TAKEN, AdapterBook, TakenAdapter
from rebar.service.body import decode_body
from rebar.service.http.describe import describe_model
from rebar.service.http.errors import HttpError
from rebar.service.http.middleware import record_of
from rebar.service.http.reading import read_body
from rebar.service.router import ServiceRouter
from rebar.service.validator import refuse_unsupported
from rebar.service.wire import LoadAdapterBody, UnloadAdapterBody

MAX_PATH = 4096
T = TypeVar("T", LoadAdapterBody, UnloadAdapterBody)


class UnloadedAdapter(msgspec.Struct):
    """The answer of POST /v1/unload_lora_adapter. open: answers that still use it; it leaves the
    engine when the last of them has ended.
    """

    id: str
    open: int
    object: Literal["model"] = "model"
    deleted: Literal[True] = True


class AdapterRoutes:
    """The handlers and what they need."""

    def __init__(self, router: ServiceRouter) -> None:
        self._router = router
        self._one_at_a_time = asyncio.Lock()

    async def load(self, request: Request) -> Response:
        """Loads an adapter from a folder of the server, between two steps of the engine. Open
        answers go on.
        """
        body = await _body(request, LoadAdapterBody)
        refuse_unsupported(body)
        service = self._router.services[0]
        async with self._one_at_a_time:  # reading is the disk's work, and a copy's
            try:
                taken = await asyncio.to_thread(_take, service.adapters, body)
                adapter = await service.adapters.load(body.lora_name, taken, body.lora_path)
            except InputError as error:
                if error.code == NAME_TAKEN:
                    raise HttpError(409, str(error), NAME_TAKEN) from None
                raise
        record_of(request.scope).notes["adapter"] = adapter.name
        return _json(describe_model(service, adapter))

    async def unload(self, request: Request) -> Response:
        """Takes an adapter off the list. Its open answers are finished first: then the status is
        202.
        """
        body = await _body(request, UnloadAdapterBody)
        books = [service.adapters for service in self._router.services]
        book = next((b for b in books if b.get(body.lora_name) is not None), books[0])
        adapter = book.unload(body.lora_name)
        left = book.open_choices(adapter)
        record_of(request.scope).notes.update(adapter=adapter.name, open=left)
        return _json(UnloadedAdapter(adapter.name, left), 202 if left else 200)


def _take(book: AdapterBook, body: LoadAdapterBody) -> TakenAdapter:
    if not 0 < len(body.lora_path) <= MAX_PATH or "\0" in body.lora_path:
        raise InputError("`lora_path` is no path of a folder.", param="lora_path")
    try:
        return book.take(body.lora_name, Path(body.lora_path))
    except ModelFileError as error:
        raise InputError(str(error), param="lora_path", code="invalid_adapter") from None


async def _body(request: Request, form: type[T]) -> T:
    """A body that is said to be JSON. A page of another origin can post text to a server on its
    reader's machine, but not this: the browser asks first (cors.py).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(
            415, "Send this as `Content-Type: application/json`.", "unsupported_media_type"
        )
    return decode_body(await read_body(request), form)


def _json(answer: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
