"""How many positions of prompts a step may hold, from what positions have cost so far.

Whoever decodes waits for the whole step, so a step beside decoding choices is kept to STEP_SECONDS.
Nobody's bits depend on it: prompts may be cut anywhere.
"""

from __future__ import annotations

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
MAX_JUMP = 4.0
"""A step that took longer than this many times what was expected was held up by something else."""


class RowBudget:
    """Learns the seconds a position costs. Pure: it is told the times.

    The cost falls with the size of a step, so only steps that held a prompt are counted, which are
    of about the size that is asked for: the estimate settles where it and the size agree.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.row_seconds: float | None = None

    def prompt_rows(self, decoding: int) -> int:
        """Positions of prompts for the next step, which also holds one of each that decodes."""
        most = self.max_rows - decoding
        if self.row_seconds is None:
            return min(most, FIRST_ROWS if decoding else self.max_rows)
        seconds = STEP_SECONDS if decoding else ALONE_SECONDS
        return min(most, max(LEAST_ROWS, int(seconds / self.row_seconds) - decoding))

    def measured(self, rows: int, seconds: float) -> None:
        """Books a step of `rows` positions, some of them of prompts."""
        cost = max(seconds, 1e-9) / rows
        if self.row_seconds is None:
            self.row_seconds = cost
        else:
            cost = min(cost, MAX_JUMP * self.row_seconds)
            self.row_seconds += (cost - self.row_seconds) / 4
