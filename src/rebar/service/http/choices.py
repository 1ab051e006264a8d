"""Deltas of one choice into pieces of its answer: text, scored tokens, usage. Shared by streams and
whole answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rebar.service.history import ChoiceStory, story_of
from rebar.service.http.errors import error_of
from rebar.service.messages import ChoiceRecord, Delta, FinishReason, TokenScore
from rebar.service.request_stream import RequestStream
from rebar.service.tool_parser import CallPiece, Part, ToolParser
from rebar.service.validator import Job

ChoiceEnd = FinishReason | Literal["tool_calls"]


@dataclass(slots=True)
class ScoredToken:
    """A token to report; the first of an echoed prompt has no log probability."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Piece:
    """What is new in a choice. order: text and parts of calls as they follow each other, where
    tools are. stopped_by: the stop string that ended it.
    """

    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    finish: ChoiceEnd | None = None
    calls: list[CallPiece] = field(default_factory=list)
    order: list[Part] = field(default_factory=list)
    stopped_by: str | None = None

    @property
    def parts(self) -> list[Part]:
        """Text and parts of calls in the order of the answer."""
        return self.order or ([self.text] if self.text else [])

    def add(self, other: Piece) -> None:
        """Appends `other`."""
        self.text += other.text
        self.scored += other.scored
        self.calls += other.calls
        self.order += other.order
        self.stopped_by = other.stopped_by or self.stopped_by
        self.finish = other.finish or self.finish


class Choices:
    """The choices of one job as they grow."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.completion_tokens = 0
        self.failure: str | None = None
        self._cached: dict[int, int] = {}
        self._records: dict[int, ChoiceRecord] = {}
        self._parsers = [ToolParser(job.tools, one=job.one_call) for _ in job.packets if job.tools]
        self._begun = [False] * len(job.packets)
        self._prompt_scores: list[list[TokenScore]] = [[] for _ in job.packets]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that had been computed before, each prompt counted once: by its first
        choice, for the others find what that one computed.
        """
        n = self.job.n
        return sum(cached for index, cached in self._cached.items() if index % n == 0)

    def explanation(self) -> list[ChoiceStory] | None:
        """What happened to each choice, when asked for."""
        if not self.job.explain:
            return None
        return [story_of(index, record) for index, record in sorted(self._records.items())]

    async def next(self, stream: RequestStream) -> dict[int, Piece]:
        """What has come, one piece per choice. Raises the error of a choice that failed."""
        pieces: dict[int, Piece] = {}
        for delta in await stream.next():
            if delta.failure is not None:
                raise error_of(delta.failure, self.job.place)
            index = stream.index(delta)
            piece = self.piece(index, delta)
            if index in pieces:
                pieces[index].add(piece)
            else:
                pieces[index] = piece
        return pieces

    def piece(self, index: int, delta: Delta) -> Piece:
        """What a delta adds to a choice; it is no failure."""
        self.completion_tokens += len(delta.ids)
        if delta.record is not None:
            # The first one counts: an engine that takes over finds other things computed.
            self._cached.setdefault(index, delta.record.cached_tokens)
            self._records[index] = delta.record
        piece = Piece(
            delta.text,
            [ScoredToken(s.id, s.logprob, s.top) for s in delta.scores],
            delta.finish,
            stopped_by=delta.stopped_by,
        )
        if self._parsers:
            self._parse(self._parsers[index], piece)
        self._prompt_scores[index] += delta.prompt_scores
        if self._begun[index] or not (delta.ids or delta.finish):
            return piece
        self._begun[index] = True
        before = self._echo(index)
        before.add(piece)
        return before

    def _parse(self, parser: ToolParser, piece: Piece) -> None:
        """Takes the calls out of the text."""
        piece.order = parser.push(piece.text) + (parser.finish() if piece.finish else [])
        piece.text = "".join(part for part in piece.order if isinstance(part, str))
        piece.calls = [part for part in piece.order if isinstance(part, CallPiece)]
        if parser.calls and piece.finish == "stop":
            piece.finish = "tool_calls"

    def _echo(self, index: int) -> Piece:
        """The prompt as the beginning of the answer, when asked for."""
        job = self.job
        if not job.echo:
            return Piece()
        piece = Piece(job.echo[index])
        packet = job.packets[index]
        if packet.score_prompt:
            piece.scored = [ScoredToken(packet.prompt[0], None)]
            piece.scored += [
                ScoredToken(s.id, s.logprob, s.top) for s in self._prompt_scores[index]
            ]
        return piece
