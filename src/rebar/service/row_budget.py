"""How many positions of prompts a step may hold, from what steps have cost so far.

Whoever decodes waits for the whole step, so a step beside decoding choices is kept to STEP_SECONDS.
Nobody's bits depend on it: prompts may be cut anywhere.
"""

from __future__ import annotations

from rebar.service.step_cost import StepCost, StepWork

STEP_SECONDS = 0.050
"""Twenty tokens a second is faster than anybody reads. SmolLM2 on two cores computes some 80
positions in this time, at 0.64 ms each instead of 0.55 ms in steps of 512: protection costs a
prompt a seventh of its speed."""
ALONE_SECONDS = 0.250
"""Where nobody decodes the step bounds only how long a newcomer waits for its first look."""
LEAST_ROWS = 16
"""A prompt always advances by a block, however slow the model: nobody starves."""
FIRST_ROWS = 64
"""Beside decoding choices while nothing has been measured."""
MAX_STRAIN = 2.0
"""A machine may be so much less even than its average before prompts are cut no shorter for it."""
CALM = 16.0
"""Steps over which a machine that was uneven is trusted again."""


class RowBudget:
    """Learns what steps cost. Pure: it is told the times.

    The times are a bound, not an average: what steps took longer than expected (`strain`) is taken
    off at once and given back slowly, so that a machine that stutters gets shorter steps and the
    size does not swing with every one of them.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.cost = StepCost()
        self.strain = 1.0

    def prompt_rows(self, beside: StepWork, first: int = 0) -> int:
        """Positions of prompts, from position `first` on, for a step that also holds `beside`: one
        position of each choice that decodes.
        """
        most = self.max_rows - beside.positions
        if not self.cost.known:
            return min(most, FIRST_ROWS if beside.positions else self.max_rows)
        seconds = STEP_SECONDS if beside.positions else ALONE_SECONDS
        fitting = self.cost.positions(beside, first, seconds / self.strain)
        return min(most, max(LEAST_ROWS, fitting))

    def prompt_seconds(self, first: int, count: int) -> float:
        """What `count` positions of a prompt from `first` on will take alone; 0 if unknown."""
        return self.cost.seconds(StepWork().and_row(first, count))

    def measured(self, work: StepWork, seconds: float) -> None:
        """Books a step that held positions of prompts."""
        longer = min(self.cost.measured(work, seconds), MAX_STRAIN)
        if longer > self.strain:
            self.strain += (longer - self.strain) / 2
        else:
            self.strain += (max(longer, 1.0) - self.strain) / CALM
