"""Structured output on Qwen2.5's vocabulary of 151,936: byte tokens, merges of spaces and line
ends, Chinese, tokens that hold parts of characters. Run by ./test parity, for the model is large.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rebar.dataflow.models import open_source
from rebar.dataflow.text import Tokenizer
from rebar.graph import RunnerOptions
from rebar.service.grammar import Grammars
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from tests.conftest import cache_folder
from tests.service.live import Served, events_of, probed
from tests.service.schemas import SCHEMAS
from tests.service.test_structured import form, grammar, walk
from tests.service.test_tools import WEATHER

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def server(qwen05_path: Path) -> Iterator[Served]:
    options = RunnerOptions(max_context=1024, kv_tokens=16_384, max_rows=256)
    file = open_source(qwen05_path, cache_folder())
    model = load_model(file, options, name="qwen")
    with probed(ModelService.in_thread(model.served, model.engine)) as served:
        served.http.timeout = 120
        yield served


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_any_walk_validates(server: Served, schema: dict[str, Any]) -> None:
    tokenizer = server.service.model.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    grammars = Grammars(tokenizer)
    text = grammar(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    for seed in range(3):
        jsonschema.validate(
            json.loads(walk(grammars, tokenizer, text, random.Random(seed))), schema
        )
    grammars.close()


def test_the_model_obeys_every_schema(server: Served) -> None:
    """Twenty schemas at once, greedy and hot, in streams and not: each answer ends by itself and
    validates.
    """

    def ask(i: int) -> None:
        schema = SCHEMAS[i % len(SCHEMAS)]
        text = f"Answer in JSON that obeys {json.dumps(schema)}. Be brief."
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "response_format": form(schema),
            "temperature": 0 if i < len(SCHEMAS) else 1.3,
            "seed": i,
            "max_tokens": 300,
            "stream": i % 2 == 0,
        }
        answer = server.chat(**body)
        assert answer.status_code == 200, answer.text
        if body["stream"]:
            events = events_of(answer.text)[:-1]
            said = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
            finish = events[-1]["choices"][0]["finish_reason"]
        else:
            (choice,) = answer.json()["choices"]
            said, finish = choice["message"]["content"], choice["finish_reason"]
        assert finish == "stop", said
        jsonschema.validate(json.loads(said), schema)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(2 * len(SCHEMAS)))) == [None] * 2 * len(SCHEMAS)
    server.probe()


def test_the_model_calls_a_tool_that_is_required(server: Served) -> None:
    """Its own template knows tools; the arguments obey the schema."""
    messages = [{"role": "user", "content": "How will the weather be in Rome?"}]
    (choice,) = server.chat(
        messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200
    ).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        assert call["function"]["name"] == "get_weather"
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, WEATHER["function"]["parameters"])  # type: ignore[index]
    server.probe()
