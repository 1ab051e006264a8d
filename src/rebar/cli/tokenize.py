"""rebar tokenize"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from rebar.cli.models import open_named
from rebar.cli.options import DEFAULT_MODEL, Json, Model, Offline
from rebar.cli.output import emit
from rebar.cli.text import read_text


def tokenize(
    text: Annotated[
        str,
        Parameter(help="The text; - reads standard input.", allow_leading_hyphen=True),
    ],
    *,
    model: Model = DEFAULT_MODEL,
    special: Annotated[bool, Parameter(help="Read control tokens such as <|im_end|>.")] = False,
    json: Json = False,
    offline: Offline = False,
) -> None:
    """Show the token ids of a text."""
    from rebar.dataflow.text import Tokenizer

    tokenizer = Tokenizer.of(open_named(model, offline=offline))
    ids = tokenizer.encode(read_text(text), special=special)
    if json:
        emit({"ids": ids, "count": len(ids)}, json=True)
        return
    for token in ids:
        piece = tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")
        sys.stdout.write(f"{token:>8}  {piece!r}\n")
