"""Chat, Responses and Messages over real arithmetic say the same, by the official clients: a small
random model and SmolLM2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from tests.service.live import running
from tests.tiny.model import tiny_gguf

OPTIONS = RunnerOptions(threads=2, max_context=128, kv_tokens=1024, max_rows=64)


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = (
        tiny_gguf(tmp_path_factory.mktemp("tiny"))
        if request.param == "tiny"
        else request.getfixturevalue("smollm2_path")
    )
    model = load_model(open_model(path), OPTIONS, name="m")
    with running(ModelService.in_thread(model.served, model.engine)) as port:
        yield f"http://127.0.0.1:{port}"


def test_three_apis_say_the_same(url: str) -> None:
    ask = "Name three colours."
    sampling = {"temperature": 0.8, "seed": 11}
    turns: Any = [{"role": "user", "content": ask}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="m", messages=turns, max_tokens=16, extra_body=sampling
        )
        said = chat.choices[0].message.content
        given: Any = {"model": "m", "input": ask, "max_output_tokens": 16, "extra_body": sampling}
        response = client.responses.create(**given)
        assert response.output_text == said
        events = list(client.responses.create(stream=True, **given))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == said
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other:
        asked: Any = {"model": "m", "messages": turns, "max_tokens": 16, "extra_body": sampling}
        message = other.messages.create(**asked)
        assert message.content[0].model_dump()["text"] == said
        with other.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == said
            final = stream.get_final_message()
    reasons = {"stop": "end_turn", "length": "max_tokens"}
    assert chat.usage is not None
    assert response.usage is not None
    assert final.stop_reason == message.stop_reason == reasons[str(chat.choices[0].finish_reason)]
    assert final.usage.output_tokens == chat.usage.completion_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert response.usage.input_tokens == chat.usage.prompt_tokens
