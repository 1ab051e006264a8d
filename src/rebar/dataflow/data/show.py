"""A micro-batch to look at: what is asked for in one colour, what is not in grey.

A character that several tokens make has the colour of the token that completes it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from rich.text import Text

from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.graph.batch import NOT_ASKED, Batch, Ids

# Control characters as their pictures; rich would leave them out.
PICTURES = {n: 0x2400 + n for n in range(32) if n not in (9, 10)} | {127: 0x2421}
ASKED, GIVEN, HEAD = "black on green", "bright_black", "bold"


def show_batch(batch: Batch, tokenizer: Tokenizer, *, marks: bool = False) -> list[Text]:
    """A heading and a text for each sequence. marks: what is asked for also stands between ⟦ and ⟧,
    for where colours do not show.
    """
    shown: list[Text] = []
    count = len(batch.sequences)
    for number, (ids, targets) in enumerate(batch.sequences, 1):
        asked = int((targets != NOT_ASKED).sum())
        head = f"sequence {number} of {count}: {len(ids)} positions, {asked} asked for"
        shown += [Text(head, HEAD), _sequence(ids, targets, tokenizer, marks)]
    return shown


def _sequence(ids: Ids, targets: Ids, tokenizer: Tokenizer, marks: bool) -> Text:
    text = Text()
    before = False
    for piece, asked in _pieces(ids, targets, tokenizer):
        if marks and asked != before:
            text.append("⟦" if asked else "⟧")
        text.append(piece.translate(PICTURES), ASKED if asked else GIVEN)
        before = asked
    if marks and before:
        text.append("⟧")
    return text


def _pieces(ids: Ids, targets: Ids, tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """Whole characters in a row that are asked for, or not."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    run, asked_before = "", False
    for id, asked in _tokens(ids, targets):
        piece = decoder.decode(tokenizer.token_bytes(id))
        if piece and asked != asked_before:
            if run:
                yield run, asked_before
            run, asked_before = "", asked
        run += piece
    if run := run + decoder.decode(b"", True):
        yield run, asked_before


def _tokens(ids: Ids, targets: Ids) -> Iterator[tuple[int, bool]]:
    """Each id, and whether it is asked for; an id that is only a target is the last."""
    yield int(ids[0]), False
    asked = (targets != NOT_ASKED).tolist()
    yield from zip(ids[1:].tolist(), asked, strict=False)
    if asked[-1]:
        yield int(targets[-1]), True
