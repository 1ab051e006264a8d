"""From the bytes of a request to a typed body, whatever the bytes are. Every fault is an
InputError.

The limits are ours, not the interpreter's: JSON may be nested MAX_DEPTH deep, text must be UTF-8
without lone surrogates, numbers must be finite (JSON has no NaN and no Infinity).
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import numpy as np

from rebar.errors import InputError

MAX_DEPTH = 100
"""Brackets open at a time in a JSON body."""

# A JSON string. The closing quote may be missing, so that each byte is looked at once (no quadratic
# rescan).
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_LONE_HIGH = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_LONE_LOW = re.compile(rb"(?<!\\)(?:\\\\)*(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
_KEY_BEFORE = re.compile(rb'"([A-Za-z_]{1,40})"\s*:\s*[\[\s-]*$')

T = TypeVar("T", bound=msgspec.Struct)


def decode_body(body: bytes, form: type[T]) -> T:
    """The body as `form`. Raises InputError naming the field where that can be told."""
    check_depth(body)
    try:
        body.decode("utf-8")
        return msgspec.json.decode(body, type=form)
    except UnicodeDecodeError as error:
        raise InputError(
            f"The body is not UTF-8 (byte {error.start}).", code="invalid_json"
        ) from None
    except msgspec.ValidationError as error:
        raise _wrong_value(body, form, error) from None
    except msgspec.DecodeError as error:
        raise _malformed(body, str(error)) from None


def check_depth(body: bytes) -> None:
    """Raises InputError when brackets nest deeper than MAX_DEPTH. Linear in the body, whatever it
    holds.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    plain = np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)
    steps = np.zeros(plain.size, dtype=np.int8)
    steps[(plain == ord("[")) | (plain == ord("{"))] = 1
    steps[(plain == ord("]")) | (plain == ord("}"))] = -1
    if steps.size and int(np.cumsum(steps, dtype=np.int32).max()) > MAX_DEPTH:
        raise InputError(f"The JSON is nested more than {MAX_DEPTH} deep.", code="invalid_json")


def _malformed(body: bytes, reason: str) -> InputError:
    if _LONE_HIGH.search(body) or _LONE_LOW.search(body):
        return InputError(
            "A string holds a lone surrogate (\\ud800-\\udfff without its pair), which is no text.",
            code="invalid_json",
        )
    at = re.search(r"\(byte (\d+)\)", reason)
    key = _KEY_BEFORE.search(body[: int(at.group(1))]) if at else None
    return InputError(
        f"The body is not valid JSON: {reason}. Numbers must be finite, text must be UTF-8.",
        param=key.group(1).decode() if key else None,
        code="invalid_json",
    )


def _wrong_value(body: bytes, form: type[msgspec.Struct], error: Exception) -> InputError:
    """Finds the field at fault by decoding them one by one; only a refused request pays for it."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return InputError(f"The body is not what this route takes: {error}.", code="invalid_type")
    known = {field.encode_name: field for field in msgspec.structs.fields(form)}
    for name, raw in given.items():
        if name not in known:
            return InputError(
                f"There is no parameter {name[:100]!r} here. Leave it out.",
                param=name[:100],
                code="unknown_parameter",
            )
        try:
            msgspec.json.decode(raw, type=known[name].type)
        except msgspec.DecodeError as fault:
            return InputError(f"`{name}`: {fault}.", param=name, code="invalid_type")
    missing = [name for name, field in known.items() if field.required and name not in given]
    return InputError(
        f"`{missing[0]}` is required." if missing else f"The body is not valid: {error}.",
        param=missing[0] if missing else None,
        code="missing_parameter" if missing else "invalid_type",
    )
