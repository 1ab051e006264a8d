"""OpenAI's Responses by its own client: shapes, the order of events, errors; the bits of chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from rebar.graph import Sequence as Ids
from tests.service.fakes import ScriptedRunner, hashed, words
from tests.service.live import CHAT, NAME, Live, refused, scripted_service, serving
from tests.service.test_streams import fail_at
from tests.service.test_tools import ONE, TWO, WITH_TOOLS

PATH = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CLOCK: Any = {"type": "function", "name": "clock"}
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def responding_server() -> Iterator[Live]:
    runner = ScriptedRunner(max_context=1024, kv_blocks=256, max_rows=128)
    with serving(runner, scripted_service(runner, template=WITH_TOOLS)) as server:
        yield server


@pytest.fixture
def live(responding_server: Live) -> Iterator[Live]:
    responding_server.runner.reset()
    yield responding_server
    responding_server.probe()


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def sse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(event, data) of a stream; every event is named twice, and says the same both times."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        first, second = block.split("\n")
        name, data = first.removeprefix("event: "), json.loads(second.removeprefix("data: "))
        assert data["type"] == name
        events.append((name, data))
    return events


def ask(live: Live, **fields: object) -> httpx.Response:
    return live.http.post(PATH, json={"input": "hi", **fields})


def test_a_response(live: Live, client: openai.OpenAI) -> None:
    live.runner.script = words("hello", " wörld")
    answer = client.responses.create(model=NAME, input="hi", instructions="Be kind.", temperature=0)
    assert answer.output_text == "hello wörld"
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert (answer.instructions, answer.temperature, answer.top_p) == ("Be kind.", 0, 1)
    (message,) = answer.output
    assert message.type == "message"
    assert message.status == "completed"
    usage = answer.usage
    assert usage is not None
    assert usage.output_tokens == 3
    assert usage.total_tokens == usage.input_tokens + 3
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert answer._request_id


def test_it_reads_what_chat_reads(live: Live, client: openai.OpenAI) -> None:
    """One way to the engine: the same conversation is the same prompt, and says the same."""
    live.runner.choose = hashed
    chat: Any = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon\nsharp"},
        {"role": "user", "content": "and tomorrow?"},
    ]  # fmt: skip
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather",
         "arguments": '{"city": "Paris"}'},
        {"type": "function_call", "call_id": "call_2", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
        {"type": "function_call_output", "call_id": "call_2",
         "output": [{"type": "input_text", "text": t} for t in ("noon", "sharp")]},
        {"role": "user", "content": "and tomorrow?"},
    ]  # fmt: skip
    same: Any = {"temperature": 0.8, "extra_body": {"seed": 7}}
    told = client.chat.completions.create(model=NAME, messages=chat, max_tokens=12, **same)
    answer = client.responses.create(
        model=NAME, instructions="Be kind.", input=items, max_output_tokens=12, **same
    )
    assert answer.output_text == told.choices[0].message.content
    assert answer.usage is not None
    assert told.usage is not None
    assert answer.usage.input_tokens == told.usage.prompt_tokens
    assert answer.usage.input_tokens_details.cached_tokens > 0  # chat had computed it


EVENTS = [
    "response.created", "response.in_progress", "response.output_item.added",
    "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
    "response.completed",
]  # fmt: skip


def test_the_events_of_a_text(live: Live) -> None:
    live.runner.script = words("hello", " wörld")
    live.runner.slow = 0.02
    events = sse(ask(live, stream=True).text)
    assert [name for name, _ in events] == EVENTS
    assert [data["sequence_number"] for _, data in events] == list(range(len(EVENTS)))
    of = dict(events)
    assert of["response.created"]["response"]["status"] == "in_progress"
    assert of["response.created"]["response"]["output"] == []
    assert of["response.created"]["response"]["usage"] is None
    item = of["response.output_item.added"]["item"]
    assert (item["type"], item["status"], item["content"]) == ("message", "in_progress", [])
    part = {"type": "output_text", "text": "hello wörld", "annotations": [], "logprobs": []}
    assert of["response.content_part.added"]["part"] == {**part, "text": ""}
    assert of["response.content_part.done"]["part"] == part
    assert of["response.output_text.done"]["text"] == "hello wörld"
    deltas = [data for name, data in events if name == "response.output_text.delta"]
    assert [data["delta"] for data in deltas] == ["hello", " wörld"]
    places = {(d["item_id"], d["output_index"], d["content_index"]) for d in deltas}
    assert places == {(item["id"], 0, 0)}
    done = of["response.output_item.done"]["item"]
    assert done == {**item, "status": "completed", "content": [part]}
    assert of["response.completed"]["response"]["output"] == [done]
    assert of["response.completed"]["response"]["usage"]["output_tokens"] == 3


def bare(response: Any) -> Any:
    """A response without what no two have in common."""
    if isinstance(response, dict):
        drawn = {"id", "call_id", "created_at", "usage"}
        return {key: bare(value) for key, value in response.items() if key not in drawn}
    return [bare(item) for item in response] if isinstance(response, list) else response


@pytest.mark.parametrize("slow", [0.0, 0.002])
@pytest.mark.parametrize(
    "text",
    ["", "Well.", ONE, TWO, "Well. " + TWO, ONE + "\nThen this.", "a <tool_call>b", ONE[:-40]],
)
def test_streamed_equals_whole(live: Live, client: openai.OpenAI, text: str, slow: float) -> None:
    live.runner.script, live.runner.slow = list(text.encode()), slow
    fields: Any = {"model": NAME, "input": HI, "tools": [WEATHER, CLOCK]}
    whole = client.responses.create(**fields).model_dump()
    events = list(client.responses.create(stream=True, **fields))
    last: Any = events[-1]
    assert bare(last.response.model_dump()) == bare(whole)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with client.responses.stream(**fields) as stream:
        final = stream.get_final_response()
    assert final.output_text == last.response.output_text


def test_the_events_of_calls(live: Live) -> None:
    live.runner.script = list(("Well. " + TWO).encode())
    events = sse(ask(live, stream=True, tools=[WEATHER, CLOCK]).text)
    names = [name for i, (name, _) in enumerate(events) if not i or events[i - 1][0] != name]
    call = [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    assert names == [*EVENTS[:5], *EVENTS[6:9], *call, *call, "response.completed"]
    output = events[-1][1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert json.loads(output[1]["arguments"]) == {"city": "Paris"}
    assert (output[2]["name"], output[2]["arguments"]) == ("clock", "{}")
    for at, item in enumerate(output[1:], start=1):
        mine = [data for _, data in events if data.get("item_id") == item["id"]]
        deltas = [data["delta"] for data in mine if "delta" in data["type"]]
        assert "".join(deltas) == item["arguments"]
        assert {data["output_index"] for data in mine} == {at}
        assert len({item["call_id"] for item in output[1:]}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_cut_by_its_length(live: Live, client: openai.OpenAI, stream: bool) -> None:
    live.runner.script = words("The", " quick", " br")
    given: Any = {"model": NAME, "input": "hi", "max_output_tokens": 2}
    if stream:
        *_, last = client.responses.create(stream=True, **given)
        assert last.type == "response.incomplete"
        answer = last.response
    else:
        answer = client.responses.create(**given)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "The quick"
    assert answer.model_dump()["output"][0]["status"] == "incomplete"
    assert answer.max_output_tokens == 2


def first_allowed(sequence: Ids, position: int) -> int:
    """The least id that the grammar lets follow."""
    assert sequence.allowed is not None
    ids = np.flatnonzero(
        np.unpackbits(
            sequence.allowed[position + 1 - sequence.total].view(np.uint8), bitorder="little"
        )
    )
    return int(ids[0])


def test_the_form_of_the_text(live: Live) -> None:
    """text.format is chat's response_format: the same grammar holds."""
    live.runner.choose = first_allowed
    schema = {"enum": ["yes", "no"]}
    format = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    asked = {"input": "hi", "text": {"format": format}, "max_output_tokens": 9}
    answer = live.http.post(PATH, json=asked).json()
    assert answer["text"] == {"format": format}
    assert answer["output"][0]["content"][0]["text"] == '"no"'
    wrong = {"type": "json_schema", "name": 1, "schema": schema}
    refused(live, PATH, json.dumps({"input": "hi", "text": {"format": wrong}}), "text.format.name")
    wrong = {**format, "schema": {"type": "object", "properties": {"a": {"type": "strnig"}}}}
    place = "text.format.schema.properties.a"
    refused(live, PATH, json.dumps({"input": "hi", "text": {"format": wrong}}), place)


