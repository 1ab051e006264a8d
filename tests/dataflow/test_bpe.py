"""Byte-level BPE: ids as the published patterns and merges define them, whatever the text."""

from __future__ import annotations

import threading
import time
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.errors import InputError, UnsupportedModelError
from tests.dataflow.vocabularies import IM_END, IM_START, bpe, bpe_data, naive_bpe, pieces, with_bos

PRES = ("gpt-2", "smollm", "qwen2", "llama-bpe")
# Every class of the patterns, what contractions are made of (U+017F folds to s), marks, and pairs
# that NFC joins.
ALPHABET = (
    "aeoZésStTrRvVmMlLdDfox中ف가ᄀ०5½Ⅷ²1 \t\n\r\v\xa0\u2003\u3000\x85''’\u017f\u212a"
    ".,!?-_=<>€😀\u0301\u0323\u200d\x00\x1f\ufffd"
)
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=60)


@pytest.mark.parametrize("pre", PRES)
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_ids_are_those_of_the_naive_tokenizer(pre: str, text: str) -> None:
    assert bpe(pre).encode(text) == naive_bpe(bpe_data(pre), text)


@pytest.mark.parametrize("pre", PRES)
@settings(max_examples=50, deadline=None)
@given(text=st.text(st.sampled_from("the aou"), min_size=20, max_size=300))
def test_long_words_merge_as_short_ones_do(pre: str, text: str) -> None:
    """Words of more than 24 symbols go through a heap instead of a scan."""
    joined = text.replace(" ", "")
    assert bpe(pre).encode(joined) == naive_bpe(bpe_data(pre), joined)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_gives_the_text_back(text: str) -> None:
    for pre in ("gpt-2", "smollm", "llama-bpe"):
        assert bpe(pre).decode(bpe(pre).encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"])))
def test_qwen2_gives_the_text_back_in_nfc(text: str) -> None:
    """Characters that came after Unicode 3.2 are left out: the reference normalizes by an older
    Unicode version than Python, and so do we.
    """
    old = "".join(c for c in text if unicodedata.ucd_3_2_0.category(c) != "Cn")
    assert bpe("qwen2").decode(bpe("qwen2").encode(old)) == unicodedata.normalize("NFC", old)


def test_nfc_of_hangul_and_of_stacked_marks() -> None:
    for text in (
        "각",
        "가\u11a8",
        "ᄀ\u1161\u11a8",
        "a\u0323\u0301\u0302",
        "\u1e69",
        "q\u0301" * 50,
        "\u0344\u2126",
    ):
        written = unicodedata.normalize("NFD", text)
        assert bpe("qwen2").decode(bpe("qwen2").encode(written)) == unicodedata.normalize(
            "NFC", text
        )


def test_nfc_stops_at_tokens_that_are_matched_whole() -> None:
    """The reference finds whole tokens in the text as written: a U+0338 behind > stays alone."""
    tokenizer = bpe("qwen2")
    ids = tokenizer.encode("<tool_call>\u0338")
    assert ids[0] == bpe_data().tokens.index("<tool_call>")
    assert tokenizer.decode(ids) == "<tool_call>\u0338"
    assert tokenizer.decode(tokenizer.encode("x>\u0338")) == "x\u226f"


SPLITS = {
    "gpt-2": ["12345", " don", "'t", "  \n\n", " x"],
    "smollm": ["1", "2", "3", "4", "5", " don", "'t", "  \n\n", " x"],
    "qwen2": ["1", "2", "3", "4", "5", " don", "'t", "  \n\n", " x"],
    "llama-bpe": ["123", "45", " don", "'t", "  \n\n", " x"],
}


@pytest.mark.parametrize("pre", PRES)
def test_each_pre_tokenizer_splits_its_own_way(pre: str) -> None:
    """A-a6: who read only the merges split every text like GPT-2: other ids, no warning."""
    text = "12345 don't  \n\n x"
    assert pieces(pre, text) == SPLITS[pre]
    expected = [i for piece in SPLITS[pre] for i in naive_bpe(bpe_data(pre), piece)]
    assert bpe(pre).encode(text) == expected


@pytest.mark.parametrize("pre", ["no-such-pre", "default", ""])
def test_an_unknown_pre_tokenizer_is_refused_by_name(pre: str) -> None:
    """A-a6: never the rules of GPT-2 for want of others."""
    with pytest.raises(UnsupportedModelError, match=r"gpt-2, smollm, qwen2, llama-bpe"):
        build_vocabulary(replace(bpe_data(), pre=pre))


@pytest.mark.parametrize("letter", ["a", " ", "\n", "é", "1", "世"])
@pytest.mark.parametrize("pre", PRES)
def test_the_time_of_one_long_word_grows_with_its_length(pre: str, letter: str) -> None:
    """A-a7: merging was quadratic, or the pattern went back over everything. Eight times the text:
    quadratic work would take 64 times as long; caches too small for it make it some 16 here.
    """
    tokenizer = bpe(pre)

    def seconds(count: int) -> float:
        text, best = letter * count, 1e9
        for _ in range(5):
            began = time.thread_time()
            tokenizer.encode(text)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(200_000) / seconds(25_000) < 40


def test_control_tokens_come_from_text_only_when_asked_for() -> None:
    text = "a<|im_start|>b<|im_end|><tool_call>"
    plain, special = bpe().encode(text), bpe().encode(text, special=True)
    assert not any(bpe().is_control(i) for i in plain)
    assert [i for i in special if bpe().is_control(i)] == [IM_START, IM_END]
    assert bpe().decode(plain) == bpe().decode(special) == text


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["<|", "im_start", "|>", "<|im_end|>", "<tool", "_call>", "<", "x"])
    ),
    special=st.booleans(),
)
def test_whole_tokens_are_matched_leftmost_and_longest(parts: list[str], special: bool) -> None:
    data, text = bpe_data(), "".join(parts)
    known = {
        t: i
        for i, t in enumerate(data.tokens)
        if data.types[i] == 4 or (special and data.types[i] == 3)
    }
    expected: list[int] = []
    at = begin = 0
    while at < len(text):
        match = max((t for t in known if text.startswith(t, at)), key=len, default="")
        if match:
            expected += [*naive_bpe(data, text[begin:at]), known[match]]
            begin = at + len(match)
        at += max(len(match), 1)
    expected += naive_bpe(data, text[begin:])
    assert bpe().encode(text, special=special) == expected


