"""Whatever comes in: frames, headers, forms of answers, key files. A typed error or a result, never
anything else, and the same however it was cut.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from rebar.errors import EngineError, InputError
from rebar.service.body import MAX_DEPTH, check_depth
from rebar.service.frames import FrameReader, frame
from rebar.service.grammar_blame import MAX_TRIES, parts, place_of
from rebar.service.grammar_check import GrammarChecker
from rebar.service.http.keys import ApiKeys, Holder, NamedKey, given_keys, read_keys
from rebar.service.http.middleware import caller_of
from rebar.service.messages import Delta, EngineStats, StepReport
from rebar.service.structured import form_of
from rebar.service.wire import ChatBody
from tests.service.test_random_bodies import TEXT, VALUES

FAST = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FAST
@given(texts=st.lists(st.text(max_size=20), max_size=6), data=st.data())
def test_frames_come_whole_however_they_are_cut(texts: list[str], data: st.DataObject) -> None:
    raw = b"".join(frame(text) for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    reader, heard = FrameReader(str), list[str]()
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        heard += reader.feed(raw[begin:end])
    assert heard == texts


@FAST
@given(raw=st.binary(max_size=60), damage=st.integers(0, 200), byte=st.integers(0, 255))
def test_damaged_frames_are_engine_errors(raw: bytes, damage: int, byte: int) -> None:
    """The other end is this program; a fault of ours must end the connection and nothing else."""
    report = StepReport(EngineStats(), [Delta(1, "text", [1, 2], finish="stop")])
    good = bytearray(frame(report))
    good[damage % len(good)] = byte
    for data in (raw, bytes(good)):
        try:
            found = FrameReader(StepReport).feed(data)
        except EngineError:
            continue
        assert all(isinstance(message, StepReport) for message in found)


def depth_of(text: str) -> int:
    """Brackets open at a time, by a walk over the characters."""
    deepest = depth = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        else:
            depth += (char in "[{") - (char in "]}")
            deepest = max(deepest, depth)
    return deepest


@FAST
@given(st.lists(st.sampled_from(['"', "\\", "[", "{", "]", "}", "a", "[" * 60]), max_size=12))
@example(['"', "\\", '"', "[" * 60, "[" * 60])
@example(["[" * 60, '"', "]" * 60, '"', "[" * 41])
def test_the_depth_of_anything(pieces: list[str]) -> None:
    """Strings and escapes are seen as a walk over the characters sees them."""
    text = "".join(pieces)
    if depth_of(text) <= MAX_DEPTH:
        check_depth(text.encode())
    else:
        with pytest.raises(InputError, match="nested"):
            check_depth(text.encode())


HEADER = st.dictionaries(
    st.sampled_from(["x-request-id", "traceparent", "x-priority", "authorization", "x-api-key"]),
    st.binary(max_size=40).filter(lambda raw: b"\r" not in raw and b"\n" not in raw),
)


@FAST
@given(HEADER)
def test_any_headers(given: dict[str, bytes]) -> None:
    """A caller has an id that is fit for a log line, whatever was sent."""
    raw = [(name.encode(), value) for name, value in given.items()]
    caller = caller_of(Headers(raw=raw))
    for text in (caller.request_id, caller.trace_id):
        assert text.isascii()
        assert text.isprintable()
        assert 0 < len(text) <= 128
        assert not set(text) & set(" \"'\\")
    keys = ApiKeys([NamedKey("a", "secret")])
    assert keys.holder(given_keys({"headers": raw})) in (None, Holder("a", admin=False))


@FAST
@given(raw=st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_key_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(raw)
    with contextlib.suppress(InputError):
        assert len(ApiKeys(read_keys(path))) >= 1


SCHEMA_KEYS = st.sampled_from([
    "type", "properties", "items", "required", "enum", "const", "anyOf", "allOf", "oneOf", "not",
    "$ref", "$defs", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minimum",
    "maximum", "format", "additionalProperties", "prefixItems", "patternProperties", "multipleOf",
])  # fmt: skip
WORDS = st.sampled_from(["object", "string", "array", "integer", "#", "#/$defs/a", "a+", "((", "x"])
SCHEMA: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | WORDS | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(SCHEMA_KEYS | st.sampled_from(["a", "b"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    made.close()


def asked(**fields: Any) -> str:
    """The grammar of a request's fields, by way of JSON."""
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    form = form_of(msgspec.json.decode(json.dumps(body).encode(), type=ChatBody))
    return form.grammar if form else ""


@settings(FAST, max_examples=150)
@given(schema=st.dictionaries(SCHEMA_KEYS, SCHEMA, max_size=4))
@example(schema={"items": {"items": {"not": {}}}})
def test_any_schema_is_a_grammar_or_an_input_error(
    checker: GrammarChecker, schema: dict[str, Any]
) -> None:
    """In bounded time, and the process that tries it lives on."""
    checker.check(asked(guided_regex="a"))
    process = checker._process
    with contextlib.suppress(InputError):
        checker.check(asked(guided_json=schema))
    assert checker._process is process


@settings(FAST, max_examples=100)
@given(
    kind=st.sampled_from(["guided_regex", "guided_grammar"]),
    text=st.text(alphabet="abAB[](){}|*+?^$.\\-/:=\"'<>#;, \n0123_", max_size=30),
)
@example(kind="guided_grammar", text='root ::= "a"')
@example(kind="guided_grammar", text='root ::= root "a"')
@example(kind="guided_grammar", text="::=")
def test_any_expression(checker: GrammarChecker, kind: str, text: str) -> None:
    with contextlib.suppress(InputError):
        checker.check(asked(**{kind: text}))
    checker.check(asked(guided_regex="a"))


@FAST
@given(fields=st.dictionaries(
    st.sampled_from(["response_format", "structured_outputs", "guided_json", "guided_choice"]),
    VALUES, max_size=3))  # fmt: skip
def test_any_form_of_an_answer(fields: dict[str, Any]) -> None:
    with contextlib.suppress(InputError, msgspec.DecodeError):
        assert isinstance(asked(**fields), str)


@FAST
@given(schema=SCHEMA, bad=st.sets(st.integers(0, 40)))
def test_the_place_of_a_fault(schema: object, bad: set[int]) -> None:
    """A pointer leads to a part of the schema, after a bounded number of tries."""
    tries = 0

    def reason(_: str) -> str:
        nonlocal tries
        tries += 1
        return "bad" if tries in bad else ""

    place = place_of(json.dumps({"grammars": [{"json_schema": schema}]}), reason)
    assert tries <= MAX_TRIES
    part: object = schema
    for step in place.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        assert isinstance(part, dict | list)
        part = part[int(key)] if isinstance(part, list) else part[key]
    assert list(parts(part)) is not None


NO_SCHEMAS = ["", "null", "[]", "{", '{"grammars": []}', '{"grammars": [1]}']
NO_SCHEMAS += [
    json.dumps({"grammars": [{"lark_grammar": f"start: args_0\nargs_0: %json {text}"}]})
    for text in ("{", "5", "[" * 9000, '{"a": ')
]


@pytest.mark.parametrize("text", NO_SCHEMAS, ids=range(len(NO_SCHEMAS)))
def test_what_is_no_schema_has_no_place(text: str) -> None:
    """A caller's own grammar may look like one of tools."""
    assert place_of(text, lambda _: "bad") == ""
