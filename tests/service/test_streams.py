"""Time and failure: early deltas, errors in streams, clients that leave (A-b2, A-b7, A-d1)."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rebar.errors import EngineError
from rebar.graph.sequence import Row
from tests.service.fakes import ScriptedRunner, words
from tests.service.live import Live, events_of, scripted_service, serving, wait_for


def fail_at(position: int, marker: int) -> Callable[[list[Row]], None]:
    """Raises when a sequence that holds `marker` in its prompt has sampled `position` ids."""

    def before(rows: list[Row]) -> None:
        for row in rows:
            prompt = row.sequence.tokens[: row.sequence.prompt].tolist()
            if marker in prompt and row.sequence.total - row.sequence.prompt >= position:
                raise EngineError("the step failed")

    return before


def test_text_that_cannot_become_a_stop_is_not_held(live: Live) -> None:
    """A-b2: a window of the longest stop's length was withheld on every token.

    Each step waits until the text of the step before has been read: held text would wait for ever.
    """
    read = threading.Semaphore(1)

    def wait_for_reader(rows: list[Row]) -> None:
        assert read.acquire(timeout=5), "the text of the step before was not sent"

    live.runner.script = list(b"abcd")
    live.runner.before = wait_for_reader
    body = {"prompt": "go", "stop": ["Z" * 16], "stream": True, "max_tokens": 9}
    texts = []
    with live.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                texts.append(json.loads(line[6:])["choices"][0]["text"])
                read.release()
    assert texts == ["a", "b", "c", "d", ""]


def test_failure_before_the_first_token_has_a_status(live: Live) -> None:
    """A-b7: nothing was sent yet, so the client gets a real 5xx."""
    live.runner.before = fail_at(0, ord("!"))
    for stream in (False, True):
        answer = live.complete(prompt="go!", stream=stream)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_error"


def test_failure_in_a_stream_is_told_and_ends_it(live: Live) -> None:
    """A-b7: the socket just closed, which looks like success, or [DONE] never came."""
    live.runner.script = list(b"abcdefgh")
    live.runner.slow = 0.01
    live.runner.before = fail_at(3, ord("!"))
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(live.complete, prompt="go", stream=True)
        answer = pool.submit(live.complete, prompt="go!", stream=True).result(10)
        assert answer.status_code == 200
        events = events_of(answer.text)
        assert [event["choices"][0]["text"] for event in events[:-1]] == ["a", "b", "c"]
        assert events[-1]["error"]["message"] == "the step failed"
        assert 'finish_reason":"' not in answer.text
        assert (
            "".join(
                event["choices"][0]["text"] for event in events_of(neighbour.result(10).text)[:-1]
            )
            == "abcdefgh"
        )


def test_failed_streams_are_in_the_log(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.runner.script = list(b"abcdefgh")
    live.runner.slow = 0.01
    live.runner.before = fail_at(3, ord("!"))
    with caplog.at_level("INFO", logger="rebar.service.request"):
        live.complete(prompt="go!", stream=True)
        wait_for(lambda: "failed=EngineError" in caplog.text)


def test_failure_of_a_whole_answer_has_a_status(live: Live) -> None:
    live.runner.script = list(b"abcdefgh")
    live.runner.before = fail_at(3, ord("!"))
    assert live.complete(prompt="go!").status_code == 500


def leave(live: Live, body: dict[str, object], after: float, *, reset: bool) -> None:
    """Sends a request and closes the socket after `after` seconds, politely or with a reset."""
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as sock:
        sock.sendall(head.encode() + raw)
        time.sleep(after)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_ends_its_work(live: Live, stream: bool, reset: bool) -> None:
    """A-d1: plain handlers are not cancelled when a client leaves; a middleware can hide it."""
    live.runner.choose = lambda sequence, position: ord("z")
    live.runner.slow = 0.02
    before = live.service.stats.sampled_tokens
    leave(live, {"prompt": "go", "max_tokens": 100, "stream": stream}, 0.1, reset=reset)
    live.at_rest(within=1.0)
    assert live.service.stats.sampled_tokens - before < 20


def test_many_clients_leave_in_every_state(caplog: pytest.LogCaptureFixture) -> None:
    """A-d1, A-k3: queued (memory for two), in the prompt, decoding; 50 of them at once."""
    runner = ScriptedRunner(choose=lambda s, p: ord("z"), kv_blocks=14, max_rows=4, slow=0.002)
    with serving(runner) as live:
        body = {"prompt": "p" * 40, "max_tokens": 60}
        threads = [
            threading.Thread(
                target=leave,
                args=(live, {**body, "stream": i % 2 == 0}, i * 0.006),
                kwargs={"reset": i % 3 == 0},
            )
            for i in range(50)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        live.at_rest(within=1.0)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_full_queue_is_a_429() -> None:
    """A bounded queue: Retry-After, no error for those inside, and room again afterwards."""
    runner = ScriptedRunner(choose=lambda s, p: ord("z"), slow=0.01)
    service = scripted_service(runner, max_running=1, max_waiting=2)
    with serving(runner, service) as live, ThreadPoolExecutor(3) as pool:
        inside = [pool.submit(live.complete, max_tokens=40) for _ in range(3)]
        wait_for(lambda: live.service.open == 3)
        refused = live.complete(max_tokens=1)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert live.complete(n=4).status_code == 400, "more choices than can ever be held"
        assert [answer.result(10).status_code for answer in inside] == [200] * 3


def test_engine_that_does_not_advance_is_not_healthy(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.http.get("/health").json()["status"] == "ok"
    monkeypatch.setattr("rebar.service.router.STALL_SECONDS", 0.1)
    live.runner.script = words("hello")
    live.runner.slow = 0.5
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(live.complete)
        wait_for(lambda: live.service.open > 0)
        wait_for(lambda: live.http.get("/health").status_code == 503)
        assert live.http.get("/health").json()["status"] == "stalled"
        assert answer.result(10).status_code == 200
    monkeypatch.undo()
    assert live.http.get("/health").status_code == 200
