"""How many ids texts will become, from stretches of them.

Texts are sorted by how wide their characters are, since scripts differ tenfold in ids a character.
Of each kind a sixteenth, and 8,192 characters more, are encoded, in stretches that begin at even
distances in all the texts of a row; each stands for that distance, with its ids a character. What a
template adds to messages is counted once for each sequence of roles, on messages that say "x".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rebar.dataflow.data.parse import Json
from rebar.dataflow.text.chat import ChatTemplate
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import RebarError

STRETCH = 512  # characters; what is cut at both of its ends makes half a percent of difference
LEAST, SHARE = 8192, 16
SHAPES = 1024  # sequences of roles that are remembered


class Estimate:
    """May be used by any thread."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._added: dict[tuple[str, ...], int] = {}

    def of_texts(self, texts: Sequence[str]) -> float:
        """Ids of all the texts together. Raises InputError for a lone surrogate."""
        kinds: dict[int, list[str]] = {}
        for text in texts:
            kinds.setdefault(_kind(text), []).append(text)
        return sum(map(self._of_kind, kinds.values()))

    def _of_kind(self, texts: list[str]) -> float:
        whole = sum(map(len, texts))
        wanted = LEAST + whole // SHARE
        if whole <= wanted:
            return sum(map(len, self._tokenizer.encode_arrays(texts)))
        step = whole * STRETCH // wanted
        stretches = list(_stretches(texts, step))
        ids = self._tokenizer.encode_arrays(stretches)
        rates = sum(len(i) / len(s) for i, s in zip(ids, stretches, strict=True))
        return whole * rates / len(stretches)

    def added(self, messages: Sequence[Json]) -> int:
        """Ids that the template adds to these messages."""
        roles = tuple(str(m.get("role")) for m in messages if isinstance(m, dict))
        known = self._added.get(roles)
        if known is None:
            known = self._count(roles)
            if len(self._added) < SHAPES:
                self._added[roles] = known
        return known

    def _count(self, roles: tuple[str, ...]) -> int:
        if self._template is None:
            return 0
        said = [{"role": role, "content": "x"} for role in roles]
        try:
            return len(self._template.encode(said, add_generation_prompt=False)) - len(said)
        except RebarError:
            return 0  # the samples themselves will be refused


def texts_of(messages: Sequence[Json], tools: Json) -> list[str]:
    """Everything that a conversation says."""
    found = [] if not tools else [msgspec.json.encode(tools).decode()]
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, str):
            found.append(content)
        elif content:
            found.append(msgspec.json.encode(content).decode())
        if calls := message.get("tool_calls"):
            found.append(msgspec.json.encode(calls).decode())
    return found


def _kind(text: str) -> int:
    """Bytes a character, in quarters: 4 is ASCII, 12 is Chinese."""
    if text.isascii():
        return 4
    return 4 * len(text.encode("utf-8", "surrogatepass")) // len(text)


def _stretches(texts: Sequence[str], step: int) -> Iterator[str]:
    """Stretches that begin every `step` characters of all the texts in a row."""
    next_, at = step // 2, 0
    for text in texts:
        while next_ < at + len(text):
            begin = max(0, min(next_ - at, len(text) - STRETCH))
            yield text[begin : begin + STRETCH]
            next_ += step
        at += len(text)
