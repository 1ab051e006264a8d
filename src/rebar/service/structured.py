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
from typing import Any

import msgspec

from rebar.errors import InputError
from rebar.service.body import check_depth
from rebar.service.wire import SamplingBody

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_WHITESPACE = 8
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


def grammar_of(body: SamplingBody) -> str:
    """The grammar that a request asks for, "" for none. Raises InputError naming the field."""
    asked = _asked(body)
    if not asked:
        return ""
    if len(asked) > 1:
        raise InputError(
            f"`{asked[0][0]}` and `{asked[1][0]}` exclude each other; give one.", param=asked[1][0]
        )
    name, kind, value = asked[0]
    if body.ignore_eos:
        raise InputError(f"`ignore_eos` cannot go with `{name}`.", param="ignore_eos")
    grammar = _MAKERS[kind](value, name)
    if len(grammar) > MAX_GRAMMAR_BYTES:
        raise InputError(
            f"`{name}` is larger than {MAX_GRAMMAR_BYTES} bytes. Make it simpler.",
            param=name,
            code="invalid_grammar",
        )
    return grammar


def asked_by(body: SamplingBody) -> str:
    """The field that asks for a form of the answer, "" when none does."""
    asked = _asked(body)
    return asked[0][0] if asked else ""


Asked = tuple[str, str, object]


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
                param="structured_outputs",
                code="unknown_parameter",
            )
        if kind == "json_object" and value is True:
            found.append(("structured_outputs", "json", {"type": "object"}))
        elif kind != "json_object" and value is not None:
            found.append(("structured_outputs", kind, value))
        elif value not in (None, False):
            raise InputError(
                "`structured_outputs.json_object` must be true.", param="structured_outputs"
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
            found = [("response_format", "json", _named_schema(given.get("json_schema")))]
        case _:
            raise _bad_format("`response_format.type` must be text, json_object or json_schema.")
    unknown = sorted(set(given) - known)
    if unknown:
        raise _bad_format(f"There is no `response_format.{unknown[0][:100]}`. Leave it out.")
    return found


def _named_schema(given: object) -> object:
    """The schema inside OpenAI's wrapper of name, description and strictness."""
    if not isinstance(given, dict) or "schema" not in given:
        raise _bad_format("`response_format.json_schema` needs a `schema`, a JSON schema object.")
    unknown = sorted(set(given) - {"name", "description", "schema", "strict"})
    if unknown:
        where = f"response_format.json_schema.{unknown[0][:100]}"
        raise _bad_format(f"There is no `{where}`. Leave it out.")
    for key, kind in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(given.get(key), kind | None):
            raise _bad_format(f"`response_format.json_schema.{key}` is not a {kind.__name__}.")
    return given["schema"]


def _bad_format(message: str) -> InputError:
    return InputError(message, param="response_format", code="invalid_value")


def schema_grammar(schema: object, name: str) -> str:
    """The grammar of a JSON schema: an object, true (any JSON), or one of these as JSON text."""
    if isinstance(schema, str) and name != "response_format":
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
    grammar = {"json_schema": json_rules(schema, name)}
    return msgspec.json.encode({"grammars": [grammar]}).decode()


def json_rules(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema with our rules of whitespace. InputError when it refers to another document."""
    _check_references(schema, name)
    return {**schema, "x-guidance": _JSON_RULES}


_JSON_RULES = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \n\t]{{1,{MAX_WHITESPACE}}}",
    "lenient": False,
}


def _check_references(schema: dict[str, Any], name: str) -> None:
    """Only references into the schema itself; nothing is ever fetched."""
    pending: list[object] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            target = item.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                raise InputError(
                    f"`{name}`: $ref {target[:100]!r} leads out of the schema. Put what it means "
                    "under $defs.",
                    param=name,
                    code="invalid_grammar",
                )
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _regex(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"`{name}` must be a regular expression, not empty.", param=name)
    return _whole(value)


def _whole(pattern: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(pattern)


def _choice(value: object, name: str) -> str:
    texts = value if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"`{name}` must be a list of texts, none of them empty.", param=name)
    return _whole("|".join(f"(?:{_META.sub(_escaped, text)})" for text in texts))


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]


def _grammar(value: object, name: str) -> str:
    """A Lark grammar in llguidance's dialect, or GBNF, whose rules have "::=" in them."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"`{name}` must be a grammar, not empty.", param=name)
    if "::=" in value:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        try:
            value = gbnf_to_lark(value[:MAX_GRAMMAR_BYTES])
        except Exception as error:
            raise InputError(f"`{name}`: {error}.", param=name, code="invalid_grammar") from None
    return msgspec.json.encode({"grammars": [{"lark_grammar": value}]}).decode()


_MAKERS: dict[str, Callable[[object, str], str]] = {
    "json": schema_grammar,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
