"""Malformed and hostile requests: CASES group (c), each followed by PROBE (in the fixtures)."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.service.fakes import words
from tests.service.live import CHAT, PLAIN, Client, Live, refused, said
from tests.service.rebar_process import RebarProcess

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'
LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("[" * 20000 + "]" * 20000, 400),
        ("{" + MESSAGES + ',"metadata":' + "[" * 500 + "]" * 500 + "}", 400),
        ("{" + MESSAGES + ',"metadata":' + "[" * 100 + "]" * 100 + "}", 400),
        ("{" + MESSAGES + ',"metadata":' + "[" * 99 + "]" * 99 + "}", 200),
        ("{" + MESSAGES + ',"user":"' + "[" * 500 + '"}', 200),
    ],
)
def test_depth_has_a_limit_of_our_own(anywhere: Client, body: str, status: int) -> None:
    """A-c1: RecursionError is no ValueError and became a 500; its depth differs between Pythons."""
    assert anywhere.post(CHAT, body.encode()).status_code == status


@pytest.mark.parametrize(
    ("param", "value"),
    [("temperature", v) for v in ("999999", "-1", "NaN", "Infinity", "-Infinity", "1e999", "2.01")]
    + [("top_p", v) for v in ("-1", "0", "1.5", "NaN")]
    + [("repetition_penalty", "0"), ("frequency_penalty", "1e308"), ("presence_penalty", "-3")]
    + [("n", v) for v in ("0", "-1", "1000000")]
    + [("max_tokens", v) for v in ("0", "-1", str(2**63), "9" * 5000, "1e3")]
    + [("min_p", "2"), ("top_k", "-2"), ("seed", str(2**64)), ("seed", str(-(2**63) - 1))],
)
def test_numbers_out_of_range(anywhere: Client, param: str, value: str) -> None:
    """A-c2: unvalidated floats hung or crashed generation."""
    for path, base in ((CHAT, MESSAGES), (PLAIN, '"prompt":"go"')):
        refused(anywhere, path, f'{{{base},"{param}":{value}}}', param)


def test_the_longest_answer_the_context_allows(processes: RebarProcess) -> None:
    """A-c2: a large max_tokens is lowered to what the context has left, and allocates nothing."""
    before = processes.resident_bytes()
    usage = processes.chat(max_tokens=2**31 - 1, ignore_eos=True).json()["usage"]
    assert usage["total_tokens"] == 128
    assert processes.resident_bytes() - before < 50 << 20


def test_a_large_max_tokens_is_lowered(live: Live) -> None:
    """A-c2: the documented rule is to clamp to what the context has left."""
    live.runner.script = words("hello")
    assert said(live.chat(max_tokens=2**31 - 1)) == ("hello", "stop", 2)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("top_k", "0.01"),
        ("max_tokens", "true"),
        ("max_tokens", '"5"'),
        ("stop", '{"a":1}'),
        ("stop", '[""]'),
        ("stop", '""'),
        ("stop", "[1]"),
        ("stop", json.dumps(["x"] * 17)),
        ("messages", "{}"),
        ("messages", "[]"),
        ("messages", '["hi"]'),
        ("logit_bias", '{"1_0":5}'),
        ("logit_bias", '{"٣":5}'),
        ("logit_bias", '{" 1":5}'),
        ("logit_bias", '{"1":true}'),
        ("logit_bias", "[]"),
        ("seed", "1.5"),
        ("stream", '"yes"'),
        ("stream", "1"),
        ("n", "true"),
        ("temperature", '"1"'),
        ("model", "5"),
        ("top_logprobs", "3"),
        ("logprobs", "3"),
    ],
)
def test_wrong_types(anywhere: Client, param: str, value: str) -> None:
    """A-c3: top_k = 0.01 reached the engine loop and killed it for everyone."""
    fields = f'"{param}":{value}' if param == "messages" else f'{MESSAGES},"{param}":{value}'
    refused(anywhere, CHAT, "{" + fields + "}", param)


@pytest.mark.parametrize("stop", ["null", "[]"])
def test_no_stop(live: Live, stop: str) -> None:
    """A-c3: null and [] mean none."""
    live.runner.script = words("hello")
    assert said(live.post(CHAT, f'{{{MESSAGES},"stop":{stop}}}'.encode()))[0] == "hello"


@pytest.mark.parametrize(
    "prompt",
    [
        [-1],
        [2**40],
        [2**70],
        [1.0],
        [[1], [-1]],
        [True],
        [1, "a"],
    ],
)
def test_prompt_ids(anywhere: Client, prompt: object, caplog: pytest.LogCaptureFixture) -> None:
    """A-c4: prompt [-1] with verbose logging crashed the server, or read the table's end."""
    with caplog.at_level("DEBUG"):
        refused(anywhere, PLAIN, json.dumps({"prompt": prompt}), "prompt")
        for outside in (anywhere.vocab_size, -anywhere.vocab_size):
            refused(anywhere, PLAIN, json.dumps({"prompt": [outside]}), "prompt")
        assert anywhere.complete(prompt=[anywhere.vocab_size - 1], max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "bias",
    [
        {"999999": 5},
        {"-1": 5},
        {"abc": 1},
        {"5": 1e9},
        {str(i): 1 for i in range(100_000)},
        {str(2**40): 1},
    ],
)
def test_logit_bias(anywhere: Client, bias: dict[str, float]) -> None:
    """A-c5: a bias beyond the vocabulary raised inside the shared step."""
    alone = said(anywhere.complete(max_tokens=40, temperature=0))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(anywhere.complete, max_tokens=40, temperature=0)
        for bad in (bias, {str(anywhere.vocab_size): 1}):
            refused(anywhere, CHAT, json.dumps({**body, "logit_bias": bad}), "logit_bias")
        assert said(neighbour.result(10)) == alone


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""]])
def test_empty_prompts(anywhere: Client, prompt: object) -> None:
    """A-c6: zero tokens met an assertion; models with BOS hid it. This tokenizer has none."""
    refused(anywhere, PLAIN, json.dumps({"prompt": prompt}), "prompt")


