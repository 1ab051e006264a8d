"""Cases about arithmetic, over HTTP: a small random model, float32 weights, PROBE after each.
Equality is `==` on texts and log probabilities.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from tests.service.live import Served, events_of, probed, said
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny"))


@contextlib.contextmanager
def tiny_server(path: Path, *, blocks: int = 256, max_rows: int = 64) -> Iterator[Served]:
    options = RunnerOptions(threads=1, max_rows=max_rows, kv_tokens=16 * blocks)
    model = load_model(open_model(path), options, name="m", max_running=16)
    service = ModelService.in_thread(model.served, model.engine)
    with probed(service) as server:
        yield server


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[Served]:
    with tiny_server(path) as server:
        yield server


@pytest.fixture
def tiny(shared: Served) -> Iterator[Served]:
    yield shared
    shared.probe()


def together(server: Served, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """All at once, each answered."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.complete(**body), bodies))


def whole(answer: httpx.Response) -> tuple[object, ...]:
    """Everything of the first choice, and what it cost."""
    body = answer.json()
    (choice, *_), usage = body["choices"], body["usage"]
    return choice["text"], choice["finish_reason"], choice["logprobs"], usage["completion_tokens"]


def numbers_of(answer: httpx.Response) -> list[float | None]:
    """Every log probability of an answer or a stream, read by a parser that knows JSON only."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert answer.status_code == 200, answer.text
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    bodies = events_of(answer.text)[:-1] if streamed else []
    found: list[float | None] = []
    for body in bodies or [json.loads(answer.text, parse_constant=refuse)]:
        for choice in body["choices"]:
            scores = choice["logprobs"] or {}
            found += scores.get("token_logprobs") or []
            found += [v for top in scores.get("top_logprobs") or [] for v in (top or {}).values()]
            for token in scores.get("content") or []:
                found += [token["logprob"], *(top["logprob"] for top in token["top_logprobs"])]
    return found


ECHO = {"prompt": "correct horse", "echo": True, "logprobs": 5, "temperature": 1, "top_k": 1}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more",
    [{}, {"logit_bias": {"5": -100}}, {"response_format": FORM, "echo": False, "max_tokens": 20}],
)
def test_log_probabilities_are_numbers(tiny: Served, stream: bool, more: dict[str, Any]) -> None:
    """A-b4: a masked token has -inf, which strict encoders refuse and lax ones write as no JSON."""
    echo = more.get("echo", True)
    found = numbers_of(tiny.complete(**{**ECHO, "max_tokens": 2, "stream": stream, **more}))
    assert found.count(None) == (1 if echo else 0)
    assert (found[0] is None) == echo, "nothing comes before the first token of a prompt"
    assert all(value is None or (math.isfinite(value) and value <= 0) for value in found)
    chat = {key: value for key, value in more.items() if key not in ("echo", "max_tokens")}
    answer = tiny.chat(logprobs=True, top_logprobs=20, max_tokens=9, top_k=1, stream=stream, **chat)
    scores = numbers_of(answer)
    assert len(scores) > 20
    assert all(value is not None and math.isfinite(value) for value in scores)


def test_neighbours_and_order_do_not_reach_a_seeded_answer(tiny: Served) -> None:
    """A-b5: one generator for the batch made a seeded answer depend on who arrived before."""
    asked = {"prompt": "hello", "seed": 7, "temperature": 0.8, "max_tokens": 16, "logprobs": 2}
    alone = whole(tiny.complete(**asked))
    others = [{**asked, "prompt": "the " * i, "seed": i} for i in range(1, 8)]
    for turn in range(5):
        batch = [asked, *others]
        random.Random(turn).shuffle(batch)
        answers = together(tiny, batch)
        assert whole(answers[batch.index(asked)]) == alone
    assert [whole(answer) for answer in together(tiny, [asked, asked])] == [alone, alone]
    several = [tiny.complete(**asked, n=3).json()["choices"] for _ in range(2)]
    texts = [[choice["text"] for choice in choices] for choices in several]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    assert texts[0][0] == alone[0], "the first choice has the seed itself"


@pytest.mark.parametrize("temperature", [0, 1e-7, 1e-4, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 1e-9, 1e-4])
def test_tiny_temperatures_beside_a_normal_request(
    tiny: Served, temperature: float, top_p: float
) -> None:
    """A-b8: logits / T overflowed, softmax gave NaN, the sampler raised and the loop died."""
    base = {"prompt": "hello", "max_tokens": 12, "logprobs": 1}
    normal = {**base, "prompt": "what is", "seed": 3, "temperature": 0.9}
    ids = tiny.http.post("/tokenize", json={"prompt": tiny.complete(
        **{**base, "temperature": 0, "max_tokens": 1}
    ).json()["choices"][0]["text"]}).json()["tokens"]  # fmt: skip
    alone = whole(tiny.complete(**normal))
    for bias in ({}, {str(ids[0]): -100}):
        greedy = whole(tiny.complete(**base, temperature=0, logit_bias=bias))
        odd = {**base, "temperature": temperature, "top_p": top_p, "logit_bias": bias, "seed": 5}
        answers = [whole(answer) for answer in together(tiny, [odd, normal])]
        assert answers == [greedy, alone]
    hot = {**base, "temperature": 1.5, "top_p": 1e-9, "seed": 9}
    assert whole(tiny.complete(**hot)) == whole(tiny.complete(**base, temperature=0))


def test_pre_emption_changes_no_answer(path: Path) -> None:
    """A-e1: after it, output was appended twice, or only the prompt was computed again.

    Answers take 10 ms, and on a busy machine requests may come further apart: as many rounds are
    made as it takes until somebody gives way.
    """
    asked: list[dict[str, Any]] = [
        {"prompt": [40 + 7 * i + j for j in range(20)], "max_tokens": 60, "temperature": 0,
         "logprobs": 2, "ignore_eos": True}
        for i in range(4)
    ]  # fmt: skip
    streamed = [{**body, "stream": True} for body in asked]
    with tiny_server(path, blocks=64) as roomy:
        alone = [whole(roomy.complete(**body)) for body in asked]
        assert roomy.service.stats.preemptions == 0
    assert [(answer[1], answer[3]) for answer in alone] == [("length", 60)] * 4
    with tiny_server(path, blocks=12) as narrow:
        for body in (asked, streamed) * 20:
            given = together(narrow, body)
            if body is asked:
                assert [whole(answer) for answer in given] == alone
            else:
                assert [said(answer)[:2] for answer in given] == [a[:2] for a in alone]
            if body is streamed and narrow.service.stats.preemptions:
                break
        assert narrow.service.stats.preemptions > 0, "void: nobody gave way"


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
def test_a_prompt_that_is_known_whole(tiny: Served, length: int) -> None:
    """A-e3: everything was a hit, nothing was left to compute, an assertion ended the scheduler."""
    asked = {"prompt": [50 + length] * length, "max_tokens": 5, "logprobs": 1, "seed": 1}
    first = tiny.complete(**asked)
    later = [tiny.complete(**asked), *together(tiny, [asked, asked])]
    assert {str(whole(answer)) for answer in later} == {str(whole(first))}
    for answer in later:
        details = answer.json()["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == (length - 1) // 16 * 16


def test_batch_chunks_and_cache_change_no_bit(path: Path) -> None:
    """A-e5: other kernels for other batch sizes, and for cached prompts, gave other answers."""
    asked: dict[str, Any] = {
        "prompt": list(range(40, 100)),
        "max_tokens": 20,
        "logprobs": 3,
        "temperature": 0,
    }
    answers = set()
    for max_rows in (512, 16):
        with tiny_server(path, max_rows=max_rows) as server:
            answers.add(str(whole(server.complete(**asked))))
            again = server.complete(**asked)
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
            answers.add(str(whole(again)))
            answers |= {str(whole(answer)) for answer in together(server, [asked] * 8)}
            fresh = {**asked, "prompt": [39, *asked["prompt"]]}
            for answer in together(server, [{**asked, "seed": i} for i in range(4)] + [fresh] * 4):
                if answer.json()["usage"]["prompt_tokens"] == 60:
                    answers.add(str(whole(answer)))
    assert len(answers) == 1
