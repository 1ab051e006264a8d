"""Text from the command line or standard input."""

from __future__ import annotations

import re
import sys

from rebar.errors import InputError


def read_text(argument: str) -> str:
    """The argument itself, or standard input for "-".

    Raises InputError for what is not UTF-8, and for what looks like a misspelled flag.
    """
    try:
        if argument == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        # argv holds undecodable bytes as lone surrogates (PEP 383); the engine takes text only.
        text = argument.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise InputError("The text is not UTF-8. Convert it first, with iconv for one.") from error
    if re.fullmatch(r"--[a-z][a-z-]*(=\S*)?", text):
        raise InputError(
            f"There is no flag {text}; `--help` lists what there is. If it is the text itself, "
            "give it on standard input, with - in its place."
        )
    return text
