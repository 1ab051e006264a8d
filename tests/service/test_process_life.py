"""`rebar serve` as a family of processes: CASES A-d3, A-l1, A-l3, A-l6. What it started ends with
it, however it ends; what it has not begun to use it leaves alone.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.models import convert
from rebar.graph import RunnerOptions
from rebar.service.engine_process import EngineProcess
from rebar.service.grammar_check import GrammarChecker
from rebar.service.messages import EngineSpec
from tests.service.fakes import scripted_tokenizer
from tests.service.live import wait_for
from tests.service.rebar_process import (
    ROOT,
    RebarProcess,
    address,
    alive,
    descendants,
    gone,
    kill,
    serving_process,
    start,
)
from tests.service.test_structured import grammar
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("life"), "llama", "Q8_0", context_length=2048)


@pytest.fixture
def cache(model: Path) -> Path:
    folder = model.parent / "cache"
    folder.mkdir(exist_ok=True)
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("line", ["", "machine ", "  total ", "ready "])
def test_a_signal_at_any_moment_of_a_start(
    model: Path, cache: Path, number: signal.Signals, line: str
) -> None:
    """A-l1: children remained for ten minutes; nothing handled the signal until the start had
    ended. Here as soon as it has written `line`: at once, before the model, in the load, ready.
    """
    port, log = free_port(), cache / "start.log"
    process = start(model, cache, log, port=port)
    try:
        wait_for(lambda: line in log.read_text(), within=30)
        family = descendants(process.pid)
        process.send_signal(number)
        code = process.wait(10)
        ready = "ready " in log.read_text()
        assert code == (0 if ready and number == signal.SIGTERM else -number)
        assert gone(family, 5.0)
        assert not listening(port)
    finally:
        kill(process)


LOADING = """
import sys
from rebar.graph import RunnerOptions
from rebar.service import engine_process
from rebar.service.messages import EngineSpec

