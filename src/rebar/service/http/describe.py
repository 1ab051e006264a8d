"""What GET /v1/models says of a model and of its adapters."""

from __future__ import annotations

from collections.abc import Iterator

from rebar.service.model import ServedAdapter
from rebar.service.router import ModelService


def describe_all(service: ModelService) -> Iterator[dict[str, object]]:
    """A model, and its adapters."""
    yield describe_model(service)
    yield from (describe_model(service, adapter) for adapter in service.adapters.listed)


def describe_model(
    service: ModelService, adapter: ServedAdapter | None = None
) -> dict[str, object]:
    """A model or adapter in OpenAI's shape; root (where it came from), max_model_len and parent as
    vLLM names them.
    """
    model = service.model
    described = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "rebar",
        "root": model.source or model.name,
        "max_model_len": model.limits.max_total,
    }
    if adapter is None:
        return described
    own = {"id": adapter.name, "created": adapter.created, "root": adapter.source}
    return {**described, **own, "parent": model.name}
