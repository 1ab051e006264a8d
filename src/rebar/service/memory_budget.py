"""How far the cache may be filled, from what memory did so far. Pure: it is told what happened.

Two things are measured. A running choice that finds no block for its next position costs a
pre-emption: computed work is thrown away. So every choice that runs has some blocks kept for it
before another is let in, more after each pre-emption and fewer again when there are none. And the
cache is memory that the system gives only when it is touched: where others have taken it since, the
blocks never used yet are held back.
"""

from __future__ import annotations

MOST_BLOCKS = 4
"""Kept for a running choice. Four simulated crowds in caches for 2 to 15 of them computed 5 to 67 %
twice with one block, 4 to 54 % with four in as much time; with eight fewer run than is gained."""
CALM_STEPS = 128
"""So many steps without a pre-emption for memory, and one block less is kept for each."""
SPARE_BYTES = 128 << 20
"""Left to everything else on the machine."""
EASE = 4
"""When memory comes back one of so many parts of it is trusted at each look."""


class Margin:
    """Blocks kept for each running choice when another one wants in: `blocks`, at least one."""

    def __init__(self) -> None:
        self.blocks = 1
        self._calm = 0

    def pre_empted(self) -> None:
        """Memory ran out under those that run."""
        self.blocks = min(2 * self.blocks, MOST_BLOCKS)
        self._calm = 0

    def stepped(self) -> None:
        """A step without that."""
        self._calm += 1
        if self._calm >= CALM_STEPS and self.blocks > 1:
            self.blocks -= 1
            self._calm = 0


def held_back(before: int, fresh: int, available: int, block_bytes: int) -> int:
    """Of `fresh` blocks that were never used how many the machine has no memory for.

    available: bytes that the machine could give now. before: the answer of the look before; less
    memory counts at once, more of it bit by bit.
    """
    covered = max(0, available - SPARE_BYTES) // block_bytes
    missing = max(0, fresh - covered)
    if missing < before:
        missing = before - max(1, (before - missing) // EASE)
    return min(missing, fresh)
