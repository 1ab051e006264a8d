"""SentencePiece-style BPE: scores, byte fallback, spaces as U+2581, user-defined runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.errors import InputError
from tests.dataflow.vocabularies import naive_spm, spm, spm_data

WORDS = st.text(st.sampled_from("thefoxmrinz ,.123▁é中😀\t\x00"), max_size=60)


@pytest.mark.parametrize("prefix", [False, True])
@settings(max_examples=300, deadline=None)
@given(text=WORDS)
def test_ids_are_those_of_the_naive_tokenizer(prefix: bool, text: str) -> None:
    assert spm(prefix=prefix).encode(text, bos=False) == naive_spm(spm_data(prefix=prefix), text)


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.sampled_from("the "), min_size=100, max_size=400))
def test_long_words_too(text: str) -> None:
    assert spm().encode(text, bos=False) == naive_spm(spm_data(), text)


@pytest.mark.parametrize("prefix", [False, True])
@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_gives_the_text_back_but_for_the_space_mark(prefix: bool, text: str) -> None:
    """U+2581 is how these models write a space, so it comes back as one."""
    tokenizer = spm(prefix=prefix)
    assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text.replace("▁", " ")


def test_user_defined_runs_of_line_ends_are_matched_longest_first() -> None:
    tokens = spm_data().tokens
    two, three = tokens.index("\n\n"), tokens.index("\n\n\n")
    assert spm().encode("\n" * 8, bos=False) == [three, three, two]
    assert spm().encode("\n" * 4, bos=False) == [three, tokens.index("\n")]
    assert spm().encode("a<b>a", bos=False)[1] == tokens.index("<b>")


def test_runs_of_spaces_are_merged() -> None:
    """As in the reference, by rank: pairs first, so that five spaces are two and three."""
    tokens = spm_data().tokens
    two, three, four = (tokens.index(" " * n) for n in (2, 3, 4))
    assert spm().encode("    ", bos=False) == [four]
    assert spm().encode(" " * 5, bos=False) == [two, three]
    assert spm().encode(" " * 5, bos=False) == naive_spm(spm_data(), " " * 5)


def test_characters_without_a_piece_become_bytes() -> None:
    assert spm().encode("😀", bos=False) == [6 + byte for byte in "😀".encode()]
    assert spm().token_bytes(6 + 0xF0) == b"\xf0"


def test_the_text_of_a_byte_token_is_just_text() -> None:
    """ "<0x41>" in a text is six characters, not the byte token for A."""
    ids = spm().encode("<0x41><bos>", bos=False)
    assert spm().decode(ids) == "<0x41><bos>"
    assert 6 + 0x41 not in ids
    assert spm_data().bos_id not in ids


def test_broken_bytes_decode_to_one_mark_for_each_maximal_part() -> None:
    """The rule of Tokenizer.decode; a valid character next to broken bytes survives."""
    ids = [6 + byte for byte in b"\xe4\xb8\xf0\x9f\x98\x80\xff\x41"]
    assert spm().decode(ids) == "\ufffd😀\ufffdA"


def test_bos_is_the_models_wish() -> None:
    assert spm().encode("the")[0] == spm_data().bos_id
    assert spm().decode(spm().encode("the"), skip_special=True) == "the"


def test_lone_surrogates_are_an_input_error() -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        spm().encode("\ud83d")
