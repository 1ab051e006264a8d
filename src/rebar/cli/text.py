"""Text from the command line or standard input."""

from __future__ import annotations

import sys

from rebar.errors import InputError


def read_text(argument: str) -> str:
    """The argument itself, or standard input for "-". Raises InputError for what is not UTF-8."""
    try:
        # argv holds undecodable bytes as lone surrogates (PEP 383); the engine takes text only.
        raw = (
            sys.stdin.buffer.read()
            if argument == "-"
            else argument.encode("utf-8", "surrogateescape")
        )
        return raw.decode("utf-8")
    except UnicodeError as error:
        raise InputError("The text is not UTF-8. Convert it first, with iconv for one.") from error
