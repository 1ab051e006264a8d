"""TextWindows: one long text for a trainer, cut into pieces of one length.

An epoch's pieces begin at an offset of its own, so that a border between two is nowhere for ever,
and come in an order of its own; both are functions of seed and epoch. A piece asks for the id that
follows each of its positions.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.order import generator, samples_at
from rebar.errors import DataError
from rebar.graph.batch import Batch
from rebar.graph.window import Position, Window

Ids = NDArray[np.int32]


class TextWindows:
    """A BatchSource over the ids of a text.

    context: positions of a piece. samples: pieces a window. rows: positions a micro-batch may have.
    Raises DataError for a text that is shorter than two pieces, and for sizes that hold nothing.
    """

    def __init__(
        self, ids: Ids, *, context: int, samples: int, rows: int, seed: int = 0, epochs: int = 1
    ) -> None:
        if min(context, samples, epochs) < 1 or rows < context:
            raise DataError(
                f"pieces of {context} positions in micro-batches of {rows}, {samples} a step, "
                f"{epochs} epochs: each must be 1 or more and a piece fit a micro-batch. Give a "
                "larger --batch-tokens or a smaller --context."
            )
        if len(ids) < 2 * context + 1:
            raise DataError(
                f"{len(ids):,} tokens of text are less than two pieces of {context}. Give more "
                "text or a smaller --context."
            )
        self._ids = np.ascontiguousarray(ids, dtype=np.int32)
        self._context, self._samples, self._rows = context, samples, rows
        self._seed, self._epochs = seed, epochs
        self._pieces = (len(ids) - context) // context  # as many behind the largest offset
        self._epoch = self._place = 0

    @property
    def digest(self) -> str:
        """Of the ids and of what cuts and orders them."""
        said = hashlib.sha256(self._ids.tobytes())
        said.update(repr((self._context, self._samples, self._rows, self._seed)).encode())
        return said.hexdigest()

    @property
    def windows(self) -> int:
        """From the first epoch to the last."""
        return self._epochs * -(-self._pieces // self._samples)

    @property
    def position(self) -> Position:
        """Epoch, and place in its order."""
        return {"epoch": self._epoch, "place": self._place}

    def restore(self, position: Position) -> None:
        """Goes there."""
        self._epoch, self._place = int(position["epoch"]), int(position["place"])

    def next_window(self) -> Window[Batch] | None:
        """The next pieces; None after the last epoch."""
        if self._epoch >= self._epochs:
            return None
        epoch, begin = self._epoch, self._place
        end = min(begin + self._samples, self._pieces)
        self._epoch, self._place = (epoch, end) if end < self._pieces else (epoch + 1, 0)
        offset = int(generator(self._seed, epoch, 0, "offset").integers(self._context))
        chosen = samples_at(np.arange(begin, end), self._pieces, self._seed, epoch)
        pieces = [pairs(self._ids, offset + int(i) * self._context, self._context) for i in chosen]
        tokens = len(pieces) * self._context
        return Window(
            grouped(pieces, max(1, self._rows // self._context)),
            supervised=tokens,
            samples=tuple(map(int, chosen)),
            tokens=tokens,
        )


def pairs(ids: Ids, begin: int, count: int) -> tuple[Ids, Ids]:
    """`count` ids at most, from `begin` on, and those that follow them."""
    targets = ids[begin + 1 : begin + 1 + count]
    return ids[begin : begin + len(targets)], targets


def grouped(pieces: list[tuple[Ids, Ids]], most: int) -> tuple[Batch, ...]:
    """Batches of at most so many pieces."""
    cuts = range(0, len(pieces), most)
    return tuple(Batch(tuple(pieces[begin : begin + most])) for begin in cuts)


def whole_text(ids: Ids, *, context: int, rows: int) -> tuple[Batch, ...]:
    """All of a text once, in order, for evaluation."""
    pieces = [pairs(ids, begin, context) for begin in range(0, len(ids) - 1, context)]
    return grouped(pieces, max(1, rows // context))
