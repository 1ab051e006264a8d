"""Pack and Batch: sequences to micro-batches.

Several short sequences share a micro-batch as sequences of their own: each begins at position 0 and
sees nothing of the others. Pack fills micro-batches of at most `rows` positions and `sequences`
sequences by best fit, longest first (Johnson, "Near-optimal bin packing algorithms", 1973: at most
11/9 of the fewest that are possible, and a few).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rebar.dataflow.data.footprint import SLOT, items_bytes
from rebar.dataflow.data.mask import Example
from rebar.dataflow.data.stage import Item, Stage
from rebar.errors import DataError
from rebar.graph.batch import Batch

Group = tuple[Example, ...]
TUPLE = sys.getsizeof(())


class Pack(Stage[Example, Group]):
    """All sequences of one call to as few groups as best fit finds; within a group, and among
    groups by their first, they keep their order.
    """

    def __init__(self, rows: int, sequences: int) -> None:
        super().__init__()
        if rows < 1 or sequences < 1:
            raise DataError("a micro-batch needs room for 1 row and 1 sequence. Give more.")
        self._rows, self._sequences = rows, sequences

    @property
    def settings(self) -> Mapping[str, str | int]:
        """Rows and sequences of a micro-batch."""
        return {"rows": self._rows, "sequences": self._sequences}

    def process_batch(self, batch: Sequence[Item[Example]]) -> list[Item[Group]]:
        """Groups; each carries the numbers of its first sequence. Raises DataError for a sequence
        longer than a micro-batch.
        """
        groups = self._groups([len(item.value.ids) for item in batch])
        return [
            batch[group[0]].having(tuple(batch[number].value for number in group))
            for group in groups
        ]

    def _groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Numbers of the sequences of each group."""
        groups: list[list[int]] = []
        left: list[int] = []  # rows still free in each
        for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
            length = lengths[number]
            if length > self._rows:
                raise DataError(
                    f"a sequence of {length} positions is longer than a micro-batch of "
                    f"{self._rows}. Cut sequences shorter, or give more rows."
                )
            fitting = [
                (rows, g)
                for g, rows in enumerate(left)
                if rows >= length and len(groups[g]) < self._sequences
            ]
            if fitting:
                _, group = min(fitting)
                groups[group].append(number)
                left[group] -= length
            else:
                groups.append([number])
                left.append(self._rows - length)
        return sorted(map(sorted, groups))

    def get_memory_footprint(self, batch: Sequence[Item[Example]]) -> int:
        """Sequences are only grouped."""
        groups = self._groups([len(item.value.ids) for item in batch])
        return items_bytes(len(groups)) + len(groups) * TUPLE + len(batch) * SLOT


class BatchStage(Stage[Group, Batch]):
    """Groups to what the learner takes."""

    @property
    def name(self) -> str:
        """As the others."""
        return "batch"

    def process_batch(self, batch: Sequence[Item[Group]]) -> list[Item[Batch]]:
        """A Batch for each group; the arrays are the same."""
        return [item.having(Batch(tuple((e.ids, e.targets) for e in item.value))) for item in batch]

    def get_memory_footprint(self, batch: Sequence[Item[Group]]) -> int:
        """Pairs, and a tuple of them."""
        sequences = sum(len(item.value) for item in batch)
        each = TUPLE + sys.getsizeof(Batch(()))
        return items_bytes(len(batch)) + len(batch) * each + sequences * (SLOT + TUPLE + 2 * SLOT)
