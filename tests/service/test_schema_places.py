"""A form that cannot be used: the error's `param` leads to the place; patterns mean what all mean
by them; and in Python, too, a form that would take minutes is refused in seconds.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebar.errors import InputError
from rebar.service.lark import check_lark
from rebar.service.local import Model
from rebar.service.patterns import doubled_quantifier
from rebar.service.schema_places import at_pointer
from tests.service.fakes import ScriptedRunner
from tests.service.live import CHAT, Live, refused, scripted_model
from tests.service.test_messages import live as messages_live
from tests.service.test_messages import messages_server
from tests.service.test_responses import first_allowed

__all__ = ["messages_live", "messages_server"]
HERE = "response_format.json_schema.schema"
HI = [{"role": "user", "content": "hi"}]


def form(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def thing(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "strnig"}, ""),
        (thing(a={"type": "string"}, b={"type": "strnig"}), ".properties.b"),
        (thing(a=thing(b={"items": {"not": {}}})), ".properties.a.properties.b.items"),
        (thing(a={"anyOf": [{"type": "null"}, {"pattern": "("}]}), ".properties.a.anyOf[1]"),
        (thing(**{"a b": {"type": "strnig"}}), ".properties['a b']"),
        (thing(**{"0": {"type": "strnig"}}), ".properties.0"),
        ({"$defs": {"x": thing(y={"format": "foo"})}, "$ref": "#/$defs/x"},
         ".$defs.x.properties.y"),
        (thing(a={"$ref": "http://example.com/x"}), ".properties.a"),
        (thing(a={"items": [{"$ref": "file:///etc/passwd"}]}), ".properties.a.items[0]"),
        (thing(a={"pattern": "foo**"}), ".properties.a.pattern"),
        ({"patternProperties": {"a{2}{3}": {}}}, ".patternProperties"),
    ],
)  # fmt: skip
def test_the_place_in_a_schema(live: Live, schema: dict[str, Any], place: str) -> None:
    error = refused(
        live, CHAT, json.dumps({"messages": HI, "response_format": form(schema)}), HERE + place
    )
    assert error["code"] == "invalid_grammar"
    guided = json.dumps({"messages": HI, "guided_json": schema})
    refused(live, CHAT, guided, "guided_json" + place)
    other = json.dumps({"messages": HI, "structured_outputs": {"json": schema}})
    refused(live, CHAT, other, "structured_outputs.json" + place)


def test_data_is_no_schema(live: Live) -> None:
    """What stands under const, enum, default and examples only looks like a reference."""
    odd = {"$ref": "http://example.com", "pattern": "a**"}
    live.runner.choose = first_allowed
    schema = {"enum": [odd], "default": odd, "examples": [odd]}
    answer = live.chat(response_format=form(schema), max_tokens=1)
    assert answer.status_code == 200, answer.text


def test_the_place_in_the_tools(messages_live: Live) -> None:
    """Each tool has a schema of its own, and only those that may be called are compiled."""
    good = {"type": "function", "function": {"name": "a", "parameters": thing(x={})}}
    bad = {"type": "function", "function": {"name": "b", "parameters": thing(x={"type": "no"})}}
    body: dict[str, Any] = {"messages": HI, "tools": [good, bad], "tool_choice": "required"}
    place = "tools[1].function.parameters.properties.x"
    refused(messages_live, CHAT, json.dumps(body), place)
    named = {"type": "function", "function": {"name": "b"}}
    refused(messages_live, CHAT, json.dumps({**body, "tool_choice": named}), place)


@pytest.mark.parametrize(
    ("pattern", "at"),
    [
        ("foo**", 4), ("a+*", 2), ("a*+", 2), ("a??", None), ("a???", 3), ("a*?", None),
        ("a{2}{3}", 4), ("a{2,}?", None), ("a{2}*", 4), ("x*{3}", 2), ("(a*)*", None),
        ("(?:a*)*", None), ("(?i)a*", None), ("(?P<n>a)*", None), (r"\**", None), (r"\\**", 3),
        ("[a**]", None), ("[]*]**", 5), ("[^]*]*", None), ("[[:alpha:]**]*", None),
        (r"[\]**]+", None), ("[a", None), ("a|*", None), ("", None), (r"\x{41}*", None),
        (r"\p{L}+", None), ("{", None),
        (r"\u{41}{2}{2}", 9),
    ],
)  # fmt: skip
def test_doubled_quantifiers(pattern: str, at: int | None) -> None:
    assert doubled_quantifier(pattern) == at


@given(st.text("a*+?{}2,[]()\\^:", max_size=12))
def test_any_text_is_looked_at(pattern: str) -> None:
    """No pattern is too broken, and what is found is a quantifier."""
    at = doubled_quantifier(pattern)
    assert at is None or pattern[at] in "*+?{"


@pytest.mark.parametrize("name", ["guided_regex", "structured_outputs"])
def test_a_doubled_quantifier_is_refused(live: Live, name: str) -> None:
    """Rust's crate reads `foo**` as (?:foo*)*; Python and ECMAScript call it a mistake."""
    value: Any = "foo**" if name == "guided_regex" else {"regex": "foo**"}
    place = name if name == "guided_regex" else f"{name}.regex"
    error = refused(live, CHAT, json.dumps({"messages": HI, name: value}), place)
    assert "character 5" in str(error["message"])


