"""A tiny model and adapters for it, served in a thread of the test; what tests ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from rebar.dataflow.adapters import AdapterStore
from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.adapter_book import AdapterBook
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from tests.service.live import Client, Served, probed
from tests.tiny import tiny_config, tiny_gguf
from tests.tiny.adapter import tiny_adapter

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
CONFIG = tiny_config()
ROOM = RunnerOptions(threads=1, max_rows=64, kv_tokens=4096, max_adapters=3, max_rank=8)
ASKED: dict[str, Any] = {
    "prompt": "the quick brown fox", "max_tokens": 24, "temperature": 0, "logprobs": 2
}  # fmt: skip


def make_folder(place: Path) -> Path:
    """A model, and adapters that change it in different ways."""
    tiny_gguf(place)
    tiny_adapter(place / "pirate", CONFIG, r=8, seed=1)
    tiny_adapter(place / "poet", CONFIG, r=4, seed=2, targets=("q_proj", "v_proj"))
    tiny_adapter(place / "sage", CONFIG, r=2, seed=3, targets=("down_proj",), kind="BF16")
    tiny_adapter(place / "wide", CONFIG, r=9)
    tiny_adapter(place / "broken", CONFIG, targets=("q_proj",), prefix="nothing.")
    return place


def service_of(
    folder: Path, cache: Path, *names: str, options: RunnerOptions = ROOM
) -> ModelService:
    model = load_model(open_model(next(folder.glob("*.gguf"))), options, name="m", max_running=16)
    room = options.room
    store = None if room is None else AdapterStore(cache, CONFIG, room)
    book = AdapterBook(store, options.max_adapters)
    for name in names:
        book.preload(name, book.take(name, folder / name), str(folder / name))
    return ModelService.in_thread(model.served, model.engine, book)


@contextlib.contextmanager
def adapted(
    folder: Path, cache: Path, *names: str, options: RunnerOptions = ROOM
) -> Iterator[Served]:
    with probed(service_of(folder, cache, *names, options=options)) as server:
        yield server


def post(server: Client, path: str, **fields: object) -> httpx.Response:
    return server.http.post(path, json=fields)


def load(server: Client, name: str, folder: Path) -> httpx.Response:
    return post(server, LOAD, lora_name=name, lora_path=str(folder / name))


def choice(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]
