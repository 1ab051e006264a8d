from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.dataflow.text.learn_bpe import _WORD, learn_bpe
from rebar.errors import InputError

BOOK = (Path(__file__).parents[1] / "data" / "northanger_abbey.txt").read_text(encoding="utf-8")


def counted_anew(text: str, count: int) -> list[str]:
    """Every pair of every word counted again for every merge: slow, and what is meant."""
    words = Counter(tuple(bytes([b]) for b in word.encode()) for word in _WORD.findall(text))
    found = []
    for _ in range(count):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        found.append((best[0] + best[1]).decode("latin-1"))
        after: Counter[tuple[bytes, ...]] = Counter()
        for word, times in words.items():
            out: list[bytes] = []
            for part in word:
                if out and (out[-1], part) == best:
                    out[-1] += part
                else:
                    out.append(part)
            after[tuple(out)] += times
        words = after
    return found


def test_it_learns_what_counting_anew_learns() -> None:
    data = learn_bpe(BOOK, 257 + 120)
    tokenizer = Tokenizer(build_vocabulary(data))
    learned = [tokenizer.token_bytes(id).decode("latin-1") for id in range(257, 377)]
    assert learned == counted_anew(BOOK, 120)


@pytest.mark.parametrize("size", [257, 300, 1500])
def test_every_text_goes_through_it_and_comes_back(size: int) -> None:
    tokenizer = Tokenizer(build_vocabulary(learn_bpe(BOOK, size)))
    assert tokenizer.vocab_size == size
    for text in (BOOK, "naïve 世界 😀\r\n\tx  y", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert size > 257 or len(ids) == len(text.encode())
    assert len(Tokenizer(build_vocabulary(learn_bpe(BOOK, 1500))).encode(BOOK)) < len(BOOK) / 2.5


def test_it_stops_where_nothing_occurs_twice() -> None:
    assert len(learn_bpe("abc", 5000).tokens) == 257
    assert learn_bpe("ababab", 5000).tokens[257:] == ["ab", "abab"]


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="--tokenizer"):
        learn_bpe("text", 256)