def test_a_failure_in_a_stream(live: Live, client: openai.OpenAI) -> None:
    live.runner.script, live.runner.slow = list(b"abcdef"), 0.01
    live.runner.before = fail_at(3, ord("i"))
    events = sse(ask(live, stream=True).text)
    assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
    assert events[-2][1]["message"] == "the step failed"
    response = events[-1][1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the step failed"}
    live.runner.reset()
    live.runner.before = fail_at(0, ord("i"))
    with pytest.raises(openai.InternalServerError, match="the step failed"):
        client.responses.create(model=NAME, input="hi", stream=True)


PICTURE = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": PICTURE}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [*HI, {"role": "robot", "content": "x"}]}, "input[1].role"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [*HI, {"type": "function_call", "name": "f", "arguments": "[", "call_id": "c"}],
          "instructions": "Be kind."}, "input[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"input": "a" * 2000}, "input"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(live: Live, fields: dict[str, Any], param: str) -> None:
    """In the names of this API: whoever sent `input` is not told of `messages`."""
    error = refused(live, PATH, json.dumps({"input": "hi", **fields}), param)
    unknown = {"messages", "max_tokens"} & set(fields)
    assert unknown or "messages" not in str(error["message"])
    assert "max_completion_tokens" not in str(error["message"])


def test_what_asks_for_nothing_is_accepted(live: Live) -> None:
    live.runner.script = words("hello")
    answer = ask(
        live, store=False, truncation="disabled", background=False, metadata={"a": "b"}, user="me",
        include=["reasoning.encrypted_content"], service_tier="auto", parallel_tool_calls=True,
        text={"format": {"type": "text"}, "verbosity": "low"}, tools=[], reasoning=None,
    )  # fmt: skip
    assert answer.status_code == 200
    assert answer.json()["metadata"] == {"a": "b"}
    assert answer.json()["store"] is False


def test_stop_strings_and_history(live: Live) -> None:
    live.runner.script = words("The", " quick", " br", "own f", "ox j")
    answer = live.http.post(
        PATH, json={"input": "hi", "stop": ["own fox"]}, headers={"X-Request-Id": "r-1"}
    ).json()
    assert answer["output"][0]["content"][0]["text"] == "The quick br"
    assert answer["status"] == "completed"
    assert live.http.get("/v1/requests/r-1").json()["choices"][0]["state"] == "stop"
    assert CHAT != PATH
