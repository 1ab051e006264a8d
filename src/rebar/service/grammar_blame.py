"""Where in a JSON schema is what cannot be used? A refusal that names the place can be acted on.

Each part of the schema is tried alone, with the definitions of the whole, and the first one that is
refused is gone into: the place is the deepest part that is refused by itself. Tries are counted,
for a schema may have thousands of parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

MAX_TRIES = 64
_ARGUMENTS = re.compile(r"^args_(\d+): %json (.*)$", re.MULTILINE)  # service/tools.py
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MANY = ("prefixItems", "anyOf", "allOf", "oneOf")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def place_of(grammar: str, reason_of: Callable[[str], str]) -> str:
    """A JSON pointer into the schema of a refused grammar, "" for the whole or for no schema. In a
    grammar of tool calls, the number of the tool comes before it.

    reason_of: why a grammar cannot be used, "" when it can.
    """
    try:
        form = msgspec.json.decode(grammar)["grammars"][0]
        if isinstance(form.get("json_schema"), dict):
            return place_in(form["json_schema"], reason_of)
        calls = _ARGUMENTS.findall(form.get("lark_grammar", ""))
        arguments = [(number, msgspec.json.decode(schema)) for number, schema in calls]
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, AttributeError):
        return ""  # no schema of ours: a caller's own grammar may look like one of tools
    for number, schema in arguments:
        if isinstance(schema, dict) and reason_of(alone(schema)):
            return f"/{number}" + place_in(schema, reason_of)
    return ""


def place_in(schema: dict[str, Any], reason_of: Callable[[str], str]) -> str:
    """A JSON pointer to the deepest part that is refused by itself."""
    rules = {key: schema[key] for key in ("x-guidance", "$defs", "definitions") if key in schema}
    tries = MAX_TRIES

    def refused(part: object) -> bool:
        nonlocal tries
        tries -= 1
        return bool(reason_of(alone({**rules, **part} if isinstance(part, dict) else part)))

    place, part = "", dict[str, Any](schema)
    while tries > 0:
        found = next(
            ((way, child) for way, child in parts(part) if tries > 0 and refused(child)), None
        )
        if found is None:
            break
        place, part = place + found[0], found[1]
    return place


def alone(schema: object) -> str:
    """The grammar of one schema."""
    return msgspec.json.encode({"grammars": [{"json_schema": schema}]}).decode()


def parts(schema: object) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside, each with its pointer from here."""
    if not isinstance(schema, dict):
        return
    for name in _ONE:
        if isinstance(schema.get(name), dict):
            yield f"/{name}", schema[name]
    for name in _MANY:
        if isinstance(schema.get(name), list):
            yield from ((f"/{name}/{i}", part) for i, part in enumerate(schema[name]))
    for name in _NAMED:
        if isinstance(schema.get(name), dict):
            for key, part in schema[name].items():
                escaped = key.replace("~", "~0").replace("/", "~1")  # RFC 6901
                yield f"/{name}/{escaped}", part
