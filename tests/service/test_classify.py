"""Images over HTTP: answers, what is refused, and the same bits beside anything."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from rebar.graph.classifier import ClassifierOptions, load_classifier
from rebar.graph.models.image_config import ConvNetConfig
from rebar.graph.weights.classifier import open_classifier
from rebar.service.classify_request import MAX_IMAGES, MAX_VALUES, classify_job
from rebar.service.http import classify
from rebar.service.http.off_loop import INLINE_BYTES
from tests.service.classifying import (
    ScriptedImages,
    classifier_service,
    classifying,
    scripted_images,
)
from tests.service.fakes import ScriptedRunner
from tests.service.live import Client, refused, serving, wait_for
from tests.service.rebar_process import serving_process
from tests.tiny.classifier import LABELS, tiny_classifier
from tests.tiny.png import gray_png, header, png

U8 = NDArray[np.uint8]
RANDOM = np.random.default_rng(11)


def images(count: int) -> U8:
    return RANDOM.integers(0, 256, (count, 4, 4), dtype=np.uint8)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ask(client: Client, given: list[Any], **fields: Any) -> httpx.Response:
    return client.http.post("/v1/classify", json={"images": given, **fields})


def said(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_classifier(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def running_shapes(path: Path) -> Iterator[Client]:
    with classifying(classifier_service(path)) as client:
        yield client


@pytest.fixture
def shapes(running_shapes: Client) -> Iterator[Client]:
    yield running_shapes
    running_shapes.probe()


def test_labels_and_probabilities_are_those_of_the_network(shapes: Client, path: Path) -> None:
    """Beside the classifier itself, whose logits are turned into shares in float64."""
    given = images(5)
    net = load_classifier(open_classifier(path), ClassifierOptions(threads=1, memory=64 << 20))
    wide = given.reshape(5, -1).astype(np.float32)
    pixels = wide * np.float32(2 / 255) + np.float32(-1)
    logits = net.classify(pixels).astype(np.float64)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    net.close()
    answer = ask(shapes, [encoded(gray_png(image)) for image in given], top_k=3)
    assert answer.json()["model"] == "shapes"
    for i, found in enumerate(said(answer)):
        assert (found["index"], found["object"]) == (i, "classification")
        assert {t["label"]: t["probability"] for t in found["top"]} == dict(
            zip(LABELS, shares[i].tolist(), strict=True)
        )
        order = [t["probability"] for t in found["top"]]
        assert order == sorted(order, reverse=True)
        assert (found["label"], found["probability"]) == tuple(found["top"][0].values())


def test_files_urls_and_pixels_of_all_kinds_are_one_image(shapes: Client) -> None:
    image = images(1)[0]
    colours = np.repeat(image[..., None], 3, axis=-1)
    given = [
        encoded(gray_png(image)),
        "data:image/png;base64," + encoded(png(colours, 2)),
        image.tolist(),
        image[..., None].tolist(),
        colours.tolist(),
        image.astype(float).tolist(),
    ]
    found = said(ask(shapes, given))
    assert all(f["top"] == found[0]["top"] for f in found)
    assert len(found[0]["top"]) == 3  # 5 unless there are fewer


def test_the_same_bits_alone_and_in_any_company(shapes: Client) -> None:
    """Alone, all in one request, and by 8 clients at once: `==`."""
    given = [image.tolist() for image in images(100)]
    together = [f["top"] for f in said(ask(shapes, given))]
    alone = [said(ask(shapes, [image]))[0]["top"] for image in given[:20]]
    assert alone == together[:20]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda i: said(ask(shapes, given[i : i + 7])), range(0, 100, 7)))
    assert [f["top"] for part in parts for f in part] == together


BAD: dict[str, tuple[Any, str]] = {
    "no base64": ("!!!", "no base64"),
    "empty": ("", "no PNG"),
    "a text": (encoded(b"hello"), "no PNG"),
    "a jpeg": (encoded(b"\xff\xd8\xff\xe0 jpeg"), "a JPEG"),
    "truncated": (encoded(gray_png(images(1)[0])[:-30]), "ends too early"),
    "damaged": (encoded(gray_png(images(1)[0]).replace(b"IDAT", b"IDAU")), "damaged"),
    "huge": (encoded(b"\x89PNG\r\n\x1a\n" + header(10**9, 10**9, 8, 0)), "10{9}"),
    "too wide": (encoded(gray_png(np.zeros((4, 5), np.uint8))), "4 rows of 5 pixels"),
    "transparent": (encoded(png(np.full((4, 4, 2), 9), 4)), "transparent"),
    "a url": ("https://example.com/a.png", "no base64"),
    "a bad url": ("data:image/png,abc", "data URL"),
    "too few rows": ([[0] * 4] * 3, "3 rows of 4 pixels"),
    "no rows": ([], "different lengths"),
    "ragged": ([[0] * 4] * 3 + [[0] * 3], "different lengths"),
    "too bright": ([[0, 0, 0, 256]] * 4, "from 0 to 255"),
    "negative": ([[0, 0, 0, -0.001]] * 4, "from 0 to 255"),
    "two channels": ([[[0, 0]] * 4] * 4, "1 or 3 channels"),
    "mixed": ([[0, 0, 0, [1]]] * 4, "1 or 3 channels"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_image_is_named_and_touches_nobody(shapes: Client, kind: str) -> None:
    """The second of three is at fault; the others are not computed."""
    wrong, why = BAD[kind]
    good = images(1)[0].tolist()
    before = shapes.probed.engines()[0]["steps"]
    error = refused(shapes, "/v1/classify", json.dumps({"images": [good, wrong, good]}), "images")
    message = str(error["message"])
    assert "`images`[1]" in message
    assert why.replace("10{9}", "1000000000") in message
    assert error["code"] == "invalid_image"
    assert shapes.probed.engines()[0]["steps"] == before


RAW = {
    "not a number": b'{"images": [[[NaN, 0, 0, 0]]]}',
    "infinite": b'{"images": [[[1e999, 0, 0, 0]]]}',
    "null": b'{"images": [[[null, 0, 0, 0]]]}',
    "a text for a pixel": b'{"images": [[["1", 0, 0, 0]]]}',
    "true for a pixel": b'{"images": [[[true, 0, 0, 0]]]}',
    "nested": b'{"images": [[[[[1]]]]]}',
    "an object": b'{"images": [{"pixels": []}]}',
    "no list": b'{"images": "abc"}',
    "none": b'{"images": []}',
    "absent": b"{}",
    "unknown": b'{"images": ["a"], "size": 3}',
    "top_k 0": b'{"images": ["a"], "top_k": 0}',
    "top_k 4": b'{"images": ["a"], "top_k": 4}',
    "many": b'{"images": [' + b",".join([b'"a"'] * (MAX_IMAGES + 1)) + b"]}",
}


@pytest.mark.parametrize("kind", RAW)
def test_bodies_that_are_none(shapes: Client, kind: str) -> None:
    refused(shapes, "/v1/classify", RAW[kind])


def test_a_body_that_is_too_large_is_refused(shapes: Client) -> None:
    assert ask(shapes, ["A" * (5 << 20)]).status_code == 413


def test_few_bytes_of_large_pictures_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A black picture of 64 x 128 is a hundred bytes, one of 1024 x 1024 in colours four thousand.
    By these a request was judged, unpacked in the loop that all clients share, and let in: 1,024
    such pictures in 4 MB were 12 GB, and half an hour of a lock.
    """
    threads: list[str] = []

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return classify_job(*given)

    monkeypatch.setattr(classify, "classify_job", noted)
    most = MAX_VALUES // (64 * 128)
    config = ConvNetConfig(64, 128, 1, LABELS)
    image = encoded(gray_png(np.zeros((64, 128), np.uint8)))
    with classifying(scripted_images(ScriptedImages(), max_waiting=999, config=config)) as client:
        answer = ask(client, [image] * 8)
        assert len(answer.request.content) < INLINE_BYTES
        said(answer)
        assert threads[-1].startswith("rebar-text")
        said(ask(client, [image] * (most)))
        refusal = ask(client, [image] * (most + 1))
        assert refusal.status_code == 400
        assert f"Send 1 to {most} of this model's size" in refusal.text


