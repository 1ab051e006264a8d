"""Mask: ids and marks to what a model is asked: (ids, targets).

targets[i] is the id that follows ids[i] where that is asked for, NOT_ASKED elsewhere. So n ids ask
at most n - 1 questions, and the last of them is in `targets` alone. Positions after the last
question are left out: nothing that is learned depends on them.

A conversation longer than the context is cut at its end (or passed over, or an error, by `long`);
where nothing asked for is left, the sample is passed over. A document is cut into pieces that have
one id in common, so that each of its ids but the first is asked for once. Everything of that kind
is counted: `cut`, `too_long`, `nothing_asked`, `pieces`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.faults import Where
from rebar.dataflow.data.footprint import array_bytes, items_bytes, view_bytes
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.data.tokenize import Marked
from rebar.errors import DataError
from rebar.graph.batch import NOT_ASKED

Long = Literal["cut", "skip", "raise"]


class Example(msgspec.Struct, frozen=True):
    """One sequence: ids (n,), targets (n,) int32. asked: how many targets are not NOT_ASKED."""

    ids: NDArray[np.int32]
    targets: NDArray[np.int32]
    asked: int


EXAMPLE = sys.getsizeof(Example(np.empty(0, np.int32), np.empty(0, np.int32), 0))


class Mask(Stage[Marked, Example]):
    """Marked ids to sequences of at most `rows` positions."""

    def __init__(self, rows: int, where: Where, long: Long = "cut") -> None:
        """long: what happens to a conversation of more than rows + 1 ids."""
        super().__init__()
        if rows < 1:
            raise DataError(f"sequences of {rows} positions hold nothing. Give 1 or more.")
        self._rows = rows
        self._where = where
        self._long = long

    @property
    def settings(self) -> Mapping[str, str | int]:
        """Longest sequence, and the rule for longer ones."""
        return {"rows": self._rows, "long": self._long}

    def process_batch(self, batch: Sequence[Item[Marked]]) -> list[Item[Example]]:
        """One item for each sequence with something asked for."""
        done: list[Item[Example]] = []
        for item in batch:
            made = self._pieces(item) if item.value.document else self._whole(item)
            found = [item.having(example, piece) for piece, example in enumerate(made)]
            if not found:
                self.tally.add("nothing_asked", where=self._where(item.sample))
            done += found
        return done

    def _whole(self, item: Item[Marked]) -> Iterator[Example]:
        ids, asked = item.value.ids, item.value.asked
        if len(ids) > self._rows + 1:
            if self._long == "raise":
                raise DataError(
                    f"{self._where(item.sample)}: {len(ids)} ids, sequences have room for "
                    f"{self._rows + 1}. Give a longer context, or choose long='cut' or 'skip'."
                )
            self.tally.add("cut" if self._long == "cut" else "too_long")
            if self._long == "skip":
                return
        asked = np.ones(len(ids), bool) if asked is None else asked
        places = np.flatnonzero(asked[1 : self._rows + 1])
        if places.size:
            last = int(places[-1]) + 1
            targets = np.where(asked[1 : last + 1], ids[1 : last + 1], np.int32(NOT_ASKED))
            yield Example(ids[:last], targets, len(places))

    def _pieces(self, item: Item[Marked]) -> Iterator[Example]:
        ids = item.value.ids
        for begin in range(0, len(ids) - 1, self._rows):
            targets = ids[begin + 1 : begin + self._rows + 1]
            yield Example(ids[begin : begin + len(targets)], targets, len(targets))
            if begin:
                self.tally.add("pieces")

    def get_memory_footprint(self, batch: Sequence[Item[Marked]]) -> int:
        """Documents are only looked into; a conversation gets targets of its own."""
        total = count = 0
        for item in batch:
            length = len(item.value.ids)
            if item.value.document:
                pieces = -(-(length - 1) // self._rows) if length > 1 else 0
                count += pieces
                total += pieces * (EXAMPLE + 2 * view_bytes(1))
            elif length <= self._rows + 1 or self._long == "cut":
                asked = item.value.asked
                last = length if asked is None else _last(asked[: self._rows + 1])
                if last > 0:
                    count += 1
                    total += EXAMPLE + view_bytes(1) + array_bytes(last, np.int32)
        return items_bytes(count) + total


def _last(asked: NDArray[np.bool_]) -> int:
    """The last index that is asked for; 0 if none is, since nothing comes before the first id."""
    back = int(np.argmax(asked[::-1]))
    return len(asked) - 1 - back if len(asked) and asked[len(asked) - 1 - back] else 0
