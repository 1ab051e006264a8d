"""Reading requests: bodies with a limit, and noticing that a client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from rebar.service.http.errors import HttpError

MAX_BODY_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body. Raises HttpError 413 as soon as it is known to be too long, 415 when it is
    compressed.
    """
    encoding = request.headers.get("content-encoding", "identity")
    coding = request.headers.get("transfer-encoding", "chunked")
    if encoding.lower() != "identity" or coding.lower() != "chunked":
        encoding = coding if encoding.lower() == "identity" else encoding
        raise HttpError(
            415,
            f"The encoding {encoding[:40]!r} is not supported. Send the body as it is.",
            "unsupported_encoding",
            {"Connection": "close"},
        )
    declared = request.headers.get("content-length", "0")
    if (
        not declared.isascii()
        or not declared.isdigit()
        or len(declared) > 12
        or int(declared) > limit
    ):
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> HttpError:
    message = f"The body is larger than {limit} bytes. Send less."
    return HttpError(413, message, "body_too_large", {"Connection": "close"})


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Result of `work`; when the client leaves first, cancels it and raises ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
