"""The official OpenAI client against a real server: what people's programs will do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.service.fakes import ScriptedRunner, hashed, words
from tests.service.live import NAME, Live


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


HI: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def test_chat(live: Live, client: openai.OpenAI) -> None:
    live.runner.script = words("hello", " wörld")
    answer = client.chat.completions.create(
        model=NAME, messages=HI, max_tokens=9, logprobs=True, top_logprobs=3, seed=1, n=2
    )
    assert [choice.message.content for choice in answer.choices] == ["hello wörld"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    scores = answer.choices[1].logprobs
    assert scores is not None
    assert scores.content is not None
    assert [token.token for token in scores.content] == ["hello", " wörld"]
    assert answer._request_id


def test_chat_stream(live: Live, client: openai.OpenAI) -> None:
    live.runner.script = words("hello", " wörld")
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(text or "" for text in texts) == "hello wörld"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_completion(live: Live, client: openai.OpenAI) -> None:
    live.runner.script = words("The", " quick")
    answer = client.completions.create(model=NAME, prompt="go", echo=True, logprobs=2, max_tokens=5)
    assert answer.choices[0].text == "goThe quick"
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.text_offset == [0, 1, 2, 5]
    stream = client.completions.create(model=NAME, prompt="go", stream=True, stop=["quick"])
    assert "".join(chunk.choices[0].text for chunk in stream) == "The "


def test_models_and_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=HI, temperature=99)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HI)
    assert missing.value.code == "model_not_found"


def test_error_in_a_stream_is_an_exception(live: Live, client: openai.OpenAI) -> None:
    from tests.service.test_streams import fail_at

    live.runner.script = list(b"abcdef")
    live.runner.slow = 0.01
    live.runner.before = fail_at(3, ord("!"))
    stream = client.completions.create(model=NAME, prompt="go!", stream=True)
    with pytest.raises(openai.APIError, match="the step failed"):
        list(stream)


def test_neighbours_change_nothing(live: Live) -> None:
    """A-b5 end to end, bounded: 60 requests, of 1 to 3 choices, say what each says alone."""
    live.runner.choose = hashed

    async def ask(client: openai.AsyncOpenAI, i: int) -> list[str]:
        parts = [""] * (1 + i % 3)
        settings = {"temperature": 0.8, "seed": i, "max_tokens": 2 + i % 15, "n": len(parts)}
        if i % 2:
            answer = await client.completions.create(model=NAME, prompt=f"p{i}", **settings)  # type: ignore[call-overload]
            return [choice.text for choice in answer.choices]
        stream = await client.completions.create(  # type: ignore[call-overload]
            model=NAME, prompt=f"p{i}", stream=True, **settings
        )
        async for chunk in stream:
            parts[chunk.choices[0].index] += chunk.choices[0].text
        return parts

    async def main() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{live.url}/v1", api_key="none", max_retries=0
        ) as client:
            alone = [await ask(client, i) for i in range(20)]
            together = await asyncio.gather(*(ask(client, i) for i in list(range(20)) * 3))
        assert together == alone * 3
        assert len({choices[-1] for choices in alone if len(choices) == 3}) > 1
        assert all(len(set(choices)) == len(choices) for choices in alone if len(choices[0]) > 5)

    before = len(live.runner.steps)
    asyncio.run(main())
    assert max(len(rows) for rows in live.runner.steps[before:]) > 1, "nothing ran together"
    assert isinstance(live.runner, ScriptedRunner)
