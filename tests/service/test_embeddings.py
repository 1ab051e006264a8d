"""Embeddings over HTTP: shapes, pooling, and the same bits beside anything."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from rebar.graph.sequence import Row, SamplingParams, Sequence
from rebar.service.http.waves import WAVE
from rebar.service.local import Model
from rebar.service.messages import RequestPacket
from rebar.service.request_stream import RequestStream
from tests.service.fakes import WIDTH, ScriptedRunner, failing, hidden_state
from tests.service.live import NAME, Live, refused, scripted_model, scripted_service, serving

PATH = "/v1/embeddings"


def embed(live: Live, given: object, **fields: object) -> httpx.Response:
    answer = live.http.post(PATH, json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def vectors(answer: httpx.Response) -> NDArray[np.float32]:
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return np.array([entry["embedding"] for entry in data], dtype=np.float32)


def expected(text: str, pooling: str = "mean") -> NDArray[np.float32]:
    """By the plainest formula, in float64."""
    ids = list(text.encode())
    sequence = Sequence.of(ids, len(ids), SamplingParams())
    states = np.array([hidden_state(sequence, p) for p in range(len(ids))], dtype=np.float64)
    pooled = states.mean(axis=0) if pooling == "mean" else states[-1]
    unit: NDArray[np.float32] = (pooled / np.linalg.norm(pooled)).astype(np.float32)
    return unit


LONG = "a text of more than one step of thirty-two positions, and of more than two"


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("text", ["a", "hello wörld", LONG])
def test_pooling(live: Live, text: str, pooling: str) -> None:
    (found,) = vectors(embed(live, text, pooling=pooling))
    # Mean and length in another order of float64 sums, rounded once to float32.
    assert np.abs(found - expected(text, pooling)).max() <= 2**-23
    assert abs(float(np.linalg.norm(found.astype(np.float64))) - 1) < WIDTH * 2**-24


def test_inputs_of_every_kind(live: Live) -> None:
    """Text, texts, ids, lists of ids; a mean unless it is said otherwise."""
    one = vectors(embed(live, "go"))
    assert (vectors(embed(live, ["go", LONG]))[:1] == one).all()
    assert (vectors(embed(live, [103, 111])) == one).all()
    assert (vectors(embed(live, [[103, 111], [97]]))[:1] == one).all()
    answer = embed(live, ["go", LONG], model=NAME, user="me").json()
    assert answer["object"] == "list"
    assert answer["model"] == NAME
    assert answer["data"][1]["object"] == "embedding"
    tokens = 2 + len(LONG)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_both_encodings_hold_the_same_bits(live: Live) -> None:
    numbers = vectors(embed(live, LONG, encoding_format="float"))[0]
    text = embed(live, LONG, encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tobytes() == numbers.tobytes()


def test_dimensions(live: Live) -> None:
    """The first so many numbers at length 1 again, as OpenAI's models do it."""
    whole = vectors(embed(live, LONG))[0].astype(np.float64)
    short = vectors(embed(live, LONG, dimensions=3))[0]
    assert np.abs(short - whole[:3] / np.linalg.norm(whole[:3])).max() <= 2**-23
    assert (vectors(embed(live, LONG, dimensions=WIDTH))[0] == vectors(embed(live, LONG))[0]).all()


