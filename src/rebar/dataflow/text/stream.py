"""Ids to text as they come: whole characters, and nothing a stop string might still swallow."""

from __future__ import annotations

import codecs

from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import InputError


class TextStream:
    """The text of one growing list of ids.

    Whatever push() and finish() return, joined, is decode() of all ids, cut before the first stop
    string. A character is given out when its last byte is there; bytes that can no longer become
    one are U+FFFD, by the rule of Tokenizer.decode. Of the text only a suffix that is a proper
    beginning of a stop string is held back. The stop string that is complete first wins; of those
    that end at the same character, the longest. So the result does not depend on how the text was
    cut into ids. One id costs about a microsecond.
    """

    __slots__ = (
        "_at_start",
        "_held",
        "_pending",
        "_search",
        "_skip_special",
        "_tokenizer",
        "met",
    )

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), skip_special: bool = True
    ) -> None:
        """stop: strings that end the text, themselves left out. InputError for an
        empty one and for lone surrogates."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._search = StopSearch(stop) if stop else None
        self._pending = b""
        self._held = ""
        self._at_start = tokenizer.add_space_prefix
        self.met: str | None = None  # the stop string that ended the text

    @property
    def stopped(self) -> bool:
        """A stop string was met; only text before it was given out."""
        return self.met is not None

    def push(self, id: int) -> str:
        """Text that may be shown now. "" once stopped."""
        data = self._pending + self._tokenizer.stream_bytes(id, self._skip_special)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return self._release(text) if text else ""

    def finish(self) -> str:
        """What is left at the end: a broken character as U+FFFD, held text that became no stop."""
        text, _ = codecs.utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        text = self._release(text)
        text += self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.met is not None:
            return ""
        if self._at_start and text:  # as decode(): the space that encode() put before the text
            self._at_start = False
            text = text.removeprefix(" ")
        if self._search is None:
            return text
        end, hold = self._search.feed(text)
        whole = self._held + text
        if end is not None:
            cut = len(self._held) + end - hold
            self.met = whole[cut : cut + hold]
            self._held = ""
            return whole[:cut]
        self._held = whole[len(whole) - hold :]
        return whole[: len(whole) - hold]


class StopSearch:
    """Looks for several strings in text that comes in pieces; linear time.

    Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977.
    """

    __slots__ = ("_fallbacks", "_firsts", "_matched", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        if any(not stop for stop in stops):
            raise InputError("a stop string is empty. Leave it out.", param="stop")
        if any("\ud800" <= char <= "\udfff" for stop in stops for char in stop):
            raise InputError(
                "a stop string holds a lone surrogate, which no text contains. Send Unicode text.",
                param="stop",
                code="invalid_unicode",
            )
        self._stops = stops
        self._fallbacks = [_fallback(stop) for stop in stops]
        self._matched = [0] * len(stops)
        self._firsts = frozenset(stop[0] for stop in stops)

    def feed(self, text: str) -> tuple[int | None, int]:
        """Goes on by `text`.

        (end, n): end in `text` of the first complete match, and its length. (None, n): no match
        yet, the last n characters are the beginning of one.
        """
        if not any(self._matched) and self._firsts.isdisjoint(text):
            return None, 0
        for at, char in enumerate(text):
            found = 0
            for i, stop in enumerate(self._stops):
                state = self._advance(i, stop, char)
                if state == len(stop):
                    found = max(found, state)
            if found:
                return at + 1, found
        return None, max(self._matched)

    def _advance(self, i: int, stop: str, char: str) -> int:
        """Characters of stop i that match up to and with `char`."""
        state = self._matched[i]
        while state and stop[state] != char:
            state = self._fallbacks[i][state - 1]
        if stop[state] == char:
            state += 1
        self._matched[i] = state
        return state


def _fallback(stop: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        if stop[i] == stop[length]:
            length += 1
        table[i] = length
    return table
