"""A batch to look at: the right letters in the right colour, none of them broken."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from rebar.dataflow.data.show import ASKED, GIVEN, PICTURES, show_batch
from rebar.dataflow.text import ChatTemplate
from rebar.dataflow.text.turns import conversation
from rebar.graph.batch import NOT_ASKED, Batch
from tests.dataflow.test_chat import CHATML
from tests.dataflow.vocabularies import bpe


def batch_of(ids: list[int], asked: list[bool]) -> Batch:
    """The last id is a target alone, as Mask makes them."""
    targets = np.where(asked[1:], ids[1:], NOT_ASKED).astype(np.int32)
    return Batch(((np.array(ids[:-1], np.int32), targets),))


def parts(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[s.start : s.end], str(s.style)) for s in text.spans]


def test_a_conversation() -> None:
    tokenizer = bpe()
    messages = [
        {"role": "user", "content": "grüße 😀"},
        {"role": "assistant", "content": "日本 😀"},
    ]
    found, _ = conversation(ChatTemplate(CHATML, tokenizer), tokenizer, messages)
    ids = [id for part in found for id in part.ids]
    asked = [part.asked for part in found for _ in part.ids]
    head, text = show_batch(batch_of(ids[:-1], asked[:-1]), tokenizer)
    count = sum(asked)
    assert head.plain == f"sequence 1 of 1: {len(ids) - 2} positions, {count} asked for"
    assert parts(text) == [
        ("<|im_start|>user\ngrüße 😀<|im_end|>\n<|im_start|>assistant\n", GIVEN),
        ("日本 😀<|im_end|>", ASKED),
    ]
    _, marked = show_batch(batch_of(ids[:-1], asked[:-1]), tokenizer, marks=True)
    assert marked.plain.endswith("assistant\n⟦日本 😀<|im_end|>⟧")


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    tokenizer = bpe()
    ids = tokenizer.encode("a😀b")
    assert len(ids) == 6  # the smiley is four tokens
    for cut in range(2, 5):
        _, text = show_batch(batch_of(ids, [i >= cut for i in range(6)]), tokenizer)
        assert parts(text) == [("a", GIVEN), ("😀b", ASKED)]
        _, text = show_batch(batch_of(ids, [0 < i < cut for i in range(6)]), tokenizer)
        assert parts(text) == [("a😀", GIVEN)]  # nothing is asked of the "b", so it is not there


@given(st.text(st.characters(codec="utf-8"), min_size=2), st.integers(0, 2**30))
@settings(deadline=None)
def test_the_text_is_whole(said: str, mask: int) -> None:
    tokenizer = bpe()
    ids = tokenizer.encode(said)
    if len(ids) < 2:
        return
    asked = [bool(mask >> (i % 30) & 1) for i in range(len(ids))]
    _, text = show_batch(batch_of(ids, asked), tokenizer)
    whole = ids if asked[-1] else ids[:-1]
    assert text.plain == tokenizer.decode(whole).translate(PICTURES)
