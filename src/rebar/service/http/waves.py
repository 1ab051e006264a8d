"""Many inputs of one request, each a choice that ends with a vector: some at a time."""

from __future__ import annotations

import asyncio

from rebar.service.http.errors import error_of
from rebar.service.messages import RequestPacket
from rebar.service.router import ModelService

WAVE = 64
"""Inputs of one request that are queued at a time: a request of 2,048 leaves room for others."""
ROOM_SECONDS = 0.05
"""A request that was let in asks so often whether there is room for its next inputs."""


async def vectors_of(
    service: ModelService, model: str, packets: list[RequestPacket], started: float
) -> list[bytes]:
    """The vectors of all inputs, in order. model: as `submit` takes it. Raises the error of the
    first that failed.
    """
    wave = min(WAVE, service.model.limits.max_open)
    vectors: list[bytes] = []
    for begin in range(0, len(packets), wave):
        inputs = packets[begin : begin + wave]
        if begin:
            await _room(service, inputs)
        vectors += await _wave(service, model, inputs, started)
    return vectors


async def _room(service: ModelService, packets: list[RequestPacket]) -> None:
    """Waits for it: a request that was let in is not refused with half of its work done. Ends when
    its client leaves.
    """
    while not service.has_room(packets):
        await asyncio.sleep(ROOM_SECONDS)


async def _wave(
    service: ModelService, model: str, packets: list[RequestPacket], started: float
) -> list[bytes]:
    stream = service.submit(packets, started, model)
    found: dict[int, bytes] = {}
    try:
        while not stream.done:
            for delta in await stream.next():
                if delta.failure is not None:
                    raise error_of(delta.failure)
                found[stream.index(delta)] = delta.vector
    finally:
        stream.close()
    return [found[packet.index] for packet in packets]
