"""Places inside a JSON schema, and what is checked at each before the schema is compiled.

A place is written as a caller would reach it: response_format.json_schema.schema.properties.age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rebar.errors import InputError
from rebar.service.patterns import check_pattern

TOOLS = "tools"
"""The place of the grammar of tool calls, which holds a schema for each tool."""
DATA = frozenset({"const", "enum", "default", "examples"})
"""What stands under these is no schema, whatever it looks like."""
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""What stands under these are names, and a schema for each."""
LISTS = frozenset({"prefixItems", "anyOf", "allOf", "oneOf", "items"})
"""What stands under these may be a list of schemas."""
_PLAIN = re.compile(r"[A-Za-z0-9_$-]{1,64}", re.ASCII)

Schema = dict[str, Any]


def check_schema(schema: Schema, place: str) -> None:
    """Raises InputError for a reference that leads out of the schema (nothing is ever fetched), and
    for a pattern that is no pattern of everybody's.
    """
    pending = [(place, schema)]
    while pending:
        where, node = pending.pop()
        target, pattern = node.get("$ref"), node.get("pattern")
        if isinstance(target, str) and not target.startswith("#"):
            raise InputError(
                f"`{where}`: $ref {target[:100]!r} leads out of the schema. Put what it means "
                "under $defs.",
                param=where,
                code="invalid_grammar",
            )
        if isinstance(pattern, str):
            check_pattern(pattern, f"{where}.pattern")
        names = node.get("patternProperties")
        for name in names if isinstance(names, dict) else ():
            check_pattern(name, f"{where}.patternProperties")
        pending += children(node, where)


def children(schema: Schema, place: str) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside one, and their places."""
    for key, value in schema.items():
        if key in DATA:
            continue
        here = _within(place, key)
        if isinstance(value, dict):
            inner = ((_within(here, n), v) for n, v in value.items()) if key in MAPS else ()
            yield from (pair for pair in inner if isinstance(pair[1], dict))
            if key not in MAPS:
                yield here, value
        elif isinstance(value, list):
            yield from ((f"{here}[{i}]", v) for i, v in enumerate(value) if isinstance(v, dict))


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if _PLAIN.fullmatch(name) else f"{place}[{name[:64]!r}]"


def at_pointer(place: str, pointer: str) -> str:
    """The place that a JSON pointer (RFC 6901) into the schema at `place` leads to."""
    key = ""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        listed = key in LISTS and name.isdigit()
        place = f"{place}[{name}]" if listed else _within(place, name)
        key = "" if listed or key in MAPS else name
    return place
