"""The proxies' settings, in the real programs: a stream comes through as it is made."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rebar.service.http.reading import MAX_BODY_BYTES
from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, events_of, scripted_service, serving, wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
TOKENS = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def nginx(folder: Path, port: int, behind: int) -> list[str]:
    """The command of an nginx of its own, with deploy/nginx.conf in its http block."""
    text = (DEPLOY / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{behind}")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    user = "user root; " if os.geteuid() == 0 else ""  # the folder is the test's own
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{user}daemon off; error_log stderr; pid {folder}/pid; events {{}}\n"
        f"http {{ access_log off;\n{paths}{text}}}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def caddy(folder: Path, port: int, behind: int) -> list[str]:
    """The command of a Caddy of its own, without certificates."""
    text = (DEPLOY / "Caddyfile").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{behind}")
    text = text.replace("llm.example.com {", f"http://127.0.0.1:{port} {{")
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@contextlib.contextmanager
def proxied(name: str, live: Live, folder: Path) -> Iterator[httpx.Client]:
    """A client that talks through a proxy."""
    port = free_port()
    command = {"nginx": nginx, "caddy": caddy}[name](folder, port, live.port)
    with (folder / "log").open("wb") as log:
        home = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=home)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url) or process.poll() is not None, within=20.0)
        assert process.poll() is None, (folder / "log").read_text()
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url + "/health/live", trust_env=False).status_code == 200
    return False


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    runner = ScriptedRunner(kv_blocks=2048, max_context=2048)
    with serving(runner, scripted_service(runner)) as live:
        yield live


@pytest.fixture(params=["nginx", "caddy"])
def client(request: pytest.FixtureRequest, live: Live, tmp_path: Path) -> Iterator[httpx.Client]:
    if not shutil.which(request.param, path="/usr/sbin:/usr/bin:/bin"):
        pytest.skip(f"{request.param} is not here (apt-get install {request.param})")
    live.runner.reset()
    live.runner.choose = lambda sequence, position: ord("z")
    with proxied(request.param, live, tmp_path) as client:
        yield client
    live.probe()


def test_an_event_arrives_while_the_next_is_not_even_made(live: Live, client: httpx.Client) -> None:
    """No clock: the model makes its third token only after the client has read the first."""
    read = threading.Event()
    steps = iter(range(10**6))
    live.runner.before = lambda rows: None if next(steps) < 2 else _wait(read)
    body = {"prompt": "go", "max_tokens": TOKENS, "stream": True}
    text = ""
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert re.fullmatch(r"[A-Za-z0-9-]+", answer.headers["x-request-id"])
        for piece in answer.iter_text():
            text += piece
            read.set()
    shown = "".join(event["choices"][0]["text"] for event in events_of(text)[:-1])
    assert shown == "z" * TOKENS


def _wait(read: threading.Event) -> None:
    assert read.wait(15), "the client was shown nothing: the proxy holds the stream back"


def test_a_client_that_leaves_ends_its_work(live: Live, client: httpx.Client) -> None:
    live.runner.slow = 0.01
    body = {"prompt": "go", "max_tokens": 1500, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_text())
    live.at_rest(within=5.0)


def test_what_is_too_large_is_refused_by_the_server_in_json(client: httpx.Client) -> None:
    body = b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'
    answer = client.post("/v1/completions", content=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
