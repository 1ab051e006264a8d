"""Structured output: whatever the model prefers, what it says obeys."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import openai
import pydantic
import pytest

from rebar.dataflow.text import Tokenizer
from rebar.graph import RunnerOptions
from rebar.graph.weights import open_model
from rebar.service.grammar import Grammars
from rebar.service.loading import load_model
from rebar.service.router import ModelService
from rebar.service.structured import MAX_WHITESPACE, form_of
from rebar.service.wire import ChatBody, ChatMessage
from tests.service.live import Live, probed
from tests.service.schemas import SCHEMAS

HI: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "Describe a cat as JSON."}
]


def grammar(**fields: Any) -> str:
    form = form_of(ChatBody(messages=[ChatMessage(role="user", content="x")], **fields))
    return form.grammar if form else ""


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.of(open_model(smollm2_path))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    made = Grammars(tokenizer)
    yield made
    made.close()


def walk(grammars: Grammars, tokenizer: Tokenizer, text: str, chance: random.Random) -> str:
    """A model that wants nothing in particular: any allowed id, each as likely as the others."""
    assert grammars.ready(text, wait=30)
    state, said = grammars.open(text, ()), list[int]()
    for _ in range(600):
        bits = np.unpackbits(state.allowed.view(np.uint8), bitorder="little")
        ids = np.flatnonzero(bits[: tokenizer.vocab_size])
        token = int(chance.choice(ids))
        if token in tokenizer.end_ids:
            return tokenizer.decode(said)
        said.append(token)
        if state.take(token):
            return tokenizer.decode(said)
        again = grammars.open(text, tuple(said))
        assert (again.allowed == state.allowed).all(), "the state is not what was said"
    raise AssertionError("the grammar has no end")


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_every_answer_validates(
    grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any]
) -> None:
    text = grammar(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    chance = random.Random(7)
    for _ in range(3):
        answer = json.loads(walk(grammars, tokenizer, text, chance))
        jsonschema.validate(answer, schema)
        if isinstance(answer, dict) and "thought" in answer:
            assert list(answer) == ["thought", "action"], "not in the order of the schema"


def test_whitespace_has_an_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """A-h1: a model that prefers spaces ran to max_tokens."""
    text = grammar(guided_json=SCHEMAS[0])
    assert grammars.ready(text, wait=30)
    state, said = grammars.open(text, ()), ""
    blank = [i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i).strip(b" \n")]
    blank = [i for i in blank if tokenizer.token_bytes(i)]
    for _ in range(200):
        bits = np.unpackbits(state.allowed.view(np.uint8), bitorder="little")
        wanted = [i for i in blank if bits[i]] or list(np.flatnonzero(bits[: tokenizer.vocab_size]))
        token = int(wanted[0])
        said += tokenizer.token_bytes(token).decode()
        if state.take(token):
            break
    else:
        raise AssertionError("no end")
    jsonschema.validate(json.loads(said), SCHEMAS[0])
    assert max(map(len, re.findall(r"\s+", said))) == MAX_WHITESPACE


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[a-z]{3}/[0-9]{2}"}, r"[a-z]{3}/[0-9]{2}"),
        ({"guided_choice": ["a.b", "c|d\n", "(x)*"]}, r"a\.b|c\|d\n|\(x\)\*"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_grammar": 'start: ("a" | "b") "c"'}, "[ab]c"),
        ({"guided_grammar": 'root ::= ("a" | "b") "c"'}, "[ab]c"),
    ],
)
def test_other_forms(
    grammars: Grammars, tokenizer: Tokenizer, fields: dict[str, Any], pattern: str
) -> None:
    text = walk(grammars, tokenizer, grammar(**fields), random.Random(1))
    assert re.fullmatch(pattern, text)


def test_text_is_no_constraint() -> None:
    """A-h3: "text", null and false flags once counted as a constraint that was set."""
    unconstrained: list[dict[str, Any]] = [
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False}},
        {},
    ]
    for fields in unconstrained:
        assert grammar(**fields) == ""


def form(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


NO_SCHEMAS: list[object] = ["", [], None, False, 3]
BAD: list[tuple[str, Any]] = [
    ("response_format", {}),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_object", "schema": {}}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    *[("response_format", form(schema)) for schema in NO_SCHEMAS],
    ("response_format", form({"type": "object", "properties": {"a": {"pattern": "^hello\\!$("}}})),
    ("response_format", form({"not": {"type": "string"}})),
    ("response_format", form({"$dynamicRef": "#a"})),
    ("response_format", form({"type": "strnig"})),
    ("response_format", form({"$ref": "#"})),
    ("response_format", form({"$ref": "#/$defs/missing"})),
    ("response_format", form({"$ref": "http://example.com/schema"})),
    ("guided_regex", ""),
    ("guided_choice", []),
    ("guided_choice", [""]),
    ("guided_json", "{"),
    ("guided_json", "[" * 60_000),
    ("guided_json", '{"items":' * 6000 + "{}" + "}" * 6000),
    ("structured_outputs", {"json": "[" * 60_000}),
    ("guided_grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ("guided_grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ("guided_grammar", "nonsense"),
    ("structured_outputs", {"xml": "a"}),
    ("structured_outputs", {"json_object": 1}),
    ("guided_regex", "a" * 70_000),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda v: json.dumps(v)[:60])
def test_what_cannot_be_compiled_is_a_400(live: Live, name: str, value: object) -> None:
    """A-h2, A-h3, A-h5: never an answer without the constraint; PROBE follows each."""
    live.runner.script = list(b"free")
    answer = live.chat(**{name: value})
    assert answer.status_code == 400, answer.text
    assert re.fullmatch(rf"{name}([.\[].*)?", answer.json()["error"]["param"])


def test_two_forms_exclude_each_other(live: Live) -> None:
    answer = live.chat(guided_regex="a", guided_choice=["a"])
    assert answer.status_code == 400
    assert live.chat(guided_regex="a", ignore_eos=True).json()["error"]["param"] == "ignore_eos"


class Cat(pydantic.BaseModel):
    """What the client parses the answer into."""

    mood: Literal["calm", "wild"]
    age: int = pydantic.Field(ge=0, le=30)
    friends: list[Literal["dog", "mouse"]] = pydantic.Field(max_length=2)


def test_smollm2_answers_into_a_pydantic_model(smollm2_path: Path) -> None:
    options = RunnerOptions(max_context=512, kv_tokens=8192, max_rows=128)
    model = load_model(open_model(smollm2_path), options, name="m")
    service = ModelService.in_thread(model.served, model.engine)
    with (
        probed(service) as live,
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="-", max_retries=0) as client,
    ):
        parsed = client.chat.completions.parse(
            model="m", messages=HI, response_format=Cat, temperature=1.0, seed=3, max_tokens=200
        ).choices[0]
        assert parsed.finish_reason == "stop"
        assert isinstance(parsed.message.parsed, Cat)
        for schema in SCHEMAS[::4]:
            answer = client.chat.completions.create(  # type: ignore[call-overload]
                model="m", messages=HI, temperature=1.5, seed=1, n=2, max_tokens=200,
                response_format=form(schema),
            )  # fmt: skip
            for choice in answer.choices:
                assert choice.finish_reason == "stop"
                jsonschema.validate(json.loads(choice.message.content), schema)