def test_a_byte_without_a_token_is_left_out() -> None:
    """SmolLM2's vocabulary lacks some control characters; the reference drops them."""
    data = bpe_data()
    gone = data.tokens.index("Ą")  # the byte 04
    types = [5 if i == gone else kind for i, kind in enumerate(data.types)]
    tokens = ["[gone]" if i == gone else token for i, token in enumerate(data.tokens)]
    tokenizer = Tokenizer(build_vocabulary(replace(data, types=types, tokens=tokens)))
    assert tokenizer.missing_bytes == {4}
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_bos_as_the_model_says_unless_told() -> None:
    assert with_bos().encode("the") == [1, *bpe().encode("the")]
    assert with_bos().encode("the", bos=False) == bpe().encode("the")
    assert bpe().encode("the", bos=True)[0] == 1
    assert bpe().encode_batch(["the", ""]) == [bpe().encode("the"), []]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00" * 3])
def test_lone_surrogates_are_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        bpe().encode(text)
    with pytest.raises(InputError, match="lone surrogate"):
        bpe("qwen2").split(text)


@pytest.mark.parametrize("id_", [-1, 515, 2**40, -(2**80), True, 1.0, "1", None])
def test_ids_outside_of_the_vocabulary_are_an_input_error(id_: int) -> None:
    """A negative id must not count from the end; True must not be 1."""
    for call in (bpe().token_bytes, bpe().is_control, lambda i: bpe().decode([1, i])):
        with pytest.raises(InputError):
            call(id_)


def test_decoding_can_leave_out_control_tokens() -> None:
    ids = [IM_START, *bpe().encode("the<tool_call>"), IM_END]
    assert bpe().decode(ids) == "<|im_start|>the<tool_call><|im_end|>"
    assert bpe().decode(ids, skip_special=True) == "the<tool_call>"
    assert bpe().token_bytes(IM_END) == b"<|im_end|>"


def test_threads_share_a_tokenizer() -> None:
    texts = [f"thread {i} the other fox\n" * 200 for i in range(8)]
    alone = [bpe("qwen2").encode(text) for text in texts]
    found: list[list[int]] = [[]] * 8

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = bpe("qwen2").encode(texts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone
