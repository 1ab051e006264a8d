"""Adapters over HTTP: by name, beside each other, loaded and unloaded while others are served."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rebar.graph import Row, Sampled
from rebar.service.engine import InferenceEngine
from rebar.service.http.access import Access
from rebar.service.http.keys import ApiKeys, NamedKey
from rebar.service.worker import EngineWorker
from tests.service.adapted import (
    ASKED,
    CONFIG,
    LOAD,
    ROOM,
    UNLOAD,
    adapted,
    choice,
    load,
    make_folder,
    post,
    service_of,
)
from tests.service.live import Live, Served, running, wait_for
from tests.service.rebar_process import resident_bytes
from tests.tiny.adapter import tiny_adapter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("adapters"))


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[Served]:
    """With pirate and poet, and room for one more."""
    with adapted(folder, tmp_path, "pirate", "poet") as served:
        yield served


def test_a_request_names_its_adapter(server: Served, folder: Path, tmp_path: Path) -> None:
    """And the base without one answers as a server that knows no adapters."""
    answers = {name: server.complete(model=name, **ASKED) for name in ("m", "pirate", "poet")}
    assert [a.json()["model"] for a in answers.values()] == list(answers)
    said = {name: choice(a) for name, a in answers.items()}
    assert len({str(c) for c in said.values()}) == 3
    plain = dataclasses.replace(ROOM, max_adapters=0)
    with adapted(folder, tmp_path, options=plain) as bare:
        assert choice(bare.complete(**ASKED)) == said["m"]
        assert choice(bare.complete(model="m", **ASKED)) == said["m"]
        assert bare.complete(model="pirate", **ASKED).status_code == 404


def test_all_at_once_equal_each_alone(server: Served, folder: Path) -> None:
    """A-j4 and more: hot loaded, in one batch with others and the base, again and again."""
    assert load(server, "sage", folder).status_code == 200
    names = ["m", "pirate", "poet", "sage"]
    alone = {name: choice(server.complete(model=name, **ASKED)) for name in names}
    with ThreadPoolExecutor(16) as pool:
        asked = [names[i % 4] for i in range(32)]
        answers = list(pool.map(lambda name: server.complete(model=name, **ASKED), asked))
    assert [choice(a) for a in answers] == [alone[name] for name in asked]


def test_records_and_log_name_the_adapter(
    server: Served, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They named the base for every request, and of a load and an unload nothing but the route:
    whoever asks which adapter was slow, or who took one away, found no answer.
    """
    with caplog.at_level(logging.INFO, "rebar.service"):
        for name in ("pirate", "m"):
            id_ = server.complete(model=name, **ASKED).headers["x-request-id"]
            assert server.http.get(f"/v1/requests/{id_}").json()["model"] == name
            id_ = post(server, "/v1/embeddings", model=name, input="hi").headers["x-request-id"]
            assert server.http.get(f"/v1/requests/{id_}").json()["model"] == name
        assert load(server, "sage", folder).status_code == 200
        assert post(server, UNLOAD, lora_name="sage").status_code == 200
        expected = {
            ("/v1/completions", "model=pirate"),
            ("/v1/completions", "model=m"),
            ("/v1/embeddings", "model=pirate"),
            (LOAD, "adapter=sage"),
            (UNLOAD, "adapter=sage open=0"),
        }
        deadline = time.monotonic() + 10  # a line is written when its answer has been sent
        while expected and time.monotonic() < deadline:
            lines = [record.getMessage() for record in caplog.records]
            expected -= {
                (route, note)
                for route, note in expected
                if any(route in line and f" {note}" in line for line in lines)
            }
            time.sleep(0.01)
        assert expected == set()