LARK = {
    "start: /foo**/": 1,
    'start: "a" A\nA: /b/ | /x(c+*)/i': 2,
    "start: /a\\/b**/": 1,
    '%ignore /[ ]++/\nstart: "a"': 1,
    'start: "a" %lark{\nstart: /b{2}{3}/\n}': 2,
    "start: /a/ // it's /fine/\n  | /b**/": 2,
    "start: </s> /b**/": 1,
    "start: /never ends a**": 1,
    'start: /a"b/ "c" /d**/': 1,
}


@pytest.mark.parametrize("text", LARK)
def test_a_doubled_quantifier_inside_a_grammar_is_refused(live: Live, text: str) -> None:
    """It was refused where a regular expression stood alone, and taken inside a Lark grammar."""
    body = {"messages": HI, "guided_grammar": text}
    error = refused(live, CHAT, json.dumps(body), "guided_grammar")
    assert f"line {LARK[text]}: the quantifier" in str(error["message"])


def test_schemas_inside_a_grammar_are_checked_like_others(live: Live) -> None:
    for schema, place in (
        ({"type": "object", "properties": {"a": {"pattern": "x**"}}}, ".properties.a.pattern"),
        ({"$ref": "http://a.example/schema"}, ""),
    ):
        text = f'start: "a" %json {json.dumps(schema)}'
        body = {"messages": HI, "guided_grammar": text}
        refused(live, CHAT, json.dumps(body), "guided_grammar" + place)


@pytest.mark.parametrize(
    "text",
    [
        'start: "/x**/"',
        'start: "a\\"/x**/"',
        'start: "a" // comment /x**/',
        'start: "a" # /x**/',
        "start: /a*?/ /b{2}?/ A*\nA: /[*+]+/",
        'start: "a//b" /c/',
        'start: %json {"type": "string", "const": "/x**/"}',
        "start: %json nothing",
        "start: %json {",
        "start: %json [1]",
    ],
)
def test_what_only_looks_doubled_inside_a_grammar_is_not(text: str) -> None:
    check_lark(text, "guided_grammar")


@given(st.text('/"\\*+a\n#<>%json{}', max_size=40))
def test_any_grammar_is_looked_at(text: str) -> None:
    with contextlib.suppress(InputError):
        check_lark(text, "p")


@pytest.mark.parametrize("part", ["/", '"', '\\"', "\\/", "<", "%json{", "/a", "\\", '"\\"'])
def test_a_hostile_grammar_is_looked_at_once(part: str) -> None:
    """Strings and patterns that never end made each mark read all that follows. Twice as long takes
    twice the time, not four times; the margin is wide for a busy machine.
    """

    def seconds(size: int) -> float:
        times = []
        for _ in range(3):
            begin = time.process_time()
            with contextlib.suppress(InputError):
                check_lark(part * size, "p")
            times.append(time.process_time() - begin)
        return min(times)

    assert seconds(64_000) < 30 * seconds(8_000) + 0.01


@pytest.mark.parametrize(
    ("pointer", "place"),
    [
        ("", "p"),
        ("/properties/a~1b~0", "p.properties['a/b~']"),
        ("/items/0", "p.items[0]"),
        ("/properties/items/anyOf/2/items", "p.properties.items.anyOf[2].items"),
        ("/$defs/anyOf/not", "p.$defs.anyOf.not"),
    ],
)
def test_pointers(pointer: str, place: str) -> None:
    assert at_pointer("p", pointer) == place


def test_in_python_a_catastrophic_form_is_bounded() -> None:
    """`rebar.load` compiled without the killable check: one call held the engine's compiling thread
    for minutes, and every later form behind it.
    """
    patterns = [{"pattern": f".*a.{{{i}}}b.*"} for i in range(3, 20)]
    model = scripted_model(ScriptedRunner())
    with Model(model.served, model.engine) as local:
        with pytest.raises(InputError, match="longer than 2 s") as refusal:
            local.generate("go", guided_json={"type": "string", "allOf": patterns})
        assert refusal.value.param == "guided_json"
        with pytest.raises(InputError, match="strnig") as misspelled:
            local.generate("go", guided_json=thing(a={"type": "strnig"}))
        assert misspelled.value.param == "guided_json.properties.a"
        assert local._checker is not None
        checker = local._checker._process
        assert checker is not None
    assert checker.poll() is not None, "the checker outlives its model"
