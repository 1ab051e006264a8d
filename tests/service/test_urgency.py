"""Priorities, deadlines and explanations over HTTP."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tests.service.fakes import END, ScriptedRunner, words
from tests.service.live import Live, events_of, refused, scripted_service, serving, wait_for

PLAIN = "/v1/completions"


def ask(live: Live, headers: dict[str, str], **fields: object) -> httpx.Response:
    return live.http.post(PLAIN, json={"prompt": "go", **fields}, headers=headers)


@pytest.mark.parametrize(
    ("headers", "fields", "priority"),
    [
        ({}, {}, 0),
        ({"X-Priority": "high"}, {}, -1),
        ({"X-Priority": "Low"}, {}, 1),
        ({}, {"priority": -7}, -7),
        ({"X-Priority": "normal"}, {"priority": 5}, 0),
    ],
)
def test_priority(
    live: Live, headers: dict[str, str], fields: dict[str, Any], priority: int
) -> None:
    """A gateway's header decides over the body; in the body the lower number comes first."""
    live.runner.script = words("hello")
    answer = ask(live, {**headers, "X-Request-Id": "who"}, **fields)
    assert answer.status_code == 200, answer.text
    (choice,) = live.http.get("/v1/requests/who").json()["choices"]
    assert choice["priority"] == priority


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Priority", "urgent"),
        ("X-Priority", ""),
        ("X-Deadline-Ms", "0"),
        ("X-Deadline-Ms", "-5"),
        ("X-Deadline-Ms", "1e3"),
        ("X-Deadline-Ms", "99999999999"),
    ],
)
def test_headers_that_mean_nothing(live: Live, name: str, value: str) -> None:
    answer = ask(live, {name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_priority_out_of_range(live: Live) -> None:
    refused(live, PLAIN, '{"prompt": "go", "priority": 1001}', "priority")
    refused(live, PLAIN, '{"prompt": "go", "priority": "high"}')


def test_a_deadline_that_cannot_be_met() -> None:
    """One place, held: the second waits, is given up in time, and the first goes on."""
    runner = ScriptedRunner(slow=0.02, choose=lambda s, p: 97 if p < 60 else END)
    with serving(runner, scripted_service(runner, max_running=1)) as live:
        first: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: first.append(live.complete(max_tokens=60)))
        thread.start()
        wait_for(lambda: live.service.stats.running == 1)
        began = time.monotonic()
        answer = ask(live, {"X-Deadline-Ms": "150", "X-Request-Id": "late"}, max_tokens=5)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert time.monotonic() - began < 1.0, "it waited for its turn to be told"
        (choice,) = live.http.get("/v1/requests/late").json()["choices"]
        assert choice["state"] == "deadline_exceeded"
        assert choice["queued"] is None
        assert set(choice["waits"]) <= {"order", "place"}
        assert choice["waits"]["place"] > 0.05
        thread.join(20)
        assert first[0].status_code == 200
        met = ask(live, {"X-Deadline-Ms": "20000"}, max_tokens=5)
        assert met.status_code == 200


def test_why_it_waited_in_the_answer(live: Live) -> None:
    """When asked for, streamed or whole; else nothing is said of it."""
    live.runner.choose = lambda s, p: 97 if p < 3 + s.prompt else END
    told = live.complete(explain=True, n=2, max_tokens=9).json()["explanation"]
    stream = live.complete(explain=True, n=2, max_tokens=9, stream=True).text
    streamed = events_of(stream)[-2]["explanation"]
    for choices in (told, streamed):
        assert [c["index"] for c in choices] == [0, 1]
        for choice in choices:
            assert 0 <= choice["queued"] <= choice["first_token"] <= choice["seconds"]
            assert choice["steps"] == 5
    assert "explanation" not in live.complete(max_tokens=9).json()
    assert "explanation" not in live.complete(max_tokens=9, stream=True).text


def test_an_unknown_request(live: Live) -> None:
    answer = live.http.get("/v1/requests/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"
