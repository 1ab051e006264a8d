"""One choice while the engine works on it: its ids, its text, and the rules by which it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile

from rebar._native import Lookup
from rebar.errors import EngineError
from rebar.graph.sequence import MAX_GUESSES, Row, Sampled, Sequence
from rebar.service.grammar import GrammarState
from rebar.service.interfaces import StreamingText
from rebar.service.journal import Journal
from rebar.service.messages import Delta, RequestPacket, TokenScore

PATIENCE_SECONDS = 60.0
"""A choice comes before those of the next higher priority that arrived so much later: that is how
it ages. Nothing starves, for nothing that arrives later than this comes before it; a burst of half
a minute leaves a high request alone. Ranks never change, so nobody is pre-empted back and forth.
"""
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class Generation:
    """A packet, its sequence and its text. Pure: no clock, no I/O. rank: the lower comes first.

    What a packet brings as already said is in the sequence and has gone through the text, so that
    everything afterwards is what it would have been; nothing of it is given out again.

    A choice ends with "stop" when an end id is sampled, a stop string is complete, or its grammar
    lets nothing follow (also on the last allowed token), else with "length" when max_tokens ids
    were sampled. Every sampled id counts, the end id included; the end id has no text and no score.
    """

    __slots__ = (
        "_asked",
        "_grammar",
        "_held",
        "_owed",
        "_scoring",
        "journal",
        "lookup",
        "packet",
        "rank",
        "sampled",
        "sequence",
        "text",
    )

    def __init__(
        self,
        packet: RequestPacket,
        text: StreamingText,
        now: float = 0.0,
        grammar: GrammarState | None = None,
    ) -> None:
        """now: when it arrived, unless the packet says. grammar: where it stands after `said`."""
        self.packet = packet
        arrived = now if packet.arrived is None else min(packet.arrived, now)
        self.journal = Journal(arrived)
        self.rank = rank_for(arrived, packet)
        self.text = text
        self.sampled = 0
        capacity = len(packet.prompt) + packet.max_tokens
        self.sequence = Sequence.of(packet.prompt, capacity, packet.sampling)
        self._grammar = grammar
        self.sequence.allowed = None if grammar is None else grammar.masks
        self._scoring = packet.sampling.logprobs is not None
        self._held: list[TokenScore] = []
        for token in packet.said:
            self.sequence.append(token)
            self.text.push(token)
        self.sampled = len(packet.said)
        self.lookup: Lookup | None = None  # of who guesses (speculation.py)
        # Scores that were held back with the text when the engine before ended are computed anew.
        owed = self._scoring and packet.scored < len(packet.said)
        self._owed = len(packet.prompt) + packet.scored if owed else self.sequence.total
        scoring = packet.score_prompt and packet.prompt_scored < len(packet.prompt) - 1
        self._asked = packet.prompt_scored if scoring else self._owed - 1

    @property
    def positions(self) -> int:
        """KV positions it needs in its whole life: the last id sampled is never computed."""
        packet = self.packet
        return len(packet.prompt) + max(packet.max_tokens - 1, 0)

    @property
    def remaining(self) -> int:
        """Positions to compute before the next id can be sampled."""
        return self.sequence.total - self.sequence.computed

    @property
    def interrupted(self) -> bool:
        """Whether its client has ids of an engine that ended, and none of this one yet."""
        return bool(self.packet.said) and self.sampled == len(self.packet.said)

    @property
    def skippable(self) -> int:
        """Positions that need not be computed if their keys and values are there: all before the
        first whose logits are still to be read, and never the last.
        """
        return min(self._asked, self.sequence.total - 1)

    def rewind(self) -> None:
        """Forgets what was computed, not what was answered: it will go on with the same bits."""
        self.sequence.computed = 0

    @property
    def guessable(self) -> int:
        """Ids that may be guessed after the one that is sampled next: those behind them are asked
        for too.
        """
        left = self.packet.max_tokens - self.sampled - 1
        return max(0, min(MAX_GUESSES, left)) if self.remaining == 1 else 0

    def guess(self, ids: Iterable[int]) -> None:
        """Puts guesses for what will be said into the sequence, up to the first after which nothing
        would follow. They are part of the next row and forgotten when it is taken.
        """
        ends = self.packet.end_ids
        sound = list(takewhile(lambda token: token not in ends, ids))[: self.guessable]
        if self._grammar is not None and sound:
            sound = sound[: self._grammar.look_ahead(sound)]
        sequence = self.sequence
        sequence.tokens[sequence.total : sequence.total + len(sound)] = sound
        sequence.guesses = len(sound)

    def row(self, count: int) -> Row:
        """The next `count` positions and those of the guesses as a row; logits only where something
        is read from them.
        """
        sequence = self.sequence
        first, end = sequence.computed, sequence.computed + count + sequence.guesses
        wanted = min(self._asked, sequence.total - 1)
        last = end if self.packet.max_tokens else min(end, sequence.total - 1)
        return Row(sequence, first, end - first, range(min(max(first, wanted), last), last))

    def take(self, row: Row, answers: list[Sampled]) -> Delta:
        """Books a computed row and says what it added: after the known ids as many as were guessed
        right, and one more. Raises EngineError when an answer is no answer; those of guesses may be
        missing from some point on.
        """
        sequence = self.sequence
        guesses, sequence.guesses = sequence.guesses, 0
        if not len(row.wants) - guesses <= len(answers) <= len(row.wants):
            raise EngineError(f"{len(row.wants)} positions were wanted, {len(answers)} came back.")
        known = sequence.total
        delta = Delta(ticket=self.packet.ticket)
        for position, answer in zip(row.wants, answers, strict=False):
            if position + 1 == sequence.total:
                if not self._append(answer, delta):
                    break
            elif position + 1 >= self._owed:
                self._held.append(score_of(answer))
            elif position < len(self.packet.prompt) - 1:
                delta.prompt_scores.append(score_of(answer))
        right = max(0, sequence.total - known - 1)
        sequence.computed = row.first + row.count - guesses + right
        self._asked = max(self._asked, sequence.computed)
        if not self.packet.max_tokens and sequence.computed == sequence.total:
            delta.finish = "length"
        return delta

    def _append(self, answer: Sampled, delta: Delta) -> bool:
        """Adds an id that was sampled. Whether the answer after it counts: it had been guessed, and
        the choice goes on. Its place holds the guess or, where none was made, anything: then no
        answer comes after it.
        """
        packet, text = self.packet, self.text
        guessed_right = int(self.sequence.tokens[self.sequence.total]) == answer.id
        self.sequence.append(answer.id)
        self.sampled += 1
        delta.ids.append(answer.id)
        new = ""
        if answer.id in packet.end_ids:
            delta.finish = "stop"
        else:
            if self._scoring:
                self._held.append(score_of(answer))
            new = text.push(answer.id)
            complete = self._grammar is not None and self._grammar.take(answer.id)
            if text.stopped or complete:
                delta.finish, delta.stopped_by = "stop", text.met
            elif self.sampled == packet.max_tokens:
                delta.finish = "length"
        if delta.finish and not text.stopped:
            new += text.finish()
        delta.text += new
        # Scores go out with the text they belong to; those of a swallowed stop string never do.
        if new or (delta.finish and not text.stopped):
            delta.scores += self._held
            self._held = []
        return guessed_right and not delta.last


def rank_for(arrived: float, packet: RequestPacket) -> tuple[float, int]:
    """Who comes first: the lower."""
    return arrived + PATIENCE_SECONDS * packet.priority, packet.ticket


def score_of(answer: Sampled) -> TokenScore:
    """The score of an answer, minus infinity made finite. Raises EngineError for what is not a
    number.
    """
    logprob = answer.logprob if answer.logprob is not None else 0.0
    if math.isnan(logprob):
        raise EngineError(
            "The model gave a log probability that is not a number. Send the request again."
        )
    top = tuple((token, max(value, LOWEST_LOGPROB)) for token, value in answer.top)
    return TokenScore(answer.id, max(logprob, LOWEST_LOGPROB), top)