def test_each_kind_of_model_has_its_paths(path: Path) -> None:
    """A classifier and a language model in one server: each answers its own, and nobody else's."""
    with serving(ScriptedRunner(), others=[classifier_service(path)]) as live:
        image = [[0] * 4] * 4
        with live.runner.saying(b"ok"):
            assert said(ask(live, [image]))[0]["label"] in LABELS
            assert live.chat(max_tokens=4).json()["choices"][0]["message"]["content"] == "ok"
            for route, body in (
                ("/v1/classify", {"images": [image], "model": live.service.model.name}),
                ("/v1/chat/completions", {"messages": [], "model": "shapes"}),
                ("/v1/completions", {"prompt": "a", "model": "shapes"}),
                ("/v1/embeddings", {"input": "a", "model": "shapes"}),
                ("/tokenize", {"prompt": "a", "model": "shapes"}),
                ("/detokenize", {"tokens": [1], "model": "shapes"}),
            ):
                error = refused(live, route, json.dumps(body), "model")
                assert error["code"] == "wrong_model_kind", route
        listed = [m["id"] for m in live.http.get("/v1/models").json()["data"]]
        assert listed == [live.service.model.name, "shapes"]
        assert live.http.get("/v1/models/shapes").json()["id"] == "shapes"
        assert len(live.http.get("/health").json()["engines"]) == 2
        live.runner.reset()


def test_a_killed_engine_loses_nothing(path: Path, tmp_path: Path) -> None:
    """`kill -9` of four engines under load: every answer comes, with the bits of a quiet server."""
    given, kills = [image.tolist() for image in images(60)], 4
    with serving_process(path, tmp_path) as server:
        quiet = [f["top"] for f in said(ask(server, given))]
        killed: list[int] = []

        def kill() -> None:
            while len(killed) < kills:
                pid = server.probed.engines()[0]["pid"]
                if pid is not None and pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                time.sleep(0.05)

        killer = threading.Thread(target=kill)
        killer.start()
        with ThreadPoolExecutor(4) as pool:
            while killer.is_alive():
                parts = list(
                    pool.map(lambda i: said(ask(server, given[i : i + 5])), range(0, 60, 5))
                )
                assert [f["top"] for part in parts for f in part] == quiet
        killer.join()
        server.at_rest()
        wait_for(lambda: bool(server.probed.engines()[0]["healthy"]), 10)
        assert server.probed.engines()[0]["restarts"] >= kills
        server.probed.workers = server.probed.pids()


def test_a_long_answer_is_written_beside_the_loop(
    shapes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was built in the event loop, where every other client waits for it."""
    where: list[str] = []
    written = classify.answer_of

    def watched(*arguments: Any) -> bytes:
        where.append(threading.current_thread().name)
        return written(*arguments)

    monkeypatch.setattr(classify, "answer_of", watched)
    for count in (2, MAX_IMAGES):
        given = [encoded(gray_png(image)) for image in images(count)]
        assert len(said(ask(shapes, given))) == count
    assert [name.startswith("rebar-text") for name in where] == [False, True]
