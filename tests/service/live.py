"""A real server (uvicorn, a real port) over a scripted model, and what tests ask of it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import msgspec
import uvicorn

from rebar.dataflow.text import ChatTemplate, TextStream, Tokenizer
from rebar.service.engine import InferenceEngine
from rebar.service.grammar import Grammars
from rebar.service.http.access import Access
from rebar.service.http.app import create_app
from rebar.service.http.connection import ServerConfig
from rebar.service.http.lifecycle import Lifecycle, TimeLimits
from rebar.service.messages import Delta, EngineLimits, Orders, RequestPacket, StepReport
from rebar.service.model import LoadedModel, ServedModel
from rebar.service.router import ModelService, ServiceRouter
from rebar.service.server import bind
from tests.service.fakes import TEMPLATE, ScriptedRunner, scripted_tokenizer
from tests.service.probe import PROBE as PROBE
from tests.service.probe import Probe

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
NAME = "scripted"


def scripted_model(
    runner: ScriptedRunner,
    *,
    tokenizer: Tokenizer | None = None,
    template: str = TEMPLATE,
    max_running: int = 8,
    max_waiting: int = 256,
) -> LoadedModel:
    """The scripted model, loaded."""
    tokenizer = tokenizer or scripted_tokenizer()
    engine = InferenceEngine(
        runner,
        partial(TextStream, tokenizer),
        vocab_size=tokenizer.vocab_size,
        max_running=max_running,
        grammars=Grammars(tokenizer),
    )
    limits = EngineLimits(
        max_context=runner.max_context,
        kv_tokens=runner.kv.total_blocks * runner.kv.block_size,
        vocab_size=tokenizer.vocab_size,
        max_open=max_running + max_waiting,
        width=runner.width,
    )
    model = ServedModel(NAME, tokenizer, ChatTemplate(template, tokenizer), limits)
    return LoadedModel(model, engine)


def scripted_service(runner: ScriptedRunner, **options: Any) -> ModelService:
    """A service of the scripted model, in a thread."""
    model = scripted_model(runner, **options)
    return ModelService.in_thread(model.served, model.engine)


class Client:
    """What tests ask of a server, wherever it runs. `probe` compares with how it was when this was
    made.
    """

    vocab_size: int

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=url, timeout=20, trust_env=False, headers=headers)
        self.probed = Probe(url, headers)

    def chat(self, **fields: object) -> httpx.Response:
        """POST /v1/chat/completions with PROBE's message unless another is given."""
        return self.http.post(
            "/v1/chat/completions", json={"messages": PROBE["messages"], **fields}
        )

    def complete(self, **fields: object) -> httpx.Response:
        """POST /v1/completions."""
        return self.http.post("/v1/completions", json={"prompt": "go", **fields})

    def post(self, path: str, raw: bytes) -> httpx.Response:
        """POST of raw bytes."""
        return self.http.post(path, content=raw, headers={"Content-Type": "application/json"})

    def probe(self) -> None:
        """PROBE: the server answers as ever and holds nothing."""
        self.probed.check()

    def at_rest(self, within: float = 10.0) -> None:
        """No block held, nothing running, nothing waiting."""
        self.probed.at_rest(within)

    def close(self) -> None:
        """Ends its connections."""
        self.http.close()
        self.probed.close()


class Served(Client):
    """A server in a thread of the test, whose service can be looked into."""

    def __init__(self, service: ModelService, port: int, key: str | None = None) -> None:
        self.service = service
        self.vocab_size = service.model.limits.vocab_size
        super().__init__(f"http://127.0.0.1:{port}", key)


class Live(Served):
    """One of the scripted model."""

    def __init__(
        self, service: ModelService, runner: ScriptedRunner, port: int, key: str | None = None
    ) -> None:
        self.runner = runner
        with runner.saying(b"ok"):
            super().__init__(service, port, key)

    def probe(self) -> None:
        """PROBE. Work of clients that left must end by itself, so the script changes only then."""
        self.at_rest()
        with self.runner.saying(b"ok"):
            super().probe()


