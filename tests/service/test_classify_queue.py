"""Images in the engine's queue: batches, faults, priorities, and who leaves."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.service.http.lifecycle import TimeLimits
from rebar.service.http.waves import WAVE
from tests.service.classifying import (
    Gate,
    ScriptedImages,
    classifying,
    scripted_images,
)
from tests.service.live import wait_for
from tests.service.test_classify import ask, said


def pixel_images(count: int) -> list[Any]:
    return [[[i, 0, 0, 0]] + [[0] * 4] * 3 for i in range(count)]


def test_images_of_several_requests_are_one_step() -> None:
    """While a step is held up others arrive; the next one takes as many as it may."""
    runner, gate = ScriptedImages(max_rows=8), Gate()
    with classifying(scripted_images(runner)) as client, ThreadPoolExecutor(4) as pool:
        runner.before = gate
        asked = [pool.submit(ask, client, pixel_images(1))]
        assert gate.reached.wait(5)
        asked += [pool.submit(ask, client, pixel_images(3)) for _ in range(3)]
        wait_for(lambda: client.probed.engines()[0]["open"] == 10)
        gate.open()
        for answer in asked:
            said(answer.result())
        assert [len(step) for step in runner.steps] == [1, 8, 1]
        metrics = client.http.get("/metrics").text
        assert 'rebar_images_total{model_name="shapes"} 10.0' in metrics
        assert 'dfp_batch_size_limit{model_name="shapes"} 8.0' in metrics


def test_an_image_that_fails_fails_alone() -> None:
    """A step that raises is made again image by image."""
    runner = ScriptedImages()

    def before(given: NDArray[np.float32]) -> None:
        if (given[:, 0] == given[:, 0].max()).any() and given[:, 0].max() > 0.5:
            raise RuntimeError("of this image")

    runner.before = before
    with classifying(scripted_images(runner)) as client, ThreadPoolExecutor(2) as pool:
        bad = pool.submit(ask, client, [[[255, 0, 0, 0]] + [[0] * 4] * 3])
        good = [pool.submit(ask, client, pixel_images(3)) for _ in range(3)]
        assert bad.result().status_code == 500
        assert bad.result().json()["error"]["type"] == "server_error"
        for answer in good:
            said(answer.result())
        runner.before = lambda _: None


def test_what_is_no_number_is_an_error_of_its_own_image() -> None:

    class Strange(ScriptedImages):
        def classify(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
            logits = super().classify(images)
            logits[images[:, 0] > 0.5] = np.nan
            return logits

    runner = Strange()
    with classifying(scripted_images(runner)) as client:
        answer = ask(client, [[[255, 0, 0, 0]] + [[0] * 4] * 3])
        assert answer.status_code == 500
        assert "no number" in answer.json()["error"]["message"]
        said(ask(client, pixel_images(2)))


def test_who_is_urgent_comes_first_and_who_is_late_is_told() -> None:
    """Rank decides, not arrival; a deadline that has passed costs no step."""
    runner, gate = ScriptedImages(max_rows=1), Gate()
    with classifying(scripted_images(runner)) as client, ThreadPoolExecutor(4) as pool:
        runner.before = gate

        def post(value: int, **headers: str) -> httpx.Response:
            image = [[value, 0, 0, 0]] + [[0] * 4] * 3
            body = {"images": [image]}
            return client.http.post("/v1/classify", json=body, headers=headers)

        first = pool.submit(post, 1)
        assert gate.reached.wait(5)
        low = pool.submit(post, 2, **{"X-Priority": "low"})
        wait_for(lambda: client.probed.engines()[0]["open"] == 2)
        high = pool.submit(post, 3, **{"X-Priority": "high"})
        late = pool.submit(post, 4, **{"X-Deadline-Ms": "30"})
        wait_for(lambda: client.probed.engines()[0]["open"] == 4)
        time.sleep(0.05)
        gate.open()
        for answer in (first, low, high):
            said(answer.result())
        assert late.result().status_code == 504
        assert late.result().json()["error"]["code"] == "deadline_exceeded"
        values = [round(float((step[0, 0] + 1) * 127.5)) for step in runner.steps]
        assert values == [1, 3, 2]
        wrong = client.http.post(
            "/v1/classify", json={"images": pixel_images(1)}, headers={"X-Priority": "now"}
        )
        assert wrong.status_code == 400


def test_a_full_queue_is_told_and_a_long_request_leaves_room() -> None:
    """A request of many images goes in waves; one more than fits is refused with 429."""
    runner, gate = ScriptedImages(max_rows=4), Gate()
    with classifying(scripted_images(runner, max_waiting=4)) as client:
        with ThreadPoolExecutor(2) as pool:
            runner.before = gate
            many = pool.submit(ask, client, pixel_images(WAVE + 3))
            assert gate.reached.wait(5)
            refusal = ask(client, pixel_images(1))
            assert refusal.status_code == 429
            assert int(refusal.headers["retry-after"]) >= 1
            gate.open()
            assert len(said(many.result())) == WAVE + 3
        assert max(len(step) for step in runner.steps) == 4


def test_a_client_that_leaves_costs_no_more_steps() -> None:
    runner, gate = ScriptedImages(max_rows=1), Gate()
    with classifying(scripted_images(runner)) as client:
        runner.before = gate

        def leave() -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{client.url}/v1/classify", json={"images": pixel_images(9)}, timeout=0.3
                )

        left = threading.Thread(target=leave)
        left.start()
        assert gate.reached.wait(5)
        left.join()
        wait_for(lambda: client.probed.engines()[0]["open"] == 0)
        gate.open()
        client.at_rest()
        assert len(runner.steps) <= 2


def test_an_answer_that_takes_too_long_is_ended() -> None:
    runner, gate = ScriptedImages(), Gate()
    with classifying(scripted_images(runner), TimeLimits(request=0.2)) as client:
        runner.before = gate
        answer = ask(client, pixel_images(1))
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        gate.open()
