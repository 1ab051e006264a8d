"""Data sets made of others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rebar.dataflow.data.parts import Concat, Subset, divided


class Letters:
    """The letters of a word, numbered. Counts how often its digest is asked for."""

    def __init__(self, word: str) -> None:
        self._word, self.asked = word, 0

    @property
    def digest(self) -> str:
        self.asked += 1
        return self._word

    def __len__(self) -> int:
        return len(self._word)

    def raws(self, samples: NDArray[np.int64]) -> Sequence[str]:
        return [self._word[n] for n in samples]

    def where(self, sample: int) -> str:
        return f"{self._word}, letter {sample}"


@given(st.data(), st.integers(1, 3000), st.integers(-3, 2**40))
def test_both_parts_are_the_whole(data: st.DataObject, count: int, seed: int) -> None:
    """Each in the order of the data set, and decided by the seed alone."""
    held = data.draw(st.integers(0, count))
    learned, kept = divided(count, held, seed)
    assert len(kept) == held
    assert sorted([*learned.tolist(), *kept.tolist()]) == list(range(count))
    for part in (learned, kept):
        assert (np.diff(part) > 0).all()
    assert all(map(np.array_equal, divided(count, held, seed), (learned, kept)))


def test_seeds_hold_out_others() -> None:
    assert len({divided(100, 10, seed)[1].tobytes() for seed in range(20)}) == 20


def test_a_part_names_its_samples_when_asked() -> None:
    """A folder of images reads all of its files for its digest: who only looks at some, or serves,
    does not wait for that, and nobody does twice.
    """
    whole = Letters("abcdef")
    part, other = Subset(whole, np.array([1, 4])), Subset(whole, np.array([1, 5]))
    assert (len(part), part.raws(np.array([1, 0])), whole.asked) == (2, ["e", "b"], 0)
    assert part.where(1) == "abcdef, letter 4"
    assert part.digest == part.digest != other.digest
    assert whole.asked == 2
    assert part.digest != Subset(Letters("abcdeg"), np.array([1, 4])).digest


@given(st.lists(st.text("xyz", max_size=5), max_size=5), st.data())
def test_several_in_a_row(words: list[str], data: st.DataObject) -> None:
    """Any samples in any order, of sets of which some are empty."""
    sets = [Letters(word) for word in words]
    row = Concat(sets)
    whole = "".join(words)
    assert len(row) == len(whole)
    if whole:
        asked = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=9))
        assert list(row.raws(np.array(asked, np.int64))) == [whole[n] for n in asked]
        places = [f"{word}, letter {n}" for word in words for n in range(len(word))]
        assert [row.where(n) for n in range(len(whole))] == places


@pytest.mark.parametrize("words", [(), ("ab", "c"), ("a", "bc"), ("a", "b", "c")])
def test_where_one_ends_is_part_of_the_name(words: tuple[str, ...]) -> None:
    others = [("abc",), ("ab", "c", ""), ("c", "ab")]
    names = {Concat([Letters(word) for word in some]).digest for some in (words, *others)}
    assert len(names) == 4
