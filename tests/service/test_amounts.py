"""What is allowed in each part and too much together; what is much and holds nobody up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rebar.service.amounts import MAX_SCORES
from rebar.service.http.exchange import ChatExchange
from tests.service.fakes import END, ScriptedRunner
from tests.service.live import CHAT, PLAIN, Client, Live, refused, scripted_service, serving


@pytest.fixture(scope="module")
def roomy() -> Iterator[Live]:
    """A context of 4,096 tokens, as small as those of today's models come."""
    runner = ScriptedRunner(kv_blocks=2048, max_context=4096, max_rows=512)
    runner.choose = lambda s, p: 97 if p < 200 + s.prompt else END
    with serving(runner, scripted_service(runner, max_running=64)) as live:
        yield live


HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": HI, "n": 128, "logprobs": True, "top_logprobs": 20}),
        (CHAT, {"messages": HI, "n": 20, "logprobs": True, "top_logprobs": 20,
                "max_tokens": 3000}),
        (PLAIN, {"prompt": "hi", "n": 128, "logprobs": 20, "max_tokens": 400}),
        (PLAIN, {"prompt": ["a" * 1000] * 128, "echo": True, "logprobs": 20, "max_tokens": 1}),
        (PLAIN, {"prompt": [[97] * 1000] * 128, "echo": True, "logprobs": 20}),
    ],
)  # fmt: skip
def test_scores_of_many_choices(roomy: Live, path: str, fields: dict[str, Any]) -> None:
    """128 choices of 2,000 tokens with 20 alternatives each: gigabytes in the front, half a
    gigabyte of answer, and nobody else was answered for seconds while it was written.
    """
    refused(roomy, path, json.dumps(fields), "logprobs")


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 20},
        {"n": 128},
        {"n": 8, "logprobs": True, "top_logprobs": 4},
        {"n": 20, "logprobs": True, "top_logprobs": 20, "max_tokens": MAX_SCORES // 21 // 20},
    ],
)
def test_what_one_choice_may_have_and_what_is_few(roomy: Live, fields: dict[str, Any]) -> None:
    answer = roomy.chat(**{"max_tokens": 4096, **fields})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == fields.get("n", 1)


def test_a_large_answer_is_not_written_in_the_loop(
    roomy: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing a million log probabilities held up the loop, and with it everybody, for seconds."""
    written = []
    whole = ChatExchange.whole

    def noted(self: ChatExchange, *args: Any) -> bytes:
        written.append(threading.current_thread().name)
        return whole(self, *args)

    monkeypatch.setattr(ChatExchange, "whole", noted)
    assert roomy.chat(max_tokens=5).status_code == 200
    assert roomy.chat(max_tokens=4096, logprobs=True, top_logprobs=3).status_code == 200
    assert not written[0].startswith("rebar-text")
    assert written[1].startswith("rebar-text")


def test_more_messages_than_tokens(anywhere: Client) -> None:
    """A body of 3 MB took three seconds of rendering until it was found too long."""
    body = b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 100_000) + b"]}"
    error = refused(anywhere, CHAT, body, "messages")
    assert error["code"] == "context_length_exceeded"
    assert "100000 messages" in str(error["message"])