def test_empty_content_is_a_message(live: Live) -> None:
    """A-c6: the template makes tokens of it."""
    live.runner.script = words("hello")
    assert said(live.chat(messages=[{"role": "user", "content": ""}]))[0] == "hello"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_generation(live: Live, stream: bool) -> None:
    """A-c6, A-b4: the prompt comes back, scored; its first token has no log probability."""
    answer = live.complete(prompt="correct", echo=True, max_tokens=0, logprobs=1, stream=stream)
    text, finish, count = said(answer)
    assert (text, finish, count) == ("correct", "length", None if stream else 0)
    if not stream:
        scores = answer.json()["choices"][0]["logprobs"]
        assert scores["tokens"] == list("correct")
        assert scores["token_logprobs"] == [None] + [-0.5] * 6
        assert scores["text_offset"] == list(range(7))
        assert scores["top_logprobs"][0] is None


def test_max_tokens_zero_needs_echo(anywhere: Client) -> None:
    refused(anywhere, PLAIN, '{"prompt":"a","max_tokens":0}', "max_tokens")


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 40}'}}


@pytest.mark.parametrize(
    "assistant",
    [
        {"content": None, "tool_calls": [CALL]},
        {"tool_calls": [CALL]},
        {
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "tool_calls": [CALL],
        },
    ],
)
def test_history_with_tool_calls(live: Live, assistant: dict[str, object]) -> None:
    """A-c7: content null was dropped, printed as "None", or raised."""
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", **assistant},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "and?"},
    ]
    assert live.chat(messages=history, max_tokens=1).status_code == 200
    answer = live.http.post("/tokenize", json={"messages": history})
    assert answer.status_code == 200, answer.text
    prompt = live.http.post("/detokenize", json={"tokens": answer.json()["tokens"]}).json()[
        "prompt"
    ]
    assert '"name": "add", "arguments": {"a": 40}' in prompt
    assert "tool\n42" in prompt
    assert "None" not in prompt
    assert "null" not in prompt
    assert ("a\nb" in prompt) == isinstance(assistant.get("content"), list)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages"),
        ({"role": "user", "contnet": "x"}, "messages"),
    ],
)
def test_broken_messages(anywhere: Client, message: dict[str, object], param: str) -> None:
    """A-c7, A-g2: content that no template can say, roles that do not exist."""
    refused(anywhere, CHAT, json.dumps({"messages": [message]}), param)


