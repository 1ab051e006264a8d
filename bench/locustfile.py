"""Load with locust, for those who have it: locust -f bench/locustfile.py --host http://127.0.0.1:8000

Users who chat, with a stream and without, and now and then one in a hurry. Beside locust's own
times each stream reports `first token` (until the first text) and `between tokens` (mean gap). For
open loops, goodput and percentiles by formula use `rebar bench serve`. REBAR_API_KEY is sent when
it is set.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from locust import HttpUser, between, events, task

WORDS = ("the", "house", "stood", "by", "the", "river", "in", "winter", "nobody", "came", "but")
CHAT = "/v1/chat/completions"


class Reader(HttpUser):
    """Asks, reads the answer, thinks for a while."""

    wait_time = between(0.5, 3)

    def on_start(self) -> None:
        """The key, and the first model that is served."""
        if key := os.environ.get("REBAR_API_KEY"):
            self.client.headers["Authorization"] = f"Bearer {key}"
        self.model = self.client.get("/v1/models").json()["data"][0]["id"]

    def body(self, *, stream: bool) -> dict[str, Any]:
        """A prompt of 20 to 200 words, an answer of 16 to 64 tokens."""
        words = " ".join(random.choices(WORDS, k=random.randint(20, 200)))
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": random.randint(16, 64),
            "stream": stream,
        }

    @task(8)
    def chat(self) -> None:
        """A stream, read as it comes."""
        self._stream({})

    @task(1)
    def hurry(self) -> None:
        """The same, urgent."""
        self._stream({"X-Priority": "high"})

    @task(1)
    def whole(self) -> None:
        """An answer in one piece."""
        self.client.post(CHAT, json=self.body(stream=False), name="chat, whole")

    def _stream(self, headers: dict[str, str]) -> None:
        begin = time.perf_counter()
        arrivals: list[float] = []
        with self.client.post(
            CHAT,
            json=self.body(stream=True),
            headers=headers,
            stream=True,
            catch_response=True,
            name="chat, streamed",
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            ended = False
            for line in answer.iter_lines():
                ended = ended or line == b"data: [DONE]"
                if b'"content":"' in line and b'"content":""' not in line:
                    arrivals.append(time.perf_counter())
            if not ended:
                answer.failure("the stream was cut off")
                return
            answer.success()
        if arrivals:
            report("first token", arrivals[0] - begin)
        if len(arrivals) > 1:
            report("between tokens", (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1))


def report(name: str, seconds: float) -> None:
    """A time of its own in locust's table."""
    events.request.fire(
        request_type="SSE",
        name=name,
        response_time=seconds * 1e3,
        response_length=0,
        exception=None,
        context={},
    )
