"""Twenty JSON schemas of the kinds that people send. Every answer they allow is short."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "maxLength": 12}
NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9999}


def item(**properties: Any) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: list[dict[str, Any]] = [
    item(a=NUMBER),
    item(name=TEXT, age=NUMBER),
    item(ok={"type": "boolean"}, why=TEXT),
    item(kind={"enum": ["cat", "dog", "fish"]}, legs={"type": "integer", "enum": [0, 2, 4]}),
    item(thought=TEXT, action={"enum": [1, None, 'a"b\\', "é😀", {"k": [True]}]}),
    item(tags={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}),
    item(point=item(x=NUMBER, y=NUMBER)),
    item(value={"anyOf": [NUMBER, TEXT, {"type": "null"}]}),
    item(version={"const": 3}, note=TEXT),
    item(price={"type": "number", "minimum": 0, "maximum": 100}),
    item(date={"type": "string", "format": "date"}),
    item(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}),
    item(rows={"type": "array", "maxItems": 2, "items": item(k=TEXT, v=NUMBER)}),
    item(pair={"type": "array", "prefixItems": [TEXT, NUMBER], "minItems": 2, "items": False}),
    {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 4},
    {"enum": ["yes", "no", "perhaps"]},
    {"type": ["integer", "null"], "minimum": -5, "maximum": 5},
    {
        "$defs": {"leaf": item(n=NUMBER)},
        **item(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
    },
    {
        "type": "object",
        "properties": {"a": TEXT, "b": NUMBER},
        "required": ["b"],
        "additionalProperties": False,
    },
    item(shape={"oneOf": [item(r=NUMBER), item(w=NUMBER, h=NUMBER)]}),
]
