"""What a step with a prompt in it costs, learned from the steps that were made. Pure: no clock.

Seconds = p * positions + a * positions attended to: the products with the weights, and attention,
which grows with depth. Both are fitted to the latest steps by least squares of relative errors,
neither below zero. Steps that are alike cannot tell the two apart; then it is as was believed at
first, all of it in the positions, and an estimate for other steps of that kind is right anyway.

There is no price of a step as such: sizes follow from prices, so on a machine that becomes slower
small steps would seem to take as long as large ones had, all of it the step's, and ever smaller
ones would be asked for.
"""

from __future__ import annotations

from typing import NamedTuple

MEMORY_STEPS = 32.0
"""So many steps count: a second or two. A neighbour that comes or goes is noticed in that time."""
DOUBT = 0.25
"""What was believed at first weighs as much as a quarter of a step."""
MAX_JUMP = 4.0
"""A step that took longer than this many times what was expected was held up by something else."""


class StepWork(NamedTuple):
    """positions: computed. attended: keys looked at, summed over them."""

    positions: int = 0
    attended: int = 0

    def and_row(self, first: int, count: int) -> StepWork:
        """With a row of `count` positions from `first` on."""
        attended = count * first + count * (count + 1) // 2
        return StepWork(self.positions + count, self.attended + attended)


class StepCost:
    """seconds(work) after measured(work, seconds) of other steps; `known` when there were any."""

    def __init__(self) -> None:
        self._weight = 0.0
        # Decayed sums over steps of positions and attended a second, their squares and product.
        self._positions = self._attended = 0.0
        self._positions2 = self._attended2 = self._both = 0.0
        self._prices = (0.0, 0.0)

    @property
    def known(self) -> bool:
        """Whether any step was measured."""
        return self._weight > 0

    def seconds(self, work: StepWork) -> float:
        """What a step of this work is expected to take; 0 before any was measured."""
        position, attended = self._prices
        return position * work.positions + attended * work.attended

    def positions(self, beside: StepWork, first: int, seconds: float) -> int:
        """How many positions of a prompt, from `first` on, a step of `seconds` holds `beside`
        other work.
        """
        position, attended = self._prices
        left = max(seconds - self.seconds(beside), 0.0)
        # a n^2 / 2 + (p + a first) n = left, in the form that does not lose digits for a small a
        linear = position + attended * first
        return int(2 * left / max(linear + (linear * linear + 2 * attended * left) ** 0.5, 1e-12))

    def measured(self, work: StepWork, seconds: float) -> float:
        """Books a step; by how much it was longer than expected: a factor, 1 for the first."""
        seconds = max(seconds, 1e-9)
        expected = self.seconds(work)
        longer = min(seconds / expected, MAX_JUMP) if expected > 0 else 1.0
        booked = longer * expected if expected > 0 else seconds
        positions, attended = work.positions / booked, work.attended / booked
        keep = 1 - 1 / MEMORY_STEPS
        self._weight = self._weight * keep + 1
        self._positions = self._positions * keep + positions
        self._attended = self._attended * keep + attended
        self._positions2 = self._positions2 * keep + positions * positions
        self._attended2 = self._attended2 * keep + attended * attended
        self._both = self._both * keep + positions * attended
        self._prices = self._fit()
        return longer

    def _fit(self) -> tuple[float, float]:
        """Prices of least relative error: the normal equations of the shares of a typical step,
        for the prices themselves are powers of ten apart.
        """
        p, a = self._positions / self._weight, self._attended / self._weight
        pp, aa = self._positions2 / (p * p) + DOUBT, self._attended2 / (a * a) + DOUBT
        pa, right_p, right_a = self._both / (p * a), self._weight + DOUBT, self._weight
        determinant = pp * aa - pa * pa
        share_p = (right_p * aa - right_a * pa) / determinant
        share_a = (right_a * pp - right_p * pa) / determinant
        if share_a < 0:
            share_p, share_a = right_p / pp, 0.0
        elif share_p < 0:
            share_p, share_a = 0.0, right_a / aa
        return share_p / p, share_a / a
