"""What happened to one choice and why it waited. Pure: it is told the time, in seconds."""

from __future__ import annotations

from rebar.service.messages import ChoiceRecord, WaitReason


class Journal:
    """Times are those of one clock; the record counts from the choice's arrival."""

    __slots__ = (
        "_reason",
        "_since",
        "admitted",
        "arrived",
        "cached",
        "drafted",
        "drafted_right",
        "first_token",
        "preempted",
        "steps",
        "waits",
    )

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.preempted = self.steps = 0
        self.cached = 0
        self.drafted = self.drafted_right = 0
        self.waits: dict[WaitReason, float] = {}
        self._reason: WaitReason | None = "order"
        self._since = arrived

    def waits_for(self, reason: WaitReason | None, now: float) -> None:
        """From now on it waits for `reason`, or for nothing."""
        if reason == self._reason:
            return
        if self._reason is not None:
            self.waits[self._reason] = self._waited(now)
        self._reason, self._since = reason, now

    def _waited(self, now: float) -> float:
        if self._reason is None:
            return 0.0
        return self.waits.get(self._reason, 0.0) + max(0.0, now - self._since)

    def admit(self, now: float) -> None:
        """It begins, or begins again."""
        if self.admitted is None:
            self.admitted = now
        self.waits_for(None, now)

    def skip(self, positions: int) -> None:
        """Others had computed these positions; what it had computed itself does not count."""
        if not self.preempted:
            self.cached += positions

    def preempt(self, now: float) -> None:
        """It gave up its place and its memory."""
        self.preempted += 1
        self.waits_for("preempted", now)

    def step(self, now: float, sampled: bool) -> None:
        """A step computed some of it. sampled: its prompt is complete and has an answer."""
        self.steps += 1
        if sampled and self.first_token is None:
            self.first_token = now

    def guess(self, guesses: int, right: int) -> None:
        """A step went on over so many guesses, of which so many stood."""
        self.drafted += guesses
        self.drafted_right += right

    def record(self, priority: int, now: float) -> ChoiceRecord:
        """All of it up to now."""
        waits = dict(self.waits)
        if self._reason is not None:
            waits[self._reason] = self._waited(now)
        return ChoiceRecord(
            priority=priority,
            admitted=self._after(self.admitted),
            first_token=self._after(self.first_token),
            seconds=now - self.arrived,
            preempted=self.preempted,
            steps=self.steps,
            cached_tokens=self.cached,
            drafted=self.drafted,
            accepted=self.drafted_right,
            waits={reason: seconds for reason, seconds in waits.items() if seconds > 0},
        )

    def _after(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.arrived
