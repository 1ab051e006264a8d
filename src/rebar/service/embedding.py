"""One text as one vector: hidden states behind the final norm, pooled and scaled to length 1.

The law: the bits depend on the weights, the ids and the pooling alone. States are added in float64
in the order of their positions, so a text that is computed in pieces, or computed again from its
middle after it had to give up its memory, comes to the same sum; the length is exactly rounded
(math.fsum). What is not the text's own, its neighbours and threads, the runner keeps out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rebar.errors import EngineError
from rebar.graph.sequence import Row, Sampled
from rebar.service.generation import Generation
from rebar.service.interfaces import StreamingText
from rebar.service.messages import Delta, RequestPacket

FLOAT32 = np.dtype("<f4")


class PooledGeneration(Generation):
    """A choice that says nothing and ends with a vector. Everything else, from its rank to its
    blocks, is as with any other; blocks it computed are there for others, but for a mean it reads
    every position's state, and so skips none that it has not read.
    """

    __slots__ = ("_sum",)

    def __init__(self, packet: RequestPacket, text: StreamingText, now: float = 0.0) -> None:
        super().__init__(packet, text, now)
        self._sum: NDArray[np.float64] | None = None
        if packet.pooling == "mean":
            self._asked = 0

    def row(self, count: int) -> Row:
        """The next `count` positions; states of those that are pooled and not yet added."""
        row = super().row(count)
        return Row(row.sequence, row.first, row.count, row.wants, hidden=True)

    def take(self, row: Row, answers: list[Sampled]) -> Delta:
        """Adds the states of a computed row; after the last one says the vector."""
        if len(answers) != len(row.wants):
            raise EngineError(f"{len(row.wants)} positions were wanted, {len(answers)} came back.")
        for answer in answers:
            state = np.frombuffer(answer.hidden, np.float32).astype(np.float64)
            self._sum = state if self._sum is None else self._sum + state
        sequence = self.sequence
        sequence.computed = row.first + row.count
        self._asked = max(self._asked, sequence.computed)
        delta = Delta(ticket=self.packet.ticket)
        if sequence.computed == sequence.total and self._sum is not None:
            delta.vector, delta.finish = unit(self._sum).tobytes(), "stop"
        return delta


def unit(vector: NDArray[np.float64]) -> NDArray[np.float32]:
    """The vector at length 1; one of zeros stays as it is."""
    length = math.sqrt(math.fsum(vector * vector))
    return (vector / length if length else vector).astype(FLOAT32)


def shortened(vector: bytes, dimensions: int | None) -> NDArray[np.float32]:
    """The first `dimensions` numbers, at length 1 again; all of them for None."""
    whole = np.frombuffer(vector, FLOAT32)
    return whole if dimensions is None else unit(whole[:dimensions].astype(np.float64))
