"""The service over real arithmetic: small random models of every family, and SmolLM2.

Equality is `==` on ids, texts and log probabilities: the bits of an answer depend on nothing but
its own request.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import openai
import pytest

import rebar
from rebar.errors import CorruptFileError, ModelFileError
from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.loading import load_model
from rebar.service.local import Model
from rebar.service.messages import Delta, RequestPacket
from rebar.service.model import LoadedModel
from rebar.service.router import ModelService
from rebar.service.validator import Caller, Validator
from rebar.service.wire import CompletionBody
from tests.service.live import drive, probed
from tests.tiny.model import tiny_gguf

FAMILIES = ("llama", "qwen2", "gemma3")
SMALL = RunnerOptions(threads=2, max_rows=64, kv_tokens=4096)


def loaded(path: Path, options: RunnerOptions = SMALL) -> LoadedModel:
    return load_model(open_model(path), options, name="m")


@pytest.fixture(scope="module", params=FAMILIES)
def tiny_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny"), request.param)


def packets(model: LoadedModel, count: int, longest: int) -> list[RequestPacket]:
    """Requests of many lengths, greedy and sampled, scored and not."""
    validator = Validator(model.served)
    draw = random.Random(5)
    made = []
    for i in range(1, count + 1):
        body = CompletionBody(
            prompt="hello what is this the fox " * draw.randint(1, longest) + str(i),
            max_tokens=draw.randint(1, 24),
            temperature=draw.choice([0.0, 0.7, 1.3]),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.2]),
            logprobs=draw.choice([None, 3]),
            echo=draw.choice([None, True]),
            seed=i,
            ignore_eos=True,
        )
        packet = validator.completion(body, Caller("r", "t")).packets[0]
        made.append(msgspec.structs.replace(packet, ticket=i))
    return made


def whole(deltas: list[Delta]) -> tuple[object, ...]:
    """All that a choice said, however it was cut into steps."""
    scores = [score for delta in deltas for score in delta.scores]
    prompt = [score for delta in deltas for score in delta.prompt_scores]
    text = "".join(delta.text for delta in deltas)
    return text, [i for d in deltas for i in d.ids], scores, prompt, deltas[-1].finish


def answers(model: LoadedModel, asked: list[RequestPacket]) -> dict[int, tuple[object, ...]]:
    return {ticket: whole(deltas) for ticket, deltas in drive(model.engine, asked).items()}


def test_neighbours_chunks_and_threads_change_no_bit(tiny_path: Path) -> None:
    """A-b5, A-e5: alone = among 32 others in any order, in any chunks, with 1 or 2 threads."""
    model = loaded(tiny_path)
    asked = packets(model, 33, 2)
    alone = {p.ticket: whole(drive(model.engine, [p])[p.ticket]) for p in asked}
    model.engine.close()
    for threads, max_rows in ((2, 33), (1, 512), (2, 40)):
        model = loaded(tiny_path, replace(SMALL, threads=threads, max_rows=max_rows))
        random.Random(max_rows).shuffle(asked)
        assert answers(model, asked) == alone
        model.engine.close()


def test_a_tokenizer_larger_than_its_embedding_is_refused(tmp_path: Path) -> None:
    """An id without a row would be read from beyond the embedding."""
    file = open_model(tiny_gguf(tmp_path))
    with pytest.raises(CorruptFileError, match="rows"):
        load_model(replace(file, config=replace(file.config, vocab_size=300)), SMALL, name="m")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = loaded(tiny_gguf(tmp_path_factory.mktemp("tiny")))
    with Model(made.served, made.engine) as model:
        yield model


def hostile(sound: bytes) -> dict[str, bytes]:
    """Files that no reader may trust: cut anywhere, counts of terabytes, another byte order."""
    return {
        "cut in the header": sound[:100],
        "cut in the weights": sound[: len(sound) // 2],
        "endless counts": sound[:8] + b"\xff" * 16 + sound[24:],
        "big-endian": sound[:4] + sound[4:8][::-1] + sound[8:],
        "nothing": b"",
        "not a model": b"GGUF" + bytes(4096),
    }


def test_a_hostile_file_leaves_the_model_that_serves_alone(tiny: Model, tmp_path: Path) -> None:
    """A-f1: the old model goes on serving, with the same bits, while a load fails beside it."""
    before = tiny.generate("hello", max_tokens=8, temperature=0.9, seed=4)
    for name, data in hostile(tiny_gguf(tmp_path).read_bytes()).items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            rebar.load(path, cache=str(tmp_path / "cache"))
        assert tiny.generate("hello", max_tokens=8, temperature=0.9, seed=4) == before, name


@pytest.mark.parametrize("temperature", [0, 1e-7, 1e-4, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 1e-9, 1e-4])
def test_tiny_temperatures_are_greedy(tiny: Model, temperature: float, top_p: float) -> None:
    """A-b8: logits / T overflowed, softmax gave NaN, the sampler raised and the loop died."""
    greedy = tiny.generate("hello", temperature=0, max_tokens=8)
    said = tiny.generate("hello", temperature=temperature, top_p=top_p, max_tokens=8, seed=3)
    assert said.ids == greedy.ids
    banned = tiny.generate(
        "hello", temperature=temperature, top_p=top_p, max_tokens=8,
        logit_bias={str(greedy.ids[0]): -100},
    )  # fmt: skip
    assert banned.ids[0] != greedy.ids[0]


def test_tiny_top_p_alone_is_greedy_and_disturbs_nobody(tiny: Model) -> None:
    greedy = tiny.generate("hello", temperature=0, max_tokens=8)
    assert tiny.generate("hello", temperature=1.5, top_p=1e-9, max_tokens=8).ids == greedy.ids


def test_a_seed_decides_and_choices_differ(tiny: Model) -> None:
    first = [tiny.generate("hello", seed=7, temperature=1.0, max_tokens=16) for _ in range(2)]
    assert first[0].ids == first[1].ids
    assert tiny.generate("hello", seed=8, temperature=1.0, max_tokens=16).ids != first[0].ids
    assert len({str(tiny.generate("hello", max_tokens=16)) for _ in range(4)}) > 1, (
        "no seed: random"
    )


SEVERAL = {"prompt": "hello", "n": 3, "seed": 7, "max_tokens": 16}


def strict(text: str) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_over_http(tmp_path: Path) -> None:
    """Log probabilities are finite JSON numbers (A-b4), seeds repeat (A-b5)."""
    model = loaded(tiny_gguf(tmp_path))
    service = ModelService.in_thread(model.served, model.engine)
    with probed(service) as client:

        def post(path: str, **body: object) -> httpx.Response:
            answer = client.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            strict(answer.text)
            return answer

        scored = post(
            "/v1/completions",
            prompt="correct horse",
            echo=True,
            logprobs=5,
            top_k=1,
            max_tokens=2,
            logit_bias={"5": -100},
        )
        logprobs = scored.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert logprobs[0] is None
        assert all(math.isfinite(value) and value <= 0 for value in logprobs[1:])

        several = [
            [choice["text"] for choice in post("/v1/completions", **SEVERAL).json()["choices"]]
            for _ in range(2)
        ]
        assert several[0] == several[1]
        assert len(set(several[0])) > 1

        chat = [{"role": "user", "content": "hello"}]
        long = post("/v1/chat/completions", messages=chat, max_tokens=200_000, ignore_eos=True)
        assert long.json()["usage"]["total_tokens"] == 128, "the context of the model"


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> ModelService:
    model = loaded(smollm2_path, RunnerOptions(max_context=512, kv_tokens=8192, max_rows=128))
    return ModelService.in_thread(model.served, model.engine)


def test_smollm2_with_the_openai_client(smollm2: ModelService) -> None:
    """A-a7: The main job: a real model answers the official client, alone or together."""

    async def main(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            plain = await client.completions.create(
                model="m", prompt="The capital of France is", temperature=0, max_tokens=2
            )
            assert plain.choices[0].text == " Paris."
            alone = [await ask(client, i) for i in range(8)]
            assert await asyncio.gather(*(ask(client, i) for i in range(8))) == alone
            await embeddings_of(client)

    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        messages = [{"role": "user", "content": f"Count from {i} upwards." + " Please." * 5 * i}]
        fixed = {
            "model": "m",
            "messages": messages,
            "max_tokens": 12,
            "temperature": 0.8,
            "seed": i,
        }
        if i % 2:
            answer = await client.chat.completions.create(**fixed)  # type: ignore[call-overload]
            return str(answer.choices[0].message.content)
        text = ""
        stream = await client.chat.completions.create(stream=True, **fixed)  # type: ignore[call-overload]
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    with probed(smollm2) as live:
        asyncio.run(main(f"{live.url}/v1"))
        long_text_holds_nobody_up(live.url)


async def embeddings_of(client: openai.AsyncOpenAI) -> None:
    """Sentences about one thing lie nearer than others; alone or together the bits are the same."""
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten is lying on the couch.",
        "Interest rates were raised by the central bank.",
    ]
    together = await client.embeddings.create(model="m", input=texts)
    found = [entry.embedding for entry in together.data]
    alone = [(await client.embeddings.create(model="m", input=text)).data[0] for text in texts]
    assert [entry.embedding for entry in alone] == found
    assert [len(vector) for vector in found] == [576] * 3

    def likeness(a: list[float], b: list[float]) -> float:
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    assert likeness(found[0], found[1]) > likeness(found[0], found[2])
    assert likeness(found[0], found[1]) > likeness(found[1], found[2])


def long_text_holds_nobody_up(url: str) -> None:
    """A-a7: one huge "word" blocked the process; here /health is answered all the while."""
    done = threading.Event()
    latencies = []

    def watch() -> None:
        with httpx.Client(trust_env=False) as http:
            while not done.is_set():
                begin = time.monotonic()
                assert http.get(f"{url}/health").status_code == 200
                latencies.append(time.monotonic() - begin)
                done.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for text in ("a" * 200_000, " " * 200_000, "\n" * 200_000, "é" * 100_000):
            body = {"messages": [{"role": "user", "content": text}]}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
    finally:
        done.set()
        watcher.join()
    assert max(latencies) < 0.5