@pytest.mark.parametrize(
    "text", [rb"a\ud800b", rb"\udc00", rb"\ud800\ud800", b"\xff\xfe", b"\xed\xa0\x80"]
)
@pytest.mark.parametrize(
    "field",
    [
        b'"messages":[{"role":"user","content":"%b"}]',
        MESSAGES.encode() + b',"stop":"%b"',
        MESSAGES.encode() + b',"user":"%b"',
        MESSAGES.encode() + b',"model":"%b"',
        MESSAGES.encode() + b',"metadata":{"k":"%b"}',
        b'"messages":[{"role":"user","content":"a","name":"%b"}]',
        MESSAGES.encode() + b',"tools":[{"type":"function","function":{"name":"%b"}}]',
        b'"messages":[{"role":"user","content":[{"type":"text","text":"a","else":"%b"}]}]',
    ],
)
def test_lone_surrogates_and_broken_utf8(anywhere: Client, field: bytes, text: bytes) -> None:
    """A-c8: such text cannot be encoded; it blew up later, in hashing, logging or the tokenizer."""
    refused(anywhere, CHAT, b"{" + field % text + b"}")


def test_escaped_pairs_and_backslashes_are_text(live: Live) -> None:
    raw = rb'{"prompt":"\ud83d\ude00 \\ud800"}'
    answer = live.post("/tokenize", raw)
    assert answer.status_code == 200
    assert bytes(answer.json()["tokens"]).decode() == "😀 \\ud800"


def test_bodies_that_are_no_object(anywhere: Client) -> None:
    for raw in ("", "null", "[]", "{", '"x"', "{}", '{"prompt":"a"} x', "\ufeff{}", "\x00"):
        refused(anywhere, PLAIN, raw)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"modalities": ["audio"]}, "modalities"),
        (CHAT, {"no_such_parameter": 1}, "no_such_parameter"),
        (PLAIN, {"prompt": "a", "suffix": "x"}, "suffix"),
        (PLAIN, {"prompt": "a", "best_of": 3}, "best_of"),
    ],
)
def test_what_is_not_supported_is_refused(
    anywhere: Client, path: str, fields: dict[str, object], param: str
) -> None:
    base = {} if path == PLAIN else {"messages": [{"role": "user", "content": "hi"}]}
    refused(anywhere, path, json.dumps({**base, **fields}), param)


def test_what_asks_for_nothing_is_accepted(live: Live) -> None:
    live.runner.script = words("hello")
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "logit_bias": {},
        "n": None,
        "seed": None,
        "stream_options": None,
    }
    answer = live.chat(**harmless)
    assert said(answer)[0] == "hello"


def test_unknown_model(anywhere: Client) -> None:
    answer = anywhere.chat(model="gpt-9")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def exchange(port: int, head: str, chunk: bytes, most: int) -> tuple[bytes, int]:
    """Sends `chunk` again and again until an answer comes; returns it and the bytes sent."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(head.encode())
        raw.settimeout(0.02)
        while sent < most:
            try:
                sent += raw.send(chunk)
            except (TimeoutError, BlockingIOError):
                break
            except OSError:
                break
        raw.settimeout(10)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := raw.recv(65536):
                answer += data
        return answer, sent


def test_declared_length_beyond_the_limit(anywhere: Client) -> None:
    """A-c9: refused by its Content-Length, before the body comes."""
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**10}\r\n\r\n"
    answer, _ = exchange(anywhere.port, head, b"", 0)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"body_too_large" in answer


def test_chunked_body_beyond_the_limit(processes: RebarProcess) -> None:
    """A-c9: counted while it is read; memory stays near the limit."""
    before = processes.resident_bytes()
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer, sent = exchange(processes.port, head, chunk, 200 << 20)
    assert b" 413 " in answer.split(b"\r\n")[0]
    # What is sent beyond the limit only fills socket buffers: ours and the kernel's (a few MB on
    # loopback).
    assert sent < LIMIT + (16 << 20)
    assert processes.resident_bytes() - before < 2 * LIMIT


def test_very_many_messages(anywhere: Client) -> None:
    """A-c9: a million messages, 30 MB."""
    body = b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 1_000_000) + b"]}"
    assert anywhere.post(CHAT, body).status_code == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity"])
def test_compressed_bodies(anywhere: Client, encoding: str) -> None:
    """A-c9: a compressed bomb of a kilobyte holds gigabytes."""
    answer = anywhere.http.post(CHAT, content=b"\x1f\x8b", headers={"Content-Encoding": encoding})
    assert answer.status_code == 415