@contextlib.contextmanager
def running(
    service: ModelService,
    limits: TimeLimits | None = None,
    access: Access | None = None,
    others: Sequence[ModelService] = (),
) -> Iterator[int]:
    """Runs a server for `service` in a thread, and for others beside it; gives its port."""
    limits = limits or TimeLimits()
    for one in (service, *others):
        one.request_seconds = limits.request
    app = create_app(ServiceRouter([service, *others]), Lifecycle(limits), access)
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(ServerConfig(app, limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
        assert not service.worker.alive


@contextlib.contextmanager
def probed(service: ModelService, limits: TimeLimits | None = None) -> Iterator[Served]:
    """A server for `service`; PROBE before and after."""
    with running(service, limits) as port, contextlib.closing(Served(service, port)) as client:
        yield client
        client.probe()


@contextlib.contextmanager
def serving(
    runner: ScriptedRunner,
    service: ModelService | None = None,
    limits: TimeLimits | None = None,
    access: Access | None = None,
    key: str | None = None,
    others: Sequence[ModelService] = (),
) -> Iterator[Live]:
    """Runs a server for the scripted model; PROBE before and after. key: what its client sends.
    others: models beside it.
    """
    service = service or scripted_service(runner)
    with (
        running(service, limits, access, others) as port,
        contextlib.closing(Live(service, runner, port, key)) as live,
    ):
        yield live
        live.probe()
    assert runner.closed


def events_of(body: str) -> list[Any]:
    """The JSON of each event, with "[DONE]" as a string."""
    found = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
    return [
        text if text == "[DONE]" else json.loads(text, parse_constant=_refuse) for text in found
    ]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def said(answer: httpx.Response) -> tuple[str, str | None, int | None]:
    """Text, finish_reason and completion_tokens of the first choice, streamed or not, chat or
    plain.
    """
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        body = json.loads(answer.text, parse_constant=_refuse)
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return text, choice["finish_reason"], body["usage"]["completion_tokens"]
    text, finish, usage = "", None, None
    for event in events_of(answer.text)[:-1]:
        for choice in event["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            assert not (piece and finish), "text after the end"
            text += piece
            finish = choice["finish_reason"] or finish
        if event.get("usage"):
            usage = event["usage"]["completion_tokens"]
    return text, finish, usage


def refused(
    live: Client, path: str, raw: str | bytes, param: str | None = None
) -> dict[str, object]:
    """Posts, asserts a 400 with an OpenAI error object (about `param`), returns the error."""
    answer = live.post(path, raw if isinstance(raw, bytes) else raw.encode())
    assert answer.status_code == 400, answer.text
    error: dict[str, object] = json.loads(answer.content.decode("utf-8"))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param:
        assert error["param"] == param, error
    return error


def wait_for(true: Callable[[], bool], within: float = 5.0) -> None:
    """Waits until `true()`; fails when it takes too long."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.005)


def drive(engine: InferenceEngine, packets: list[RequestPacket]) -> dict[int, list[Delta]]:
    """Runs until nothing is open; every message goes through MessagePack, as between processes.
    Records are left out: they hold times, and no two runs take the same.
    """
    wire = msgspec.msgpack.encode(Orders(submit=packets))
    heard: dict[int, list[Delta]] = {p.ticket: [] for p in packets}
    deltas = engine.obey(msgspec.msgpack.decode(wire, type=Orders))
    for _ in range(1000):
        wire = msgspec.msgpack.encode(StepReport(engine.stats(), deltas))
        for delta in msgspec.msgpack.decode(wire, type=StepReport).deltas:
            heard[delta.ticket].append(msgspec.structs.replace(delta, record=None))
        engine.scheduler.check_integrity()
        if engine.idle:
            break
        deltas = engine.step()
    assert engine.idle
    assert engine.stats().free_blocks == engine.stats().total_blocks
    return heard