def test_every_api_takes_the_name(server: Served) -> None:
    chat = server.chat(model="pirate", max_tokens=4, temperature=0)
    assert (chat.status_code, chat.json()["model"]) == (200, "pirate")
    base = server.chat(max_tokens=4, temperature=0)
    assert choice(chat)["message"] != choice(base)["message"]
    answer = post(server, "/v1/responses", model="pirate", input="hi", max_output_tokens=4)
    assert (answer.status_code, answer.json()["model"]) == (200, "pirate")
    messages = [{"role": "user", "content": "hi"}]
    answer = post(server, "/v1/messages", model="pirate", messages=messages, max_tokens=4)
    assert (answer.status_code, answer.json()["model"]) == (200, "pirate")
    count = post(server, "/v1/messages/count_tokens", model="pirate", messages=messages)
    assert count.status_code == 200
    vectors = [post(server, "/v1/embeddings", model=m, input="hi").json() for m in ("m", "pirate")]
    assert vectors[1]["model"] == "pirate"
    assert vectors[0]["data"][0]["embedding"] != vectors[1]["data"][0]["embedding"]
    assert post(server, "/tokenize", model="pirate", prompt="hi").status_code == 200
    assert post(server, "/detokenize", model="pirate", tokens=[5]).status_code == 200
    streamed = server.complete(model="pirate", stream=True, **ASKED)
    assert '"model":"pirate"' in streamed.text


def test_the_list_says_what_there_is(server: Served, folder: Path) -> None:
    listed = server.http.get("/v1/models").json()["data"]
    assert [(m["id"], m.get("parent")) for m in listed] == [
        ("m", None), ("pirate", "m"), ("poet", "m")
    ]  # fmt: skip
    one = server.http.get("/v1/models/poet").json()
    assert (one["id"], one["parent"], one["max_model_len"]) == ("poet", "m", 128)
    answer = load(server, "sage", folder)
    assert answer.json() == server.http.get("/v1/models/sage").json()
    answer = post(server, UNLOAD, lora_name="poet")
    assert answer.json() == {"id": "poet", "object": "model", "deleted": True, "open": 0}
    listed = server.http.get("/v1/models").json()["data"]
    assert [m["id"] for m in listed] == ["m", "pirate", "sage"]
    assert server.http.get("/v1/models/poet").status_code == 404
    assert server.complete(model="poet", **ASKED).json()["error"]["code"] == "model_not_found"


