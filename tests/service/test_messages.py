"""Anthropic's Messages by its own client: shapes, the order of events, errors; the bits of chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rebar.service.http.access import Access
from rebar.service.http.keys import ApiKeys, NamedKey
from tests.service.fakes import ScriptedRunner, hashed, words
from tests.service.live import NAME, Live, scripted_service, serving
from tests.service.test_responses import sse
from tests.service.test_streams import fail_at
from tests.service.test_tools import ONE, TWO, WITH_TOOLS

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CLOCK: Any = {"name": "clock", "input_schema": {"type": "object"}}
HI: Any = [{"role": "user", "content": "hi"}]
ASK: Any = {"model": NAME, "max_tokens": 300, "messages": HI}


@pytest.fixture(scope="module")
def messages_server() -> Iterator[Live]:
    runner = ScriptedRunner(max_context=1024, kv_blocks=256, max_rows=128)
    with serving(runner, scripted_service(runner, template=WITH_TOOLS)) as server:
        yield server


@pytest.fixture
def live(messages_server: Live) -> Iterator[Live]:
    messages_server.runner.reset()
    yield messages_server
    messages_server.probe()


def client_of(live: Live, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key=key, max_retries=0)


@pytest.fixture
def client(live: Live) -> Iterator[anthropic.Anthropic]:
    with client_of(live) as client:
        yield client


def ask(live: Live, **fields: object) -> httpx.Response:
    return live.http.post(PATH, json={**ASK, **fields})


def test_a_message(live: Live, client: anthropic.Anthropic) -> None:
    live.runner.script = words("hello", " wörld")
    answer = client.messages.create(**ASK, system="Be kind.", extra_body={"temperature": 0})
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", NAME)
    assert answer.id.startswith("msg_")
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == "hello wörld"
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens == 3
    assert answer.usage.cache_creation_input_tokens == 0
    assert answer._request_id


def test_it_reads_what_chat_reads(live: Live, client: anthropic.Anthropic) -> None:
    """One way to the engine: the same conversation is the same prompt, and says the same."""
    live.runner.choose = hashed
    chat: Any = [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "weather?\nnow"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "t1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
            {"id": "t2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no clock"},
        {"role": "user", "content": "and tomorrow?\nplease"},
    ]  # fmt: skip
    turns: Any = [
        {"role": "user", "content": "weather?"},
        {"role": "user", "content": [
            {"type": "text", "text": "now", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1",
             "content": [{"type": "text", "text": "sun"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no clock", "is_error": True},
            {"type": "text", "text": "and tomorrow?"},
            {"type": "text", "text": "please"},
        ]},
    ]  # fmt: skip
    system: Any = [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as other:
        told = other.chat.completions.create(
            model=NAME, messages=chat, max_tokens=12, temperature=0.8, seed=7
        )
    given: Any = {"model": NAME, "system": system, "messages": turns}
    sampling = {"temperature": 0.8, "seed": 7}
    answer = client.messages.create(**given, max_tokens=12, extra_body=sampling)
    assert answer.content[0].model_dump()["text"] == told.choices[0].message.content
    usage = answer.usage
    assert told.usage is not None
    assert usage.cache_read_input_tokens  # chat had computed it
    assert usage.input_tokens + usage.cache_read_input_tokens == told.usage.prompt_tokens
    assert client.messages.count_tokens(**given).input_tokens == told.usage.prompt_tokens


def test_counting_tokens(live: Live, client: anthropic.Anthropic) -> None:
    """What a message's input comes to, tools and system included; nothing is generated."""
    live.runner.script = words("hello")
    steps = len(live.runner.steps)
    given: Any = {"model": NAME, "messages": HI, "tools": [WEATHER], "system": "Be kind."}
    counted = client.messages.count_tokens(**given).input_tokens
    assert counted > client.messages.count_tokens(model=NAME, messages=HI).input_tokens
    assert len(live.runner.steps) == steps
    usage = client.messages.create(**given, max_tokens=3).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


EVENTS = [
    "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
    "content_block_stop", "message_delta", "message_stop",
]  # fmt: skip


