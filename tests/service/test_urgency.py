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
    runner = ScriptedRunner(slow=0.02, choose=lambda s, p: 97 if p < 400 else END)
    with serving(runner, scripted_service(runner, max_running=1)) as live:
        first: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: first.append(live.complete(max_tokens=400)))
        thread.start()
        wait_for(lambda: live.service.stats.running == 1)
        began = time.monotonic()
        answer = ask(live, {"X-Deadline-Ms": "150", "X-Request-Id": "late"}, max_tokens=5)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert time.monotonic() - began < 4.0, "it waited for its turn to be told"
        (choice,) = live.http.get("/v1/requests/late").json()["choices"]
        assert choice["state"] == "deadline_exceeded"
        assert choice["queued"] is None
        assert set(choice["waits"]) <= {"order", "place"}
        assert choice["waits"]["place"] > 0.05
        thread.join(20)
        assert first[0].status_code == 200
        met = ask(live, {"X-Deadline-Ms": "20000"}, max_tokens=5)
        assert met.status_code == 200


def test_a_high_request_does_not_wait_for_a_low_one() -> None:
    """A-e7: one place, held by a long low request; the high one goes first, the low one after it
    to its end, with what it had said.
    """
    runner = ScriptedRunner(slow=0.01, choose=lambda s, p: 97 if p < 90 else END)
    with serving(runner, scripted_service(runner, max_running=1)) as live:
        ended: list[str] = []

        def run(priority: str, max_tokens: int) -> None:
            answer = ask(live, {"X-Priority": priority}, max_tokens=max_tokens)
            assert answer.json()["choices"][0]["text"] == "a" * max_tokens
            ended.append(priority)

        low = threading.Thread(target=run, args=("low", 80))
        low.start()
        wait_for(lambda: live.service.stats.running == 1)
        for _ in range(3):
            run("high", 5)
        assert ended == ["high"] * 3
        low.join(20)
        assert ended[-1] == "low"
        assert live.service.stats.preemptions > 0


def test_a_low_request_is_not_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A-e7: one place, and high requests without a pause. A low one starts when it has aged, here
    after half a second for each step of priority instead of a minute.
    """
    monkeypatch.setattr("rebar.service.generation.PATIENCE_SECONDS", 0.5)
    runner = ScriptedRunner(slow=0.005, choose=lambda s, p: 97)
    with serving(runner, scripted_service(runner, max_running=1)) as live:
        done = threading.Event()

        def pester() -> None:
            with httpx.Client(base_url=live.url, trust_env=False, timeout=20) as http:
                while not done.is_set():
                    http.post(PLAIN, json={"prompt": "hi", "max_tokens": 5},
                              headers={"X-Priority": "high"})  # fmt: skip

        pests = [threading.Thread(target=pester) for _ in range(4)]
        for pest in pests:
            pest.start()
        wait_for(lambda: live.service.open >= 4)
        low = ask(live, {"X-Priority": "low"}, max_tokens=5, explain=True)
        done.set()
        for pest in pests:
            pest.join()
        assert low.status_code == 200
        (told,) = low.json()["explanation"]
        assert told["waits"].get("order", 0) + told["waits"].get("place", 0) > 0.3, "void: no queue"


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
