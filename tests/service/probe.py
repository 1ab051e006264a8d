"""PROBE of the cases: a server that met something hostile answers as before and holds nothing.

"One bad request killed the engine for everyone" is the commonest fault of servers of this kind, and
a status code does not show it. Everything here goes over HTTP, so it holds for a server in a thread
of the test, in a process of its own, and for one with an engine process.
"""

from __future__ import annotations

import time
from typing import Any

import httpx

PROBE = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


class Probe:
    """Made before the hostile case, asked after it. A model without chat is refused the same way
    before and after.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False, headers=headers)
        self.before = self.answer()
        self.at_rest(10.0)
        self.workers = self.pids()

    def check(self, within: float = 10.0) -> None:
        """The server is at rest, answers PROBE as before, and is at rest again; nobody was replaced
        meanwhile.
        """
        self.at_rest(within)
        assert self.answer() == self.before
        self.at_rest(within)
        assert self.pids() == self.workers, "an engine was replaced"

    def answer(self) -> tuple[int, str]:
        """Status and text, or the message of the error."""
        answer = self.http.post("/v1/chat/completions", json=PROBE)
        if answer.status_code == 200:
            return 200, str(answer.json()["choices"][0]["message"]["content"])
        assert answer.status_code < 500, answer.text
        return answer.status_code, str(answer.json()["error"]["message"])

    def engines(self) -> list[dict[str, Any]]:
        """What /health says of each engine."""
        found: list[dict[str, Any]] = self.http.get("/health").json()["engines"]
        return found

    def pids(self) -> list[tuple[int | None, int]]:
        """Who computes, and how often that was somebody else."""
        return [(engine["pid"], engine["restarts"]) for engine in self.engines()]

    def at_rest(self, within: float) -> None:
        """No block held, nothing running, nothing waiting."""
        deadline = time.monotonic() + within
        while (busy := self._busy()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not busy, busy

    def _busy(self) -> list[dict[str, Any]]:
        return [
            engine
            for engine in self.engines()
            if engine["open"] or engine["running"] or engine["waiting"]
            or engine["free_blocks"] != engine["total_blocks"]
        ]  # fmt: skip

    def close(self) -> None:
        """Ends its connections."""
        self.http.close()
