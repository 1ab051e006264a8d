"""Lark grammars of a request: the same is refused in their regular expressions and JSON schemas as
where these stand alone (patterns.py, schema_places.py).
"""

from __future__ import annotations

import json
import re

from rebar.errors import InputError
from rebar.service.patterns import doubled_quantifier
from rebar.service.schema_places import check_schema

# What llguidance's lexer reads as one: comments, strings, special tokens such as </s>, regular
# expressions (a / ends them inside a class, too), schemas. One that never ends takes all that is
# left, so that nothing is looked at twice.
_TOKEN = re.compile(
    r'//[^\n]*|\#[^\n]*|"(?:\\.|[^"\\\n])*\\?(?:"|\n|\Z)|<[^<>\s]+>'
    r"|/(?P<regex>(?:\\.|[^/\\])+)\\?(?:/|\Z)|%json(?P<json>)",
    re.DOTALL,
)
_SHOWN = 60
_decoder = json.JSONDecoder()


def check_lark(grammar: str, place: str) -> None:
    """Raises InputError for a doubled quantifier in a regular expression, and for what check_schema
    refuses in a schema. Linear in the grammar, whose errors are the compiler's to find.
    """
    for token in _TOKEN.finditer(grammar):
        if token["regex"] is not None:
            _check_regex(token, place)
        elif token["json"] is not None:
            schema = _object_at(grammar, token.end())
            if schema is None:
                return  # the compiler will say so
            check_schema(schema, place)


def _check_regex(token: re.Match[str], place: str) -> None:
    pattern = token["regex"]
    at = doubled_quantifier(pattern)
    if at is None:
        return
    line = token.string.count("\n", 0, token.start()) + 1
    begin = max(0, at - _SHOWN // 2)
    shown = pattern[begin : begin + _SHOWN]
    raise InputError(
        f"`{place}`: line {line}: the quantifier {pattern[at]!r} (character {at + 1} of /{shown}/) "
        "follows a quantifier. Take one out, or put what is repeated into (?:...).",
        param=place,
        code="invalid_grammar",
    )


def _object_at(grammar: str, at: int) -> dict[str, object] | None:
    """The JSON object that begins behind white space at `at`; None where there is none."""
    begin = grammar.find("{", at)
    if begin < 0 or grammar[at:begin].strip():
        return None
    try:
        found, _ = _decoder.raw_decode(grammar, begin)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
