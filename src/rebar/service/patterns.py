"""Regular expressions of a request: what Rust's regex crate would read otherwise than the caller.

A quantifier on a quantifier (`foo**`, `a{2}{3}`, `a*+`) is an error in Python and ECMAScript, and
`a*+` means something else in PCRE; Rust's crate repeats the repetition. Who writes one has made a
mistake, so it is refused. A `?` behind a quantifier (lazy) is everybody's.
"""

from __future__ import annotations

import re

from rebar.errors import InputError

_COUNTED = re.compile(r"\{\s*\d*\s*(,\s*\d*\s*)?\}")
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)


def check_pattern(pattern: str, place: str) -> None:
    """Raises InputError when a quantifier follows a quantifier. Linear in the pattern."""
    at = doubled_quantifier(pattern)
    if at is not None:
        raise InputError(
            f"`{place}`: the quantifier {pattern[at]!r} (character {at + 1}) follows a quantifier. "
            "Take one out, or put what is repeated into (?:...).",
            param=place,
            code="invalid_grammar",
        )


def doubled_quantifier(pattern: str) -> int | None:
    """Where the first quantifier stands that follows a quantifier."""
    at, before = 0, False
    while at < len(pattern):
        length = _quantifier(pattern, at)
        if length and before:
            return at
        before = bool(length)
        at += length or _atom(pattern, at)
    return None


def _quantifier(pattern: str, at: int) -> int:
    """Length of the quantifier at `at`, its lazy mark included; 0 when there is none."""
    counted = _COUNTED.match(pattern, at)
    if counted is None and pattern[at] not in "*+?":
        return 0
    end = counted.end() if counted is not None else at + 1
    return end - at + pattern.startswith("?", end)


def _atom(pattern: str, at: int) -> int:
    """Length of what stands at `at` and is no quantifier."""
    char = pattern[at]
    if char == "[":
        return _class(pattern, at)
    if char == "(" and pattern.startswith("(?", at):
        return 2  # flags, names and look-around; the ? repeats nothing
    if char == "\\" and (escape := _ESCAPE.match(pattern, at)) is not None:
        return escape.end() - at
    return 1


def _class(pattern: str, begin: int) -> int:
    """Length of the bracketed class at `begin`, classes inside it included."""
    at, depth = begin, 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            depth += 1
            at += 1 + pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at)  # as the first of a class it is a character
            continue
        at += 1
        if pattern[at - 1] == "]":
            depth -= 1
            if not depth:
                break
    return min(at, len(pattern)) - begin
