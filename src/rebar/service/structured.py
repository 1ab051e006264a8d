"""What form an answer must have, from the fields of a request to one grammar in text.

OpenAI's `response_format`, and vLLM's `structured_outputs` and `guided_*`: one of them at a time.
Whitespace between the parts of JSON is limited to MAX_WHITESPACE, since a model that prefers spaces
would otherwise never end. Properties come in the order of the schema. Regular expressions are
those of Rust's regex crate and match the whole answer. Whether the grammar can be compiled is asked
elsewhere (grammar_check.py), in bounded time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rebar.errors import InputError
from rebar.service.body import check_depth
from rebar.service.lark import check_lark
from rebar.service.patterns import check_pattern
from rebar.service.schema_places import Schema, check_schema
from rebar.service.wire import SamplingBody

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_WHITESPACE = 8
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must obey, in llguidance's notation, and where in the request it is said."""

    grammar: str
    place: str


def form_of(body: SamplingBody) -> Form | None:
    """The form that a request asks for, None for any. Raises InputError naming the place."""
    asked = _asked(body)
    if not asked:
        return None
    if len(asked) > 1:
        raise InputError(
            f"`{asked[0][0]}` and `{asked[1][0]}` exclude each other; give one.", param=asked[1][0]
        )
    name, kind, value = asked[0]
    if body.ignore_eos:
        raise InputError(f"`ignore_eos` cannot go with `{name}`.", param="ignore_eos")
    form = _MAKERS[kind](value, name)
    if len(form.grammar) > MAX_GRAMMAR_BYTES:
        raise InputError(
            f"`{name}` is larger than {MAX_GRAMMAR_BYTES} bytes. Make it simpler.",
            param=name,
            code="invalid_grammar",
        )
    return form


Asked = tuple[str, str, object]
SCHEMA = "response_format.json_schema.schema"


def _asked(body: SamplingBody) -> list[Asked]:
    """(parameter, kind, value) of everything that was asked for."""
    found = _format(body.response_format)
    found += _structured(body.structured_outputs)
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(body, f"guided_{kind}")
        if value is not None:
            found.append((f"guided_{kind}", kind, value))
    return found


def _structured(given: dict[str, Any] | None) -> list[Asked]:
    found: list[Asked] = []
    for kind, value in (given or {}).items():
        if kind not in {"json", "regex", "choice", "grammar", "json_object"}:
            raise InputError(
                f"There is no `structured_outputs.{kind[:100]}` here. Leave it out.",
                param=f"structured_outputs.{kind[:100]}",
                code="unknown_parameter",
            )
        if kind == "json_object" and value is True:
            found.append(("structured_outputs", "json", {"type": "object"}))
        elif kind != "json_object" and value is not None:
            found.append((f"structured_outputs.{kind}", kind, value))
        elif value not in (None, False):
            raise InputError(
                "`structured_outputs.json_object` must be true.",
                param="structured_outputs.json_object",
            )
    return found


def _format(given: dict[str, Any] | None) -> list[Asked]:
    if given is None:
        return []
    known, found = {"type"}, list[Asked]()
    match given.get("type"):
        case "text":
            pass
        case "json_object":
            found = [("response_format", "json", {"type": "object"})]
        case "json_schema":
            known.add("json_schema")
            found = [(SCHEMA, "json", _named_schema(given.get("json_schema")))]
        case _:
            kinds = "must be text, json_object or json_schema"
            raise _bad_format("response_format.type", kinds)
    unknown = sorted(set(given) - known)
    if unknown:
        raise _bad_format(
            f"response_format.{unknown[0][:100]}", "has no meaning here; leave it out"
        )
    return found


def _named_schema(given: object) -> object:
    """The schema inside OpenAI's wrapper of name, description and strictness."""
    if not isinstance(given, dict) or "schema" not in given:
        raise _bad_format("response_format.json_schema", "needs a `schema`, a JSON schema object")
    unknown = sorted(set(given) - {"name", "description", "schema", "strict"})
    if unknown:
        where = f"response_format.json_schema.{unknown[0][:100]}"
        raise _bad_format(where, "has no meaning here; leave it out")
    for key, kind in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(given.get(key), kind | None):
            raise _bad_format(f"response_format.json_schema.{key}", f"is not a {kind.__name__}")
    return given["schema"]


def _bad_format(place: str, fault: str) -> InputError:
    return InputError(f"`{place}` {fault}.", param=place, code="invalid_value")


def _json(schema: object, name: str) -> Form:
    """A JSON schema: an object, true (any JSON), or one of these as JSON text."""
    if isinstance(schema, str) and name != SCHEMA:
        raw = schema.encode("utf-8", "surrogatepass")
        try:
            check_depth(raw)
            schema = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, InputError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"`{name}` is not JSON: {reason}.", param=name) from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InputError(f"`{name}`: a JSON schema is an object.", param=name)
    check_schema(schema, name)
    return Form(rules_of(schema), name)


def rules_of(schema: Schema) -> str:
    """The grammar of a schema."""
    return msgspec.json.encode({"grammars": [{"json_schema": json_rules(schema)}]}).decode()


def json_rules(schema: Schema) -> Schema:
    """The schema with our rules of whitespace."""
    return {**schema, "x-guidance": _JSON_RULES}


_JSON_RULES = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \n\t]{{1,{MAX_WHITESPACE}}}",
    "lenient": False,
}


def _regex(value: object, name: str) -> Form:
    if not isinstance(value, str) or not value:
        raise InputError(f"`{name}` must be a regular expression, not empty.", param=name)
    check_pattern(value, name)
    return Form(_whole(value), name)


def _whole(pattern: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(pattern)


def _choice(value: object, name: str) -> Form:
    texts = value if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"`{name}` must be a list of texts, none of them empty.", param=name)
    whole = _whole("|".join(f"(?:{_META.sub(_escaped, text)})" for text in texts))
    return Form(whole, name)


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]


def _grammar(value: object, name: str) -> Form:
    """A Lark grammar in llguidance's dialect, or GBNF, whose rules have "::=" in them."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"`{name}` must be a grammar, not empty.", param=name)
    if "::=" in value:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        try:
            value = gbnf_to_lark(value[:MAX_GRAMMAR_BYTES])
        except Exception as error:
            raise InputError(f"`{name}`: {error}.", param=name, code="invalid_grammar") from None
    check_lark(value, name)
    whole = msgspec.json.encode({"grammars": [{"lark_grammar": value}]}).decode()
    return Form(whole, name)


_MAKERS: dict[str, Callable[[object, str], Form]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