def test_the_openai_client(live: Live) -> None:
    """It asks for base64 unless told otherwise, and gives numbers."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=NAME, input=["go", LONG], dimensions=4)
        assert [len(entry.embedding) for entry in answer.data] == [4, 4]
        floats = client.embeddings.create(model=NAME, input="go", encoding_format="float")
        mine = np.array(floats.data[0].embedding, dtype=np.float32)
        assert (mine == vectors(embed(live, "go"))[0]).all()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1.0]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [[99999]]}, "input"),
        ({"input": None}, "input"),
        ({"input": "a" * 129}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "truncate": True}, "truncate"),
    ],
)
def test_what_means_nothing_is_refused(live: Live, fields: dict[str, Any], param: str) -> None:
    error = refused(live, PATH, json.dumps(fields), param)
    if fields.get("input") == "a" * 129:
        assert error["code"] == "context_length_exceeded"


def test_the_longest_text_fits(live: Live) -> None:
    """Nothing is sampled after it, so all of the context is its own."""
    (found,) = vectors(embed(live, "a" * 128))
    assert np.abs(found - expected("a" * 128)).max() <= 2**-23


def test_control_tokens_of_a_text_are_text(live: Live) -> None:
    """A stored document must not open a turn (A-a4)."""
    assert embed(live, "<|end|>").json()["usage"]["prompt_tokens"] == len("<|end|>")


@pytest.fixture(scope="module")
def crowded() -> Iterator[Live]:
    """So little memory that choices give it up to each other; steps of 8 positions."""
    runner = ScriptedRunner(max_rows=8, kv_blocks=10)
    with serving(runner, scripted_service(runner, max_running=4)) as server:
        yield server


def test_neighbours_chunks_and_preemption_change_no_bit(crowded: Live) -> None:
    """Alone, in one request, in many at once beside requests that talk: the same bytes."""
    texts = [f"text {i} " * (1 + i % 15) for i in range(24)]
    alone = [embed(crowded, text, encoding_format="base64").json()["data"][0] for text in texts]
    together = embed(crowded, texts, encoding_format="base64").json()["data"]
    assert [e["embedding"] for e in together] == [e["embedding"] for e in alone]

    async def ask(http: httpx.AsyncClient, i: int) -> str:
        body = {"input": texts[i], "encoding_format": "base64", "pooling": "mean"}
        answer = await http.post(PATH, json=body, headers={"X-Priority": "low"})
        await http.post("/v1/completions", json={"prompt": texts[i], "max_tokens": 9})
        return str(answer.json()["data"][0]["embedding"])

    async def main() -> list[str]:
        async with httpx.AsyncClient(base_url=crowded.url, timeout=30, trust_env=False) as http:
            talk = [
                http.post("/v1/completions", json={"prompt": "x" * 60, "max_tokens": 40},
                          headers={"X-Priority": "high"})
                for _ in range(12)
            ]  # fmt: skip
            found = await asyncio.gather(*(ask(http, i) for i in range(24)), *talk)
            return [text for text in found if isinstance(text, str)]

    crowded.runner.choose = lambda s, p: 97
    before = crowded.service.stats.preemptions
    assert asyncio.run(main()) == [e["embedding"] for e in alone]
    assert crowded.service.stats.preemptions > before, "nothing was pre-empted"
    crowded.probe()


def test_many_texts_come_in_waves(live: Live) -> None:
    """More than may be open at a time; others are let in between."""
    many = [f"t{i}" for i in range(3 * WAVE + 5)]
    found = vectors(embed(live, many))
    assert len(found) == len(many)
    assert (found[-1] == vectors(embed(live, many[-1]))[0]).all()
    assert live.service.measures.finished["embedding"] >= len(many)


def test_a_request_that_was_let_in_is_not_refused_between_its_waves() -> None:
    """The second 64 texts of a request found the queue full of others who had come meanwhile, and
    429 came back for all of it, with half of its work done. Now they wait for room.
    """
    runner = ScriptedRunner()
    runner.choose = lambda s, p: 97
    with serving(runner, scripted_service(runner, max_waiting=2 * WAVE)) as live:
        loop, streams = live.service._loop, list[RequestStream]()
        assert loop is not None

        def crowd(rows: list[Row]) -> None:
            """While the first wave runs, others fill the queue."""
            runner.before = None
            loop.call_soon_threadsafe(fill)

        def fill() -> None:
            while live.service.has_room([other]):
                streams.append(live.service.submit([other]))

        other = RequestPacket(
            ticket=0, request_id="other", trace_id="", prompt=[97] * 3,
            sampling=SamplingParams(), max_tokens=60,
        )  # fmt: skip
        runner.before = crowd
        texts = [f"t{i}" for i in range(WAVE + 3)]
        found = vectors(embed(live, texts))
        assert len(found) == len(texts)
        assert len(streams) > WAVE, "the queue was not full"
        assert not live.service.measures.refused["queue_full"]
        for stream in streams:
            loop.call_soon_threadsafe(stream.close)


def test_one_text_that_fails_fails_the_request(live: Live) -> None:
    live.runner.before = failing("the step failed")
    answer = live.http.post(PATH, json={"input": ["a", "b"]})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the step failed"


def test_in_python(live: Live) -> None:
    model = scripted_model(ScriptedRunner())
    with Model(model.served, model.engine) as local:
        assert (local.embed("go") == vectors(embed(live, "go"))[0]).all()
        pair = local.embed(["go", LONG], pooling="last", dimensions=5)
        assert pair.shape == (2, 5)
        assert (pair == vectors(embed(live, ["go", LONG], pooling="last", dimensions=5))).all()
