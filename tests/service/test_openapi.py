"""Requests made from the OpenAPI document by schemathesis: what comes back is what it says, and
never a 500.
"""

from __future__ import annotations

import base64
import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.service.classifying import classifier_service
from tests.service.fakes import END, ScriptedRunner
from tests.service.live import NAME, Live, scripted_service, serving
from tests.service.test_tools import WITH_TOOLS
from tests.tiny.classifier import tiny_classifier
from tests.tiny.png import gray_png

load_all_checks()
CHECKS: Any = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/classify"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/requests/{request_id}"),
    ("GET", "/health"),
    ("GET", "/health/ready"),
    ("GET", "/health/live"),
    ("GET", "/metrics"),
]
FEW = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking a whole request takes minutes
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose every answer is short."""
    runner = ScriptedRunner(max_context=512, kv_blocks=256, max_rows=128)
    shapes = classifier_service(tiny_classifier(tmp_path_factory.mktemp("shapes")))
    with serving(runner, scripted_service(runner, template=WITH_TOOLS), others=[shapes]) as server:
        runner.choose = lambda s, p: 97 if p < s.prompt + 2 else END
        yield server


@pytest.fixture(scope="module")
def document(described: Live) -> dict[str, Any]:
    told: dict[str, Any] = described.http.get("/openapi.json").json()
    return told


def test_every_operation_is_tried(document: dict[str, Any]) -> None:
    paths = document["paths"]
    told = {(method.upper(), path) for path, of in paths.items() for method in of}
    assert told == set(OPERATIONS)


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The same with words that mean something where any text may stand, so that more requests come
    through to the engine.
    """
    told = copy.deepcopy(document)
    schemas = told["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody", "ResponsesBody", "MessagesBody", "CountTokensBody",
                 "EmbeddingBody", "TokenizeBody", "DetokenizeBody"):  # fmt: skip
        fields = schemas[name]["properties"]
        for field in set(fields) - set(KEPT):
            del fields[field]
        fields["model"] = {"enum": [None, NAME]}
        for field, schema in SENSIBLE.items():
            if field in fields:
                fields[field] = {**fields[field], **schema} if "minItems" in schema else schema
    file = base64.b64encode(gray_png(np.eye(4, dtype=np.uint8))).decode()
    image = {"enum": [[[0, 9.5, 255, 0]] * 4, file]}
    schemas["ClassifyBody"]["properties"] = {
        "images": {"type": "array", "minItems": 1, "maxItems": 3, "items": image},
        "model": {"enum": [None, "shapes"]},
        "top_k": {"enum": [None, 1, 3]},
    }
    schemas["TokenizeBody"]["properties"] = {"prompt": {"type": "string"}}
    schemas["TokenizeBody"]["required"] = ["prompt"]
    for name in ("ChatMessage", "InputMessage", "InputItem"):
        content = schemas[name]["properties"]["content"]
        schemas[name]["properties"] = {"role": {"enum": ["user", "system"]}, "content": content}
        schemas[name] |= {"additionalProperties": False, "required": ["role", "content"]}
    schemas["ContentPart"]["properties"]["type"] = {"enum": ["text"]}
    schemas["InputPart"]["properties"]["type"] = {"enum": ["input_text"]}
    schemas["Block"]["properties"]["type"] = {"enum": ["text"]}
    for of in told["paths"].values():
        for operation in of.values():
            operation["parameters"] = [
                p for p in operation.get("parameters", []) if p["name"] != "X-Deadline-Ms"
            ]
    return told


SENSIBLE: dict[str, dict[str, Any]] = {
    "temperature": {"enum": [None, 0, 0.5]},
    "top_p": {"enum": [None, 0.5]},
    "max_tokens": {"enum": [1, 2, 500]},
    "logprobs": {"enum": [None]},
    "messages": {"minItems": 1, "maxItems": 2},
}
KEPT = ("messages", "prompt", "input", "tokens", "system", "instructions", "temperature", "stream",
        "max_tokens", "top_p", "encoding_format", "pooling", "echo", "logprobs")  # fmt: skip


def statuses(live: Live, operation: Any, mode: GenerationMode) -> Counter[int]:
    """Sends what the document allows (or, negative, what it does not) and checks what comes."""
    seen: Counter[int] = Counter()

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(base_url=live.url)
        late = response.status_code == 504 and "X-Deadline-Ms" in (case.headers or {})
        assert response.status_code < 500 or late, response.text
        if mode is GenerationMode.POSITIVE:
            case.validate_response(response, checks=CHECKS)
        seen[response.status_code] += 1

    ask()
    live.at_rest()
    return seen


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_is_described_is_what_happens(
    described: Live, document: dict[str, Any], method: str, path: str
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path][method]
    assert statuses(described, operation, GenerationMode.POSITIVE)


@pytest.mark.parametrize(("method", "path"), OPERATIONS[:9])
def test_sensible_requests_are_answered(
    described: Live, document: dict[str, Any], method: str, path: str
) -> None:
    operation = schemathesis.openapi.from_dict(narrowed(document))[path][method]
    assert statuses(described, operation, GenerationMode.POSITIVE)[200] > 2


@pytest.mark.parametrize(("method", "path"), OPERATIONS[:9])
def test_what_is_not_described_is_the_callers_fault(
    described: Live, document: dict[str, Any], method: str, path: str
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path][method]
    assert statuses(described, operation, GenerationMode.NEGATIVE)


def test_the_server_is_as_before(described: Live) -> None:
    described.probe()
