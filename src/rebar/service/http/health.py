"""Three questions that machines ask: does it live, does it take work, does it advance. No key is
needed for them.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from rebar.service.http import openapi
from rebar.service.http.lifecycle import Lifecycle
from rebar.service.router import ModelService, ServiceRouter


class HealthRoutes:
    """The handlers."""

    def __init__(self, router: ServiceRouter, lifecycle: Lifecycle) -> None:
        self._router = router
        self._lifecycle = lifecycle

    async def health(self) -> Response:
        """200 while every engine advances, 503 when one does not. Times are seconds."""
        healthy = all(service.healthy for service in self._router.services)
        body: dict[str, object] = {
            "status": "ok" if healthy else "stalled",
            "draining": self._lifecycle.draining,
            "engines": [_engine(service) for service in self._router.services],
        }
        return _answer(body, healthy)

    async def ready(self) -> Response:
        """200 while new requests are taken; 503 while an engine starts, stalls, or all is drained.

        A request that comes while an engine starts waits for it; a balancer may know a better
        place.
        """
        if self._lifecycle.draining:
            return _answer({"status": "draining"}, False, self._lifecycle.retry_after)
        healthy = all(service.healthy for service in self._router.services)
        return _answer({"status": "ready" if healthy else "no_engine"}, healthy)

    async def live(self) -> Response:
        """200 as long as the process answers at all: restart it when this fails, not before."""
        return _answer({"status": "live"}, True)

    def api(self) -> APIRouter:
        """The routes with their places in the OpenAPI document."""
        api = APIRouter()
        api.get("/health", **openapi.HEALTH)(self.health)
        api.get("/health/ready", **openapi.READY)(self.ready)
        api.get("/health/live", **openapi.LIVE)(self.live)
        return api


def _engine(service: ModelService) -> dict[str, object]:
    return {
        "model": service.model.name,
        "healthy": service.healthy,
        "pid": service.worker.pid,
        "steps": service.stats.steps,
        "open": service.open,
        "running": service.stats.running,
        "waiting": service.stats.waiting,
        "free_blocks": service.stats.free_blocks,
        "total_blocks": service.stats.total_blocks,
        "restarts": service.worker.restarts,
        "silent_seconds": round(service.silent_seconds, 3),
    }


def _answer(body: dict[str, object], good: bool, retry_after: int = 1) -> Response:
    headers = {} if good else {"Retry-After": str(retry_after)}
    content = msgspec.json.encode(body)
    return Response(content, 200 if good else 503, headers, media_type="application/json")