def test_one_in_use_leaves_when_its_last_stream_ends(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unloaded in the middle of its answer: that is what it would have been; another one takes its
    slot only then.
    """
    one = dataclasses.replace(ROOM, max_adapters=1)
    asked = {**ASKED, "max_tokens": 90, "ignore_eos": True, "model": "pirate"}
    with adapted(folder, tmp_path, "pirate", options=one) as server:
        whole = choice(server.complete(**asked))
        worker = server.service.worker
        assert isinstance(worker, EngineWorker)
        engine = worker.engine
        assert isinstance(engine, InferenceEngine)
        step = engine.runner.step

        def slowly(rows: list[Row]) -> list[list[Sampled]]:
            time.sleep(0.01)
            return step(rows)

        monkeypatch.setattr(engine.runner, "step", slowly)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.complete, **asked)
            wait_for(lambda: server.service.stats.running == 1)
            gone = post(server, UNLOAD, lora_name="pirate")
            assert (gone.status_code, gone.json()["open"]) == (202, 1)
            assert server.complete(**asked).status_code == 404
            assert load(server, "poet", folder).json()["error"]["code"] == "adapters_full"
            assert choice(answer.result()) == whole
        wait_for(lambda: server.service.stats.adapters == 0)
        assert load(server, "poet", folder).status_code == 200
        assert choice(server.complete(**{**asked, "model": "poet"})) != whole


def test_loading_and_unloading_under_streams_harms_nobody(server: Served, folder: Path) -> None:
    """A-l4: loading during generation crashed a server, and what followed an unload found no room.
    (The model itself cannot be exchanged while serving yet.)
    """
    asked = {**ASKED, "max_tokens": 60, "ignore_eos": True}
    names = ["m", "pirate", "poet"]
    alone = {name: choice(server.complete(model=name, **asked)) for name in names}
    stop = threading.Event()
    held: list[int] = []

    def churn() -> None:
        while not stop.is_set() or len(held) < 50:
            assert load(server, "sage", folder).status_code == 200
            assert server.complete(model="sage", **{**ASKED, "max_tokens": 2}).status_code == 200
            assert post(server, UNLOAD, lora_name="sage").status_code == 200
            held.append(resident_bytes())

    with ThreadPoolExecutor(9) as pool:
        churning = pool.submit(churn)
        picked = [names[i % 3] for i in range(48)]
        answers = list(pool.map(lambda name: server.complete(model=name, **asked), picked))
        stop.set()
        churning.result()
    assert [choice(a) for a in answers] == [alone[name] for name in picked]
    # an adapter of a tiny model is 50 kB; one left behind each turn would be 2.5 MB of some 300
    assert held[-1] - held[9] < 0.1 * held[9]


def test_new_weights_under_an_old_name_meet_no_old_keys(
    server: Served, folder: Path, tmp_path: Path
) -> None:
    """A-e4: blocks known by an adapter's name survived a reload; the new weights answered with the
    old ones' keys. Here they are known by the weights: under another name the same are shared.
    """
    asked = {**ASKED, "prompt": list(range(40, 88)), "max_tokens": 16}
    (place := tmp_path / "t").mkdir()

    def put(weights: str) -> None:
        shutil.copytree(folder / weights, place, dirs_exist_ok=True)
        assert load(server, "t", tmp_path).status_code == 200

    def cached(answer: httpx.Response) -> int:
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    base = choice(server.complete(model="m", **asked))
    put("pirate")
    before = [server.complete(model="t", **asked) for _ in range(3)]
    assert [cached(a) for a in before] == [0, 32, 32]
    assert post(server, UNLOAD, lora_name="t").status_code == 200
    put("sage")
    after = server.complete(model="t", **asked)
    assert cached(after) == 0
    with adapted(folder, tmp_path / "fresh", "sage") as fresh:
        assert choice(after) == choice(fresh.complete(model="sage", **asked))
    assert choice(server.complete(model="m", **asked)) == base
    assert load(server, "sage", folder).status_code == 200
    again = server.complete(model="sage", **asked)
    assert (choice(again), cached(again)) == (choice(after), 32)


def test_twenty_loads_of_one_name(server: Served, folder: Path, tmp_path: Path) -> None:
    """A-l5: check, then act: two loads of one name both succeeded, and it was listed twice."""
    tiny_adapter(tmp_path / "b", CONFIG, seed=55)
    paths = [str(folder / "sage"), str(tmp_path / "b")]
    with ThreadPoolExecutor(20) as pool:
        loads = list(
            pool.map(lambda i: post(server, LOAD, lora_name="x", lora_path=paths[i % 2]), range(20))
        )
        listed = [m["id"] for m in server.http.get("/v1/models").json()["data"]]
        unloads = list(pool.map(lambda _: post(server, UNLOAD, lora_name="x"), range(20)))
    assert sorted(a.status_code for a in loads) == [200] + [409] * 19
    assert listed == ["m", "pirate", "poet", "x"]
    assert sorted(a.status_code for a in unloads) == [200] + [404] * 19
    wait_for(lambda: server.service.stats.adapters == 2)


REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"lora_name": "poet", "lora_path": "x"}, 409, None, "is taken"),
    ({"lora_name": "m", "lora_path": "x"}, 409, None, "is taken"),
    ({"lora_name": "", "lora_path": "x"}, 400, "lora_name", "1 to 128"),
    ({"lora_name": "a b", "lora_path": "x"}, 400, "lora_name", "1 to 128"),
    ({"lora_name": "new", "lora_path": ""}, 400, "lora_path", "no path"),
    ({"lora_name": "new", "lora_path": "a\0b"}, 400, "lora_path", "no path"),
    ({"lora_name": "new", "lora_path": "/nowhere/at/all"}, 400, "lora_path", "is not there"),
    ({"lora_name": "new", "lora_path": "x" * 300}, 400, "lora_path", "cannot be copied"),
    ({"lora_name": "new", "lora_path": "/dev"}, 400, "lora_path", "is not there"),
    ({"lora_name": "new"}, 400, "lora_path", ""),
    ({"lora_name": "new", "lora_path": "x", "load_inplace": True}, 400, "load_inplace", "not supp"),
    ({"lora_name": "new", "lora_path": "x", "extra": 1}, 400, "extra", ""),
    ({"lora_name": 3, "lora_path": "x"}, 400, "lora_name", ""),
]


@pytest.mark.parametrize(("body", "status", "param", "text"), REFUSED)
def test_what_cannot_be_loaded_is_refused(
    server: Served, body: dict[str, Any], status: int, param: str | None, text: str
) -> None:
    answer = post(server, LOAD, **body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert text in error["message"]


def test_folders_that_are_wrong_are_named_as_the_caller_knows_them(
    server: Served, folder: Path
) -> None:
    error = load(server, "broken", folder).json()["error"]
    assert (error["param"], error["code"]) == ("lora_path", "invalid_adapter")
    assert str(folder / "broken") in error["message"]
    assert "is missing ('nothing." in error["message"]
    error = load(server, "wide", folder).json()["error"]
    assert (error["code"], "--max-lora-rank 9" in error["message"]) == ("rank_too_large", True)
    assert load(server, "sage", folder).status_code == 200
    shutil.copytree(folder / "sage", folder / "other", dirs_exist_ok=True)
    assert load(server, "other", folder).status_code == 200, "the same content shares a slot"
    assert post(server, UNLOAD, lora_name="sage").status_code == 200
    assert choice(server.complete(model="other", **ASKED))
    tiny_adapter(folder / "fourth", CONFIG, seed=77)
    assert load(server, "fourth", folder).json()["error"]["code"] == "adapters_full"


def test_a_huge_file_is_not_copied(server: Served, folder: Path, tmp_path: Path) -> None:
    """A sparse file of a terabyte under the name of the weights must not fill the disk."""
    huge = tiny_adapter(tmp_path / "huge", CONFIG)
    with (huge / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    error = load(server, "huge", tmp_path).json()["error"]
    assert "no adapter that there is room for" in error["message"]
    assert not list((tmp_path / "adapters").glob(".adapter.*")), "a copy was left behind"


def test_unloading_what_is_not_there(server: Served) -> None:
    for name in ("ghost", "m", "", "x" * 10_000):
        answer = post(server, UNLOAD, lora_name=name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "adapter_not_found")


def test_a_page_of_another_origin_cannot_ask_for_it(server: Served, folder: Path) -> None:
    """A form or a fetch without a preflight can send text/plain to a server on localhost."""
    body = b'{"lora_name": "poet"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {"Origin": "https://evil.example"} | ({"Content-Type": kind} if kind else {})
        answer = server.http.post(UNLOAD, content=body, headers=headers)
        assert answer.status_code == 415
    assert "poet" in [m["id"] for m in server.http.get("/v1/models").json()["data"]]


def test_an_admins_key_is_needed_where_there_are_keys(folder: Path, tmp_path: Path) -> None:
    """Whoever had any key could take other tenants' adapters away, and have the server read any of
    its folders.
    """
    service = service_of(folder, tmp_path, "pirate")
    keys = ApiKeys([NamedKey("a", "sk-a"), NamedKey("a", "sk-root", admin=True)])
    with running(service, access=Access(keys=keys)) as port:
        url = f"http://127.0.0.1:{port}"
        for key, status in (("sk-b", 401), (None, 401), ("sk-a", 403), ("sk-root", 200)):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=url, trust_env=False, headers=headers) as http:
                load = http.post(LOAD, json={"lora_name": "new", "lora_path": "/nowhere"})
                unload = http.post(UNLOAD, json={"lora_name": "pirate"})
                names = [m["id"] for m in http.get("/v1/models").json().get("data", [])]
            assert unload.status_code == status
            assert load.status_code == (400 if status == 200 else status)
            if status == 403:
                assert load.json()["error"]["code"] == "admin_key_needed"
                assert names == ["m", "pirate"]


def test_a_server_without_room_says_which_flag(live: Live) -> None:
    answer = live.http.post(LOAD, json={"lora_name": "x", "lora_path": "/tmp"})
    assert answer.status_code == 400
    assert "--max-adapters" in answer.json()["error"]["message"]


def test_metrics_name_what_is_loaded(server: Served, folder: Path) -> None:
    """And nothing that clients make up (A-k2)."""
    for name in ("pirate", "pirate", "ghost"):
        server.complete(model=name, **{**ASKED, "max_tokens": 1})
    text = server.http.get("/metrics").text
    assert 'rebar_adapter_slots{model_name="m"} 3.0' in text
    assert 'rebar_adapters_loaded{model_name="m"} 2.0' in text
    assert 'rebar_adapter_choices_total{adapter="pirate",model_name="m"} 2.0' in text
    assert 'rebar_adapter_choices_open{adapter="poet",model_name="m"} 0.0' in text
    assert "ghost" not in text
    post(server, UNLOAD, lora_name="pirate")
    assert "pirate" not in server.http.get("/metrics").text
