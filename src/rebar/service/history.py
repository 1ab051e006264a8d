"""What became of the latest requests: for GET /v1/requests/{id} and whoever asks why it took long.

Bounded: the oldest go first. Holds times and numbers, nothing that was asked or answered.
"""

from __future__ import annotations

import time
from collections import OrderedDict

import msgspec

from rebar.service.messages import ChoiceRecord, Delta, RequestPacket, WaitReason

MAX_REQUESTS = 1024
"""About 1 kB each."""


class ChoiceStory(msgspec.Struct, kw_only=True):
    """One choice. Times are seconds after the request's arrival, null for what has not been.

    state: "open", or how it ended ("stop", "length", "tool_calls", "left", or the code of an
    error). queued: until it was let in. seconds: its age when last heard of. waits: seconds by
    reason, "order", "place", "memory", "budget", "shared" or "preempted". drafted: tokens that were
    guessed; accepted: those of them that were said.
    """

    index: int
    state: str = "open"
    priority: int = 0
    queued: float | None = None
    first_token: float | None = None
    seconds: float = 0.0
    steps: int = 0
    preempted: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    waits: dict[WaitReason, float] = {}


class RequestStory(msgspec.Struct, kw_only=True):
    """The answer of GET /v1/requests/{id}. model: or adapter. created: Unix seconds."""

    id: str
    object: str = "request"
    created: int
    model: str
    choices: list[ChoiceStory]


def story_of(index: int, record: ChoiceRecord) -> ChoiceStory:
    """A record as callers see it."""
    return ChoiceStory(
        index=index,
        priority=record.priority,
        queued=record.admitted,
        first_token=record.first_token,
        seconds=record.seconds,
        steps=record.steps,
        preempted=record.preempted,
        cached_tokens=record.cached_tokens,
        drafted=record.drafted,
        accepted=record.accepted,
        waits=record.waits,
    )


class RequestHistory:
    """The latest MAX_REQUESTS requests of one model, by tenant and request id."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._requests: OrderedDict[tuple[str, str], RequestStory] = OrderedDict()
        self._open: dict[int, ChoiceStory] = {}

    def begin(self, packets: list[RequestPacket], name: str = "") -> None:
        """A request was accepted. An id that is used again stands for the latest. name: of the
        adapter that answers; "" for the model.
        """
        stories = [ChoiceStory(index=p.index, priority=p.priority) for p in packets]
        key = packets[0].tenant, packets[0].request_id
        self._requests.pop(key, None)
        self._requests[key] = RequestStory(
            id=key[1], created=int(time.time()), model=name or self._model, choices=stories
        )
        self._open.update((p.ticket, s) for p, s in zip(packets, stories, strict=True))
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)

    def take(self, delta: Delta) -> None:
        """Books what a choice said of itself."""
        story = self._open.get(delta.ticket)
        if story is None or not (delta.record or delta.last):
            return
        if delta.record is not None:
            self._tell(story, delta.record)
        if delta.failure is not None:
            self.end(delta.ticket, delta.failure.code or "error")
        elif delta.finish is not None:
            self.end(delta.ticket, delta.finish)

    def end(self, ticket: int, state: str) -> None:
        """A choice is over. Harmless when it was before."""
        story = self._open.pop(ticket, None)
        if story is not None:
            story.state = state

    def get(self, request_id: str, tenant: str = "") -> RequestStory | None:
        """The story of a request of this tenant; None when there is none, or no longer."""
        return self._requests.get((tenant, request_id))

    def _tell(self, story: ChoiceStory, record: ChoiceRecord) -> None:
        """The latest, but the beginning as it was first: another engine may have gone on."""
        new = story_of(story.index, record)
        for name in ("seconds", "steps", "preempted", "drafted", "accepted", "waits"):
            setattr(story, name, getattr(new, name))
        if story.first_token is None:
            story.queued, story.first_token = new.queued, new.first_token
            story.cached_tokens = new.cached_tokens
