"""Streaming text: whole characters, stop strings that never show, the text of decode()."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.text import TextStream, Tokenizer
from rebar.errors import InputError
from tests.dataflow.vocabularies import bpe, spm

FIRST_BYTE = 3  # id of byte 0 in the tiny BPE


def byte_ids(data: bytes) -> list[int]:
    """One id a byte."""
    return [FIRST_BYTE + byte for byte in data]


def deltas(
    ids: list[int], stop: tuple[str, ...] = (), tokenizer: Tokenizer | None = None
) -> list[str]:
    """What a client sees, push by push; the last is finish()."""
    stream = TextStream(tokenizer or bpe(), stop)
    return [*(stream.push(i) for i in ids), stream.finish()]


def cut(text: str, stop: tuple[str, ...]) -> str:
    """`text` before the stop string that is complete first; of equals the longest."""
    ends = [(text.index(s) + len(s), -len(s)) for s in stop if s in text]
    return text if not ends else text[: sum(min(ends))]


def test_characters_split_over_ids_come_whole() -> None:
    """Decoding each id alone made two U+FFFD of every half character."""
    parts = deltas(byte_ids("😀世ď!".encode()))
    assert "".join(parts) == "😀世ď!"
    assert [p for p in parts if p] == ["😀", "世", "ď", "!"]


def test_a_space_does_not_flush_a_pending_character() -> None:
    assert "".join(deltas(byte_ids(b"\xe4\xb8\x96 a"))) == "世 a"
    assert "".join(deltas(byte_ids(b"\xe4\xb8 a"))) == "\ufffd a"


def test_an_end_inside_a_character_shows_one_mark() -> None:
    assert deltas(byte_ids(b"A\xf0\x9f")) == ["A", "", "", "\ufffd"]


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=40) | st.text(max_size=12).map(lambda t: t.encode("utf-8", "replace"))
)
def test_streamed_text_is_decoded_text(data: bytes) -> None:
    ids = byte_ids(data)
    assert "".join(deltas(ids)) == bpe().decode(ids) == data.decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 511), max_size=40), prefix=st.booleans())
def test_streamed_text_is_decoded_text_for_pieces_too(ids: list[int], prefix: bool) -> None:
    tokenizer = spm(prefix=prefix)
    ids = [i % tokenizer.vocab_size for i in ids]
    assert "".join(deltas(ids, (), tokenizer)) == tokenizer.decode(ids, skip_special=True)


def ids_of(*parts: str) -> list[list[int]]:
    """Ids of each part, as if each were one token."""
    return [byte_ids(part.encode()) for part in parts]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("own fox",), "The quick br"),
        (("fox", "own fox"), "The quick br"),
        (("ui",), "The q"),
        ((" ", "T"), ""),
    ],
)
def test_a_stop_string_over_several_ids_never_shows(stop: tuple[str, ...], text: str) -> None:
    ids = [i for part in ids_of("The", " quick", " br", "own f", "ox j", "umps") for i in part]
    assert "".join(deltas(ids, stop)) == text


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("abé"), max_size=30),
    stop=st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_stop_strings_cut_where_the_first_one_is_complete(text: str, stop: list[str]) -> None:
    assert "".join(deltas(byte_ids(text.encode()), tuple(stop))) == cut(text, tuple(stop))


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("ab"), max_size=30),
    stop=st.text(st.sampled_from("ab"), min_size=1, max_size=6),
)
def test_only_the_beginning_of_a_stop_is_held(text: str, stop: str) -> None:
    """A-b2: len(stop) characters of everything were held back; here just the stop's beginning."""
    stream, shown = TextStream(bpe(), (stop,)), ""
    for n, id_ in enumerate(byte_ids(text.encode()), 1):
        shown += stream.push(id_)
        if stream.stopped:
            break
        held = text[len(shown) : n]
        longest = max(k for k in range(len(stop)) if text[:n].endswith(stop[:k]))
        assert shown + held == text[:n]
        assert held == stop[:longest]


def test_text_that_cannot_become_a_stop_is_shown_at_once() -> None:
    assert deltas(byte_ids(b"abcd"), ("ZZZZZZZZZZZZZZZZ",)) == ["a", "b", "c", "d", ""]


def test_after_a_stop_nothing_comes() -> None:
    stream = TextStream(bpe(), ("b",))
    assert [stream.push(i) for i in byte_ids(b"abc")] == ["a", "", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_held_text_comes_out_at_the_end() -> None:
    stream = TextStream(bpe(), ("abc",))
    assert [stream.push(i) for i in byte_ids(b"xab")] == ["x", "", ""]
    assert stream.finish() == "ab"
    assert not stream.stopped


def test_a_broken_tail_can_complete_a_stop() -> None:
    stream = TextStream(bpe(), ("\ufffd",))
    assert stream.push(FIRST_BYTE + 0xF0) == ""
    assert stream.finish() == ""
    assert stream.stopped


def test_control_tokens_show_only_when_wanted() -> None:
    hidden, shown = TextStream(bpe()), TextStream(bpe(), skip_special=False)
    assert hidden.push(2) == ""
    assert shown.push(2) == "<|im_end|>"


def test_empty_stop_strings_and_unknown_ids_are_input_errors() -> None:
    with pytest.raises(InputError, match="stop string is empty"):
        TextStream(bpe(), ("a", ""))
    with pytest.raises(InputError, match="lone surrogate"):
        TextStream(bpe(), ("a\ud800",))
    with pytest.raises(InputError):
        TextStream(bpe()).push(10**6)


def lines_run(ids: list[int], stop: tuple[str, ...], tokenizer: Tokenizer) -> int:
    """Lines of Python that streaming these ids executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename.endswith("stream.py")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        deltas(ids, stop, tokenizer)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("a", ("a" * 63 + "b",)),
        ("ab", ("ab" * 32 + "c", "ba" * 32 + "c")),
        ("é", ("é" * 64 + "x",)),
        ("<|im_st", ("<|im_start|>", "<|im_end|>")),
        ("x", ()),
        ("\U0001f468\u200d", ("\u200d\u200d",)),
    ],
)
def test_the_work_of_streaming_grows_as_the_text(text: str, stop: tuple[str, ...]) -> None:
    """Counted in lines, not seconds: four times the ids, four times the lines. A search that went
    back for each beginning of a stop would pass the bound of lines per id.
    """
    ids = byte_ids(text.encode())
    short, long = (lines_run(ids * n, stop, bpe()) for n in (250, 1000))
    assert long < 4.1 * short
    assert long < 1000 * len(ids) * (12 + 24 * max(1, len(stop)))
