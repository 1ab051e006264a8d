"""Whether a request may come in, and when one that may not should come back.

The queue is bounded twice: by choices, and by the tokens of prompts that wait or run, since one
long prompt is as much work as a hundred short ones. A high request may go an eighth beyond the
bounds and a low one stays a quarter below, so that a flood of one kind leaves a door to the others.
What finds nothing open is always let in. While nothing has ended yet, all that is open is taken to
end within MAX_RETRY_AFTER. Pure: it is told the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rebar.errors import OverloadedError
from rebar.service.messages import NORMAL

MEMORY_SECONDS = 10.0
"""Over so long a time the drain is averaged (the past fades by e): a few requests of a busy server,
and no memory of an hour ago."""
MAX_RETRY_AFTER = 60
KV_FILLINGS = 8
"""Prompts that may be open, in fillings of the KV cache: each gives up its room to the next, so a
newcomer waits for at most so many generations of requests."""


class DrainRate:
    """Things per second that come to their end, averaged over the latest MEMORY_SECONDS."""

    __slots__ = ("_count", "_since", "_then")

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._then = self._since = now

    def add(self, amount: float, now: float) -> None:
        """So much has ended now."""
        self._count = self._faded(now) + amount
        self._then = now

    def per_second(self, now: float) -> float:
        """The rate; in its first seconds over the time there has been."""
        seen = 1 - math.exp(-max(now - self._since, 1e-3) / MEMORY_SECONDS)
        return self._faded(now) / (MEMORY_SECONDS * seen)

    def _faded(self, now: float) -> float:
        return self._count * math.exp(-max(now - self._then, 0.0) / MEMORY_SECONDS)


@dataclass(slots=True)
class Load:
    """Choices, and tokens of their prompts."""

    choices: int = 0
    tokens: int = 0


class Admission:
    """Counts what is open against max_choices and max_tokens (0: no bound)."""

    def __init__(self, max_choices: int, max_tokens: int, now: float) -> None:
        self.max_choices = max_choices
        self.max_tokens = max_tokens
        self.open = Load()
        self._choices = DrainRate(now)
        self._tokens = DrainRate(now)

    def check(self, choices: int, tokens: int, priority: int, now: float) -> None:
        """Raises OverloadedError with the seconds after which there should be room."""
        if not self.open.choices:
            return
        eighths = 8 + (priority < NORMAL) - 2 * (priority > NORMAL)
        most = self.max_choices * eighths // 8
        over = self.open.choices + choices - most
        if over > 0:
            what = f"{self.open.choices} choices are open and {most} is the limit"
            least = self.open.choices / MAX_RETRY_AFTER
            raise self._refusal(what, over / max(self._choices.per_second(now), least))
        most = self.max_tokens * eighths // 8
        over = self.open.tokens + tokens - most
        if self.max_tokens and over > 0:
            what = f"prompts of {self.open.tokens} tokens are open and {most} is the limit"
            least = self.open.tokens / MAX_RETRY_AFTER
            raise self._refusal(what, over / max(self._tokens.per_second(now), least))

    def enter(self, tokens: int) -> None:
        """A choice comes in."""
        self.open.choices += 1
        self.open.tokens += tokens

    def leave(self, tokens: int, now: float) -> None:
        """A choice has ended, however."""
        self.open.choices -= 1
        self.open.tokens -= tokens
        self._choices.add(1, now)
        self._tokens.add(tokens, now)

    def _refusal(self, what: str, seconds: float) -> OverloadedError:
        after = min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER)
        return OverloadedError(f"{what}. Try again in {after} s.", retry_after=after)
