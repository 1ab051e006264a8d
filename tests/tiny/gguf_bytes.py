"""Writes GGUF bytes for tests: sound ones, and broken ones on purpose (any field can be forced)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_CODES = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8,
    "u64": 10, "i64": 11, "f64": 12,
}  # fmt: skip
_FORMS = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?",
    "u64": "Q", "i64": "q", "f64": "d",
}  # fmt: skip

Key = tuple[str, str, Any]
"""(name, type, value); type is a scalar's name, or `[name]` for an array."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as the table has it: dims as stored (inputs first). `offset` None: the next
    free place.
    """

    name: str
    dims: tuple[int, ...]
    type: int
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key_bytes(key: Key) -> bytes:
    """One key with its value."""
    name, kind, value = key
    if kind.startswith("["):
        inner = kind[1:-1]
        head = struct.pack("<IIQ", 9, _CODES[inner], len(value))
        return text(name) + head + b"".join(_scalar(inner, item) for item in value)
    return text(name) + struct.pack("<I", _CODES[kind]) + _scalar(kind, value)


def _scalar(kind: str, value: str | bytes | float) -> bytes:
    return text(value) if isinstance(value, str | bytes) else struct.pack("<" + _FORMS[kind], value)


def gguf_bytes(
    keys: Sequence[Key],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A whole file. The counts can be forged."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(map(key_bytes, keys))
    table, body = b"", b""
    for tensor in tensors:
        body += b"\0" * (-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        table += text(tensor.name) + struct.pack("<I", len(tensor.dims))
        table += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
        table += struct.pack("<IQ", tensor.type, offset)
        body += tensor.data
    head += table
    return head + b"\0" * (-len(head) % alignment) + body
