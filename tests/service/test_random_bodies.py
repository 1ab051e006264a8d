"""Bodies nobody thought of: the answer is an answer or the caller's 4xx, never a 500."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.errors import InputError
from rebar.service.body import decode_body
from rebar.service.wire import ChatBody, CompletionBody, EmbeddingBody, TokenizeBody
from rebar.service.wire_messages import MessagesBody
from rebar.service.wire_responses import ResponsesBody
from tests.service.live import CHAT, PLAIN, Live

ODD = st.sampled_from(
    [
        0,
        -1,
        1.5,
        2**31,
        2**63,
        2**64,
        1e308,
        5e-324,
        True,
        "",
        "x",
        "\x00",
        "😀",
        [],
        {},
        [[]],
        [None],
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer", "x"])},
    optional={"content": TEXT | VALUES, "name": TEXT, "tool_calls": VALUES, "tool_call_id": TEXT},
)
FAST = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def bodies(
    form: type[msgspec.Struct], **usual: st.SearchStrategy[object]
) -> st.SearchStrategy[dict[str, object]]:
    """Some known fields with any value, beside the usual ones."""
    fields = [name for name in form.__struct_fields__ if name not in usual]
    extra = st.dictionaries(st.sampled_from(fields), VALUES, max_size=3)
    return st.tuples(st.fixed_dictionaries(usual), extra).map(lambda pair: {**pair[0], **pair[1]})


def answered(live: Live, path: str, body: dict[str, object]) -> None:
    answer = live.post(path, json.dumps(body).encode())
    assert answer.status_code in (200, 400, 404), (body, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


@FAST
@given(body=bodies(ChatBody, messages=st.lists(MESSAGE, max_size=3), max_tokens=st.just(2)))
def test_any_chat_body(running_server: Live, body: dict[str, object]) -> None:
    running_server.runner.reset()
    answered(running_server, CHAT, body)


@FAST
@given(body=bodies(CompletionBody, prompt=TEXT | st.lists(st.integers(-1, 300)) | VALUES))
def test_any_completion_body(running_server: Live, body: dict[str, object]) -> None:
    running_server.runner.reset()
    answered(running_server, PLAIN, body)


ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "x"]),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "x"]),
        "content": TEXT | VALUES,
        "call_id": TEXT | VALUES,
        "name": TEXT | VALUES,
        "arguments": TEXT | st.just("{}"),
        "output": TEXT | VALUES,
    },
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image"])},
    optional={
        "text": TEXT,
        "id": TEXT,
        "name": TEXT,
        "input": st.dictionaries(TEXT, VALUES, max_size=2),
        "tool_use_id": TEXT | VALUES,
        "content": TEXT | VALUES,
        "is_error": st.booleans(),
    },
)
TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "x"]),
        "content": TEXT | st.lists(BLOCK, max_size=3) | VALUES,
    }
)


@FAST
@given(body=bodies(ResponsesBody, input=TEXT | st.lists(ITEM, max_size=4) | VALUES))
def test_any_responses_body(running_server: Live, body: dict[str, object]) -> None:
    running_server.runner.reset()
    answered(running_server, "/v1/responses", body)


@FAST
@given(body=bodies(MessagesBody, messages=st.lists(TURN, max_size=3), max_tokens=st.just(2)))
def test_any_messages_body(running_server: Live, body: dict[str, object]) -> None:
    running_server.runner.reset()
    answered(running_server, "/v1/messages", body)
    answered(running_server, "/v1/messages/count_tokens", body)


@FAST
@given(body=bodies(EmbeddingBody, input=TEXT | st.lists(TEXT, max_size=3) | VALUES))
def test_any_embedding_body(running_server: Live, body: dict[str, object]) -> None:
    running_server.runner.reset()
    answered(running_server, "/v1/embeddings", body)


def test_the_server_is_as_before(live: Live) -> None:
    """PROBE after all of them."""
    live.at_rest()


@pytest.mark.parametrize("form", [ChatBody, CompletionBody, TokenizeBody])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes(form: type[ChatBody], data: st.DataObject) -> None:
    """Real bodies with bytes changed, cut and doubled: decoded, or an InputError."""
    good = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00"}],"seed":1.5e3}'
    )
    raw = bytearray(data.draw(st.binary(max_size=30) | st.just(good)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        decode_body(bytes(raw), form)
    except InputError as error:
        str(error).encode()
