"""Tools with Qwen2.5-Coder-0.5B-Instruct by its own template: what it calls, streamed and whole, in
three APIs. It was not taught the marks of its template's own words, and says the bare object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from tests.service.live import running
from tests.service.test_tools import CLOCK, WEATHER

pytestmark = pytest.mark.parity  # half a gigabyte of weights
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [WEATHER]
GREEDY: Any = {"temperature": 0}


@pytest.fixture(scope="module")
def url(qwen05_path: Path) -> Iterator[str]:
    options = RunnerOptions(max_context=1024, kv_tokens=4096, max_rows=256)
    model = load_model(open_model(qwen05_path), options, name="m")
    with running(ModelService.in_thread(model.served, model.engine)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        yield client


def called(message: Any) -> list[tuple[str, dict[str, Any]]]:
    calls = message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_call(client: openai.OpenAI, choice: Any, parallel: bool) -> None:
    asked: Any = {
        "model": "m", "messages": ASK, "tools": [WEATHER, CLOCK], "tool_choice": choice,
        "parallel_tool_calls": parallel, "max_tokens": 100, **GREEDY,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    calls = called(whole.message)
    assert calls[0][0] == "get_weather"
    assert calls[0][1]["city"] == "Paris"
    assert whole.finish_reason == "tool_calls"
    assert parallel or len(calls) == 1
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert called(final.message) == calls
    assert (final.message.content or None, final.finish_reason) == (
        whole.message.content, "tool_calls",
    )  # fmt: skip


def test_no_call_where_none_is_due(client: openai.OpenAI) -> None:
    """A question that no tool answers is answered in words."""
    asked: Any = [{"role": "user", "content": "Write one line of Python that prints hello."}]
    answer = client.chat.completions.create(model="m", messages=asked, max_tokens=60, **GREEDY)
    shown = client.chat.completions.create(
        model="m", messages=asked, max_tokens=60, tools=TOOLS, tool_choice="none", **GREEDY
    )
    assert "print" in str(answer.choices[0].message.content)
    assert shown.choices[0].message.content == answer.choices[0].message.content


def test_the_result_of_a_call_is_read(client: openai.OpenAI) -> None:
    """The conversation goes on with what the tool said."""
    first: Any = client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=80, **GREEDY
    )
    message = first.choices[0].message
    turns: Any = [
        *ASK, message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Hail and thunder."},
        {"role": "user", "content": "Which weather did the tool tell you of?"},
    ]  # fmt: skip
    told = client.chat.completions.create(model="m", messages=turns, max_tokens=60, **GREEDY)
    assert "thunder" in str(told.choices[0].message.content).lower()


def test_the_other_apis_call_the_same(url: str, client: openai.OpenAI) -> None:
    function = WEATHER["function"]
    assert isinstance(function, dict)
    chat = client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS, max_tokens=100, **GREEDY
    )
    calls = called(chat.choices[0].message)
    flat: Any = {"type": "function", **function}
    given: Any = {"model": "m", "input": ASK, "tools": [flat], "max_output_tokens": 100, **GREEDY}
    response = client.responses.create(**given)
    *_, last = client.responses.create(stream=True, **given)
    for output in (response.output, last.response.output):
        made = [(item.name, json.loads(item.arguments)) for item in output]
        assert made == calls
    tool: Any = {
        "name": function["name"], "description": function["description"],
        "input_schema": function["parameters"],
    }  # fmt: skip
    with anthropic.Anthropic(base_url=url, api_key="-", max_retries=0) as other:
        asked: Any = {"model": "m", "messages": ASK, "tools": [tool], "max_tokens": 100}
        message = other.messages.create(**asked, extra_body=GREEDY)
        with other.messages.stream(**asked, extra_body=GREEDY) as stream:
            streamed = stream.get_final_message()
    for answer in (message, streamed):
        assert answer.stop_reason == "tool_use"
        blocks: Any = answer.content
        assert [(block.name, block.input) for block in blocks] == calls