def test_the_events_of_a_text(live: Live) -> None:
    live.runner.script = words("hello", " wörld")
    live.runner.slow = 0.02
    events = sse(ask(live, stream=True).text)
    assert [name for name, _ in events] == EVENTS
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] > 0
    assert events[2][1] == {
        "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""},
    }  # fmt: skip
    assert [events[i][1]["delta"] for i in (3, 4)] == [
        {"type": "text_delta", "text": "hello"}, {"type": "text_delta", "text": " wörld"},
    ]  # fmt: skip
    assert events[5][1] == {"type": "content_block_stop", "index": 0}
    assert events[6][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[6][1]["usage"]["output_tokens"] == 3
    assert events[7][1] == {"type": "message_stop"}


def bare(message: anthropic.types.Message) -> dict[str, Any]:
    """A message without what no two have in common."""
    told = message.model_dump(exclude_none=True)
    for block in told["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return {key: told.get(key) for key in ("content", "stop_reason", "stop_sequence", "role")}


@pytest.mark.parametrize("slow", [0.0, 0.002])
@pytest.mark.parametrize(
    "text",
    ["", "Well.", ONE, TWO, "Well. " + TWO, ONE + "\nThen this.", "a <tool_call>b", ONE[:-40]],
)
def test_streamed_equals_whole(
    live: Live, client: anthropic.Anthropic, text: str, slow: float
) -> None:
    live.runner.script, live.runner.slow = list(text.encode()), slow
    fields: Any = {**ASK, "tools": [WEATHER, CLOCK]}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert bare(streamed) == bare(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_tools(live: Live, client: anthropic.Anthropic) -> None:
    live.runner.script = list(("Well. " + TWO).encode())
    answer = client.messages.create(**ASK, tools=[WEATHER, CLOCK])
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    calls: Any = answer.content[1:]
    assert [(call.name, call.input) for call in calls] == [
        ("get_weather", {"city": "Paris"}), ("clock", {}),
    ]  # fmt: skip
    assert answer.stop_reason == "tool_use"
    assert len({call.id for call in calls}) == 2
    turns: Any = [
        *HI, {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]},
    ]  # fmt: skip
    live.runner.script = words("hello")
    again = client.messages.create(model=NAME, max_tokens=9, messages=turns, tools=[WEATHER, CLOCK])
    assert again.stop_reason == "end_turn"


def test_arguments_come_as_they_are_said(live: Live) -> None:
    live.runner.script, live.runner.slow = list(ONE.encode()), 0.002
    events = sse(ask(live, stream=True, tools=[WEATHER]).text)
    parts = [d["delta"]["partial_json"] for n, d in events if n == "content_block_delta"]
    assert json.loads("".join(parts)) == {"city": "Paris"}
    assert len(parts) > 5, "the arguments came in one piece"


def test_one_call_ends_the_answer(live: Live, client: anthropic.Anthropic) -> None:
    """Its end mark is a stop string of ours, of which the caller is not told."""
    live.runner.script = list(TWO.encode())
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    answer = client.messages.create(**ASK, tools=[WEATHER, CLOCK], tool_choice=choice)
    assert len(answer.content) == 1
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)


def test_why_it_ended(live: Live, client: anthropic.Anthropic) -> None:
    live.runner.script = words("The", " quick", " br", "own f", "ox j")
    cut = client.messages.create(model=NAME, messages=HI, max_tokens=2)
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)
    stops = ["nothing", "own fox"]
    for stream in (False, True):
        if stream:
            with client.messages.stream(**ASK, stop_sequences=stops) as events:
                met = events.get_final_message()
        else:
            met = client.messages.create(**ASK, stop_sequences=stops)
        assert (met.stop_reason, met.stop_sequence) == ("stop_sequence", "own fox")
        assert met.content[0].model_dump()["text"] == "The quick br"


def test_a_failure_in_a_stream(live: Live, client: anthropic.Anthropic) -> None:
    live.runner.script, live.runner.slow = list(b"abcdef"), 0.01
    live.runner.before = fail_at(3, ord("i"))
    name, data = sse(ask(live, stream=True).text)[-1]
    assert name == "error"
    assert data["error"] == {"type": "api_error", "message": "the step failed"}
    with (
        pytest.raises(anthropic.APIStatusError, match="the step failed"),
        client.messages.stream(**ASK) as stream,
    ):
        stream.get_final_message()
    live.runner.before = fail_at(0, ord("i"))
    with pytest.raises(anthropic.InternalServerError, match="the step failed"):
        client.messages.create(**ASK)


def refusal(live: Live, path: str, fields: dict[str, Any]) -> str:
    answer = live.http.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"] == answer.headers["request-id"]
    return str(body["error"]["message"])


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "assistant", "content": "I say"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0].tool_use_id"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"temperature": 9}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"items": {"not": {}}}}}},
         "output_config.format.schema.items"),
        ({"tools": [CLOCK, {"name": "f", "input_schema": {"properties": {"a": {"not": {}}}}}],
          "tool_choice": {"type": "any"}}, "tools[1].input_schema.properties.a"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"max_completion_tokens": 4}, "max_completion_tokens"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(live: Live, fields: dict[str, Any], named: str) -> None:
    message = refusal(live, PATH, {**ASK, **fields})
    assert named in message, message


def test_errors_are_of_its_own_kinds(live: Live, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASK, extra_body={"temperature": 9})
    with pytest.raises(anthropic.NotFoundError) as lost:
        client.messages.create(model="other", max_tokens=3, messages=HI)
    assert lost.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()
    too_large = live.http.post(PATH, content=b"[" * (5 << 20))
    assert too_large.json()["error"]["type"] == "request_too_large"
    long: Any = [{"role": "user", "content": "a" * 2000}]
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(model=NAME, max_tokens=3, messages=long)


def test_the_form_of_the_answer(live: Live) -> None:
    from tests.service.test_responses import first_allowed

    live.runner.choose = first_allowed
    format = {"type": "json_schema", "schema": {"enum": ["yes", "no"]}}
    answer = ask(live, output_config={"format": format}).json()
    assert answer["content"] == [{"type": "text", "text": '"no"'}]


def test_its_key_and_its_refusal() -> None:
    runner = ScriptedRunner()
    with serving(runner, access=Access(keys=ApiKeys([NamedKey("", "sk-1")])), key="sk-1") as live:
        runner.script = words("hello")
        with client_of(live, "sk-1") as client:
            assert client.messages.create(**ASK).stop_reason == "end_turn"
        with client_of(live, "sk-2") as client, pytest.raises(anthropic.AuthenticationError) as no:
            client.messages.create(**ASK)
        assert no.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        live.probe()
