"""What is taken for text, and what is refused."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from rebar.cli.text import read_text
from rebar.errors import InputError


@pytest.mark.parametrize("text", ["", "hello", "- a list", "--", "-- what", "-5", "世界 😀"])
def test_an_argument_is_the_text(text: str) -> None:
    assert read_text(text) == text


def test_a_hyphen_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "two\r\nlines 😀"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))
    assert read_text("-") == given


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        read_text(b"a\xff".decode("utf-8", "surrogateescape"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    with pytest.raises(InputError, match="not UTF-8"):
        read_text("-")


@pytest.mark.parametrize("text", ["--sed", "--max-token=5"])
def test_a_misspelled_flag_is_not_taken_for_the_prompt(text: str) -> None:
    """`rebar generate --sed 3` once continued the text "--sed"."""
    with pytest.raises(InputError, match="no flag"):
        read_text(text)