engine_process.COMMAND = '''
import time
from rebar.service import loading
loading.load_engine = lambda *a, **k: time.sleep(100)
from rebar.service.engine_process import main
main()
'''
engine_process.EngineProcess(EngineSpec(sys.argv[1], RunnerOptions(), 1, 1))
"""
COMPILING = """
from rebar.service import grammar_check
grammar_check.CHECK_SECONDS = 100
grammar_check.GrammarChecker().check(open(0).read())
"""


@contextmanager
def parent(script: str, *words: str, said: str = "") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(said)
    process.stdin.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_engine_that_loads_ends_with_its_front(model: Path) -> None:
    """A-l1: it looked at its connection only when it had loaded, after minutes of a large model."""
    with parent(LOADING, str(model)) as front:
        wait_for(lambda: bool(descendants(front.pid)), within=20)
        family = descendants(front.pid)
        time.sleep(0.5)  # it is well inside of the load, or still before it: either must end
        assert all(map(alive, family))
        front.kill()
        assert gone(family, 5.0)


def test_a_checker_that_compiles_ends_with_its_front() -> None:
    """A-l1: a grammar without end kept a process busy that nobody waited for."""
    patterns = [{"pattern": f".*a.{{{i}}}b.*"} for i in range(3, 20)]
    hostile = grammar(guided_json={"type": "string", "allOf": patterns})
    with parent(COMPILING, said=hostile) as front:
        wait_for(lambda: bool(descendants(front.pid)), within=20)
        family = descendants(front.pid)
        time.sleep(1.0)
        assert all(map(alive, family))
        front.kill()
        assert gone(family, 5.0)


def test_killed_under_load_and_started_again(model: Path, cache: Path) -> None:
    """A-l1, A-l6: the front is killed with streams open. Its engine goes, the port is free, and the
    next one on the same port says the same.
    """
    port = free_port()
    answers = []
    for _ in range(2):
        log = cache / "killed.log"
        process = start(model, cache, log, port=port)
        try:
            server = RebarProcess(process, log)
            answers.append(server.probed.before)
            streams = [opened(port, 2000) for _ in range(4)]
            family = server.pids
            assert len(family) >= 2
            server.close()
            process.kill()
            assert gone(family, 5.0)
            process.wait()
            for sock in streams:
                sock.close()
        finally:
            kill(process)
        assert not listening(port)
    with serving_process(model, cache, port=port) as server:
        answers.append(server.probed.before)
    assert len(set(answers)) == 1


def shared_memory(pids: list[int] | None = None) -> dict[tuple[int, int], set[int]]:
    """Memory for keys and values by its identity, and which of the processes (None: any) have it
    open or mapped.
    """
    found: dict[tuple[int, int], set[int]] = {}
    for pid in pids or [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]:
        with contextlib.suppress(OSError):
            for link in [
                *Path(f"/proc/{pid}/fd").iterdir(),
                *Path(f"/proc/{pid}/map_files").iterdir(),
            ]:
                with contextlib.suppress(OSError):
                    if "memfd:rebar-kv" in os.readlink(link):
                        found.setdefault((link.stat().st_dev, link.stat().st_ino), set()).add(pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_memory_that_outlives_engines_ends_with_the_front(
    model: Path, cache: Path, number: signal.Signals
) -> None:
    """However the front ends. The engine inherits it; what else the front starts does not."""
    log = cache / "kept.log"
    process = start(model, cache, log)
    try:
        server = RebarProcess(process, log)
        server.complete(prompt="go", max_tokens=3, guided_regex="[a-c]{1,5}")  # starts a checker
        family = server.pids
        engine = next(p for p in family if b"engine_process" in commandline(p))
        assert len(family) >= 3
        ((memory, holders),) = shared_memory(family).items()
        assert holders == {process.pid, engine}
        server.close()
        process.send_signal(number)
        process.wait(15)
        assert gone(family, 5.0)
        assert memory not in shared_memory()
    finally:
        kill(process)


def commandline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("names", [(), ("first", "second")])
def test_a_model_is_called_by_its_name_not_its_path(
    model: Path, cache: Path, names: tuple[str, ...]
) -> None:
    """The list of models once gave a path on the server as the name. It may still be said; names
    that the operator chose replace it.
    """
    flags = [word for name in names for word in ("--served-model-name", name)]
    with serving_process(model, cache, *flags) as server:
        (listed,) = server.http.get("/v1/models").json()["data"]
        assert (listed["id"], listed["root"]) == ((names or (model.stem,))[0], str(model))
        known = names or (model.stem, str(model))
        for name in known:
            answer = server.http.post(
                "/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1}
            )
            assert answer.json()["model"] == listed["id"]
            assert server.http.get(f"/v1/models/{name.strip('/')}").status_code == (
                404 if name == str(model) else 200
            )
        refused = server.http.post("/v1/completions", json={"model": "x", "prompt": "a"})
        assert refused.json()["error"]["code"] == "model_not_found"
        gone_names = (model.stem, str(model)) if names else ()
        for name in gone_names:
            body = {"model": name, "prompt": "a"}
            assert server.http.post("/v1/completions", json=body).status_code == 404


def opened(port: int, max_tokens: int) -> socket.socket:
    """A stream that has begun."""
    body = json.dumps(
        {"prompt": "go", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    )
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall((head + body).encode())
    assert sock.recv(100).startswith(b"HTTP/1.1 200")
    return sock


def rest_of(sock: socket.socket) -> bytes:
    got = b""
    with sock:
        while data := sock.recv(1 << 16):
            got += data
    return got


def test_a_drain_lets_streams_end_and_takes_the_engine_along(model: Path, cache: Path) -> None:
    """A-d3, A-l1: open streams end with [DONE], then all processes end, with exit code 0."""
    log = cache / "drain.log"
    process = start(model, cache, log, "--drain-timeout", "60")
    try:
        server = RebarProcess(process, log)
        family = server.pids
        streams = [opened(server.port, 600) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        assert all(b"[DONE]" in rest_of(sock) for sock in streams)
        assert process.wait(10) == 0
        assert gone(family, 5.0)
        assert not server.errors()
        server.close()
    finally:
        kill(process)


def test_a_taken_port_is_told_before_the_model_is_looked_at(cache: Path) -> None:
    """A-l6: it was discovered after minutes of loading. The model does not even exist here."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        log = cache / "taken.log"
        process = start(Path("/nowhere/model.gguf"), cache, log, port=port)
        assert process.wait(20) == 2
        assert str(port) in log.read_text()
        assert "nowhere" not in log.read_text()
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_two_that_want_one_port(model: Path, cache: Path) -> None:
    """A-l6: one serves, the other says why not and goes."""
    port = free_port()
    logs = [cache / f"two-{i}.log" for i in range(2)]
    both = [start(model, cache, log, port=port) for log in logs]
    try:
        wait_for(lambda: any(process.poll() is not None for process in both), within=30)
        loser = next(i for i in range(2) if both[i].poll() is not None)
        assert both[loser].wait() == 2
        assert str(port) in logs[loser].read_text()
        assert address(both[1 - loser], logs[1 - loser]).endswith(f":{port}")
    finally:
        for process in both:
            kill(process)


def test_processes_start_while_threads_hold_every_lock(model: Path) -> None:
    """A-l3: a forked child inherited a locked mutex and waited for ever (84 of 500 jobs passed
    first). Tokenizer, BLAS and log are in use by threads all the while.
    """
    target = model.parent / "forked.rebar"
    convert(model, target)
    done, tokenizer = threading.Event(), scripted_tokenizer()
    log = logging.getLogger("rebar.test")
    square = np.ones((200, 200), dtype=np.float32)

    def busy() -> None:
        while not done.is_set():
            tokenizer.encode("hello " * 200)
            np.dot(square, square)
            log.info("busy")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        for _ in range(10):
            checker = GrammarChecker()
            checker.check(grammar(guided_regex="a+"))
            checker.close()
        for _ in range(3):
            engine = EngineProcess(EngineSpec(str(target), RunnerOptions(threads=1), 1, 1))
            assert engine.end(10)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert time.monotonic() - began < 60


FORKS = {"fork", "forkpty", "ProcessPoolExecutor", "preexec_fn", "set_start_method"}


def test_no_process_is_forked() -> None:
    """A-l3: every process of ours is a new program; a fork would copy locks that threads hold."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            used = {getattr(node, name, None) for name in ("attr", "id", "arg", "name")}
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            assert not used & FORKS, place
            match node:
                case ast.Call(func=ast.Attribute(attr="get_context"), args=[ast.Constant(value)]):
                    assert value == "spawn", place
                case ast.Attribute(value=ast.Name(id="multiprocessing"), attr=name):
                    assert name == "get_context", place
