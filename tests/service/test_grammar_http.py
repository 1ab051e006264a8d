"""Structured output over HTTP, with models that prefer the worst: CASES group (h), PROBE after
each.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest

from rebar.graph import Sequence
from rebar.service.structured import MAX_WHITESPACE
from tests.service.fakes import END, hashed
from tests.service.live import Client, Live, said
from tests.service.test_structured import BAD, form


def allowed(sequence: Sequence, position: int) -> list[int]:
    """What may follow `position`; a mask for every guess."""
    assert sequence.allowed is not None, "no constraint reached the engine"
    mask = sequence.allowed[position + 1 - sequence.total]
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def preferring(*texts: str) -> Callable[[Sequence, int], int]:
    """The first of these bytes that is allowed, else whatever is."""

    def choose(sequence: Sequence, position: int) -> int:
        ids = allowed(sequence, position)
        return next((ord(text) for text in texts if ord(text) in ids), ids[-1])

    return choose


def arbitrary(sequence: Sequence, position: int) -> int:
    """Any allowed id; which one depends on all before and the seed."""
    ids = allowed(sequence, position)
    return ids[hashed(sequence, position) * 7919 % len(ids)]


def saying(text: str) -> Callable[[Sequence, int], int]:
    """Says exactly this; every byte of it must be allowed."""
    raw = text.encode()

    def choose(sequence: Sequence, position: int) -> int:
        at = position + 1 - sequence.prompt
        token = raw[at] if at < len(raw) else END
        if bytes(sequence.tokens[sequence.prompt : position + 1].tolist()) != raw[:at]:
            return END  # a guess was wrong: nobody hears this
        assert token in allowed(sequence, position), raw[:at]
        return token

    return choose


INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_prefers_spaces(live: Live, more: dict[str, bool], stream: bool) -> None:
    """A-h1: whitespace is legal between any two parts, so it ran to max_tokens; 23% of calls."""
    live.runner.choose = preferring(" ", "\n")
    schema = {**INTEGER, **more}
    answer = live.chat(response_format=form(schema), max_tokens=200, stream=stream)
    text, finish, _ = said(answer)
    assert max(map(len, re.findall(r"\s+", text))) == MAX_WHITESPACE
    if finish == "stop":
        jsonschema.validate(json.loads(text), schema)
    else:
        assert finish == "length"
    assert finish == "stop" or not more, "closed, it has an end"


PLACES: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"a": {"pattern": "^hello\\!$("}}}, "at /properties/a: unclosed group"),
    ({"properties": {"a": {"items": {"not": {}}}}}, "at /properties/a/items: .*not"),
    ({"properties": {"a/b": {"type": "strnig"}}}, "at /properties/a~1b: Invalid type: strnig"),
    ({"anyOf": [{"type": "null"}, {"$dynamicRef": "#a"}]}, "at /anyOf/1: .*dynamicRef"),
    ({"properties": {"a": {"$ref": "#/$defs/no"}}, "$defs": {"b": {}}}, "at /properties/a: .*no"),
    ({"$defs": {"b": {"uniqueItems": True}}, "$ref": "#/$defs/b"}, "at /.defs/b: .*uniqueItems"),
    ({"type": "strnig"}, "used: Invalid type: strnig"),
]


@pytest.mark.parametrize(("schema", "words"), PLACES)
def test_a_refusal_says_where(anywhere: Client, schema: dict[str, Any], words: str) -> None:
    """A-h2: what could not be compiled was answered without a constraint. Ours was refused, but
    in a schema of a hundred properties "Unimplemented keys" says nothing.
    """
    answer = anywhere.chat(response_format=form({"type": "object", **schema}), max_tokens=4)
    if "strnig" in words and "at" not in words:
        answer = anywhere.chat(response_format=form(schema), max_tokens=4)
    assert answer.status_code == 400
    assert re.search(words, answer.json()["error"]["message"]), answer.text


def test_bad_constraints_leave_the_neighbour_alone(live: Live) -> None:
    """A-h3: a compile error was raised in the shared step and ended the engine."""
    live.runner.choose, live.runner.slow = hashed, 0.01
    asked = {"max_tokens": 80, "temperature": 0.5, "seed": 1}
    alone = said(live.complete(**asked))
    with ThreadPoolExecutor(4) as pool:
        neighbours = [pool.submit(live.complete, **asked) for _ in range(4)]
        for name, value in BAD:
            assert live.chat(**{name: value}).status_code == 400
        assert {said(neighbour.result(20)) for neighbour in neighbours} == {alone}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": form(True)},
        {"guided_json": True},
        {"structured_outputs": {"json_object": True}},
    ],
)
def test_any_json(live: Live, fields: dict[str, Any]) -> None:
    """A-h3: `true` is the schema of any JSON, json_object of any object."""
    live.runner.choose = saying('{"a": [1, {"b": null}], "c": "é"}')
    text, finish, _ = said(live.chat(**fields, max_tokens=60))
    assert (json.loads(text), finish) == ({"a": [1, {"b": None}], "c": "é"}, "stop")


def test_text_is_free(live: Live) -> None:
    """A-h3: type "text" once counted as a constraint that was set."""
    live.runner.script = list(b"anything {")
    free: list[dict[str, Any]] = [
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"structured_outputs": {"json": None, "json_object": False}},
    ]
    for fields in free:
        assert said(live.chat(**fields, max_tokens=20))[0] == "anything {"


ACTION = [1, None, 'a"b\\', "é😀", {"k": [True]}]
ORDERED = {
    "type": "object",
    "properties": {"thought": {"type": "string", "maxLength": 6}, "action": {"enum": ACTION}},
    "required": ["action", "thought"],
    "additionalProperties": False,
}


def test_order_of_properties_and_values_of_any_type(live: Live) -> None:
    """A-h4: the order was lost, enums were of strings only, quotes in them lost their escapes."""
    live.runner.choose = arbitrary
    seen = set()
    for seed in range(40):
        text, finish, _ = said(
            live.chat(response_format=form(ORDERED), seed=seed, temperature=1, max_tokens=100)
        )
        assert finish == "stop"
        answer = json.loads(text)
        assert list(answer) == ["thought", "action"]
        assert answer["action"] in ACTION
        assert type(answer["action"]) is type(ACTION[ACTION.index(answer["action"])])
        seen.add(json.dumps(answer["action"]))
    assert len(seen) > 1, "void: always the same"
    for value in ACTION:
        text = json.dumps({"thought": "x", "action": value}, ensure_ascii=False)
        live.runner.choose = saying(text)
        assert json.loads(said(live.chat(response_format=form(ORDERED)))[0])["action"] == value


TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        }
    },
    "$ref": "#/$defs/n",
}


@pytest.mark.parametrize("depth", [1, 5, 9])
def test_a_schema_that_refers_to_itself(live: Live, depth: int) -> None:
    """A-h5: "$ref" to what is around it looped the compiler, or grew without end."""
    text = '{"c":[' * depth + "]}" * depth
    live.runner.choose = saying(text)
    assert said(live.chat(response_format=form(TREE), max_tokens=120))[:2] == (text, "stop")


def test_compiling_holds_nobody_up(anywhere: Client) -> None:
    """A-h5: seventeen patterns that must all hold take minutes to intersect. Meanwhile others are
    answered; after two seconds it is refused.
    """
    patterns = [{"pattern": f".*{next(LETTERS)}.{{{i}}}b.*"} for i in range(3, 20)]
    hostile = {"type": "string", "allOf": patterns}
    done = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        answers.append(anywhere.chat(response_format=form(hostile), max_tokens=4).status_code)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    meanwhile = 0
    while not done.is_set():
        assert anywhere.complete(max_tokens=1, temperature=0).status_code == 200
        meanwhile += not done.is_set()
    thread.join()
    assert answers == [400]
    assert meanwhile > 10


LETTERS = itertools.cycle("acdefghijk")
