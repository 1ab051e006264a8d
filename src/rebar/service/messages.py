"""What crosses the border between the front (HTTP, clients) and an engine: one message each way per
step.

Every type here encodes to MessagePack and back without loss, so that the engine can live in a
thread or in a process of its own. The engine speaks token ids and ready text; JSON never crosses.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rebar.graph import RunnerOptions
from rebar.graph.sequence import MAX_GUESSES, SamplingParams

FinishReason = Literal["stop", "length"]
"""Why a choice ended. "stop": an end id, a stop id or a stop string; "length": max_tokens or the
context.
"""


Pooling = Literal["mean", "last"]
"""How the hidden states of a text become one vector: their mean, or that of the last position."""

WaitReason = Literal["order", "place", "memory", "budget", "shared", "preempted"]
"""What a choice waits for. "order": others come before it; "place": as many run as may; "memory":
KV blocks; "budget": the step has no room for its prompt; "shared": another choice is computing
the prompt they have in common; "preempted": to be let in again.
"""

HIGH, NORMAL, LOW = -1, 0, 1
"""Priorities by name; any integer is one, and the lower comes first (as in vLLM)."""


class RequestPacket(msgspec.Struct, frozen=True, array_like=True):
    """One choice of one request: everything that decides its bits, and nothing else of the client.

    ticket: unique in its engine's life, given by the front. index: the choice's number in the
    answer. end_ids: ids that end the choice and show no text (the model's own and the caller's).
    max_tokens: most ids to sample, 0 to only score the prompt. score_prompt: report log
    probabilities of prompt[1:].

    What decides the order and never the bits: priority; arrived and deadline, in seconds of the
    monotonic clock, which all processes of a machine share (None: now, none). tenant: whose
    computed prompts it may share.

    An engine that takes over from one that ended is told how far that one came, and goes on as if
    it had said it itself: said, the ids sampled so far; scored, how many of their scores were
    given; prompt_scored, how many of the prompt's.

    grammar: what the answer must obey, in llguidance's notation; "" for nothing.

    pooling: nothing is sampled; the answer is one vector of the prompt (embedding.py).

    image: of an image classifier, whose packets have no prompt: the normalized pixels, float32.

    adapter: digest of the adapter that all of it is computed with, "" for none.
    """

    ticket: int
    request_id: str
    trace_id: str
    prompt: list[int]
    sampling: SamplingParams
    max_tokens: int
    index: int = 0
    stop: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()
    score_prompt: bool = False
    said: tuple[int, ...] = ()
    scored: int = 0
    prompt_scored: int = 0
    grammar: str = ""
    priority: int = NORMAL
    arrived: float | None = None
    deadline: float | None = None
    tenant: str = ""
    pooling: Pooling | None = None
    adapter: str = ""
    image: bytes = b""


class ChoiceRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a choice. Times are seconds after its arrival, None for what has not been.

    seconds: its age when this was written. preempted: how often it gave up its memory. steps: how
    many computed a part of it. cached_tokens: tokens of its prompt that had been computed before.
    waits: seconds by reason. drafted: ids of its answer that were guessed; accepted: those of them
    that were said.
    """

    priority: int = NORMAL
    admitted: float | None = None
    first_token: float | None = None
    seconds: float = 0.0
    preempted: int = 0
    steps: int = 0
    cached_tokens: int = 0
    waits: dict[WaitReason, float] = {}
    drafted: int = 0
    accepted: int = 0


class TokenScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token's natural-log probability under the raw distribution, and the best alternatives (id,
    logprob).
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a choice ended without an answer. `caller`: the request itself was at fault."""

    message: str
    caller: bool = False
    code: str | None = None


DEADLINE = "deadline_exceeded"
"""The code of a choice whose deadline could not be met."""

STOPPING = Failure("The server is stopping. Send the request again.", code="stopping")
"""Not the request's fault and not the engine's."""


TIMED_OUT = Failure(
    "The answer took longer than the server waits for one. Ask for fewer tokens, or start the "
    "server with a longer --request-timeout.",
    code="timeout",
)
"""The server's limit, not the engine's fault."""


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one choice.

    ids: every id sampled, the end id included (this is what usage counts). text: what may be shown
    now, always whole characters and never the beginning of a stop string. scores: of the tokens
    whose text is shown up to here, when asked for. prompt_scores: of prompt[1:], as they become
    known. record: what happened to the choice, with its first id and at its end. vector: the whole
    answer where the packet says `pooling`, float32 of length 1, or has an image: the logits of its
    labels. stopped_by: the stop string that
    ended it, if one did.
    """

    ticket: int
    text: str = ""
    ids: list[int] = []
    scores: list[TokenScore] = []
    prompt_scores: list[TokenScore] = []
    finish: FinishReason | None = None
    failure: Failure | None = None
    record: ChoiceRecord | None = None
    vector: bytes = b""
    stopped_by: str | None = None

    def join(self, later: Delta) -> None:
        """Adds what the same choice said later."""
        self.text += later.text
        self.ids += later.ids
        self.scores += later.scores
        self.prompt_scores += later.prompt_scores
        self.finish = later.finish
        self.failure = later.failure
        self.record = later.record or self.record
        self.vector = later.vector or self.vector
        self.stopped_by = later.stopped_by

    @property
    def last(self) -> bool:
        """Whether nothing follows for this choice."""
        return self.finish is not None or self.failure is not None


class AdapterOrder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Load the adapter of that digest from a folder; without a path, let go of it."""

    digest: str
    path: str = ""


class AdapterNews(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An adapter is loaded, or why it could not be."""

    digest: str
    error: str = ""


class Orders(msgspec.Struct, array_like=True):
    """Front to engine: what arrived and what was given up since the last step. adapters: in
    order, before what arrived and after what was given up.
    """

    submit: list[RequestPacket] = []
    cancel: list[int] = []
    adapters: list[AdapterOrder] = []


class EngineStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The engine's state after a step. Counters only grow; times are seconds.

    row_limit: positions that a step with a prompt may hold now. open_high, open_normal, open_low:
    choices by priority. oldest_wait: age of the one that waits longest. cached_tokens: positions
    that were not computed because they had been before. draft_tokens: ids that were guessed;
    accepted_tokens: those of them that were said. held_back_blocks: free ones that the machine has
    no memory for. adopted_blocks: computed by an engine before this one. adapters: loaded. images:
    classified.
    """

    steps: int = 0
    step_seconds: float = 0.0
    rows: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    failures: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    free_bytes: int = 0
    nodes: int = 0
    row_limit: int = 0
    open_high: int = 0
    open_normal: int = 0
    open_low: int = 0
    oldest_wait: float = 0.0
    cached_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    expired: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    held_back_blocks: int = 0
    adopted_blocks: int = 0
    adapters: int = 0
    images: int = 0


class StepReport(msgspec.Struct, array_like=True, tag="report"):
    """Engine to front: everything one step said, and what became of adapters."""

    stats: EngineStats
    deltas: list[Delta] = []
    adapters: list[AdapterNews] = []


class EngineLimits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an engine can hold; told to the front once. Tokens, except max_open (choices held at a
    time).

    max_context: prompt and answer together. kv_tokens: positions the KV cache holds.
    max_open_tokens: of the prompts of open choices, 0 for no bound. width: numbers in an
    embedding.
    """

    max_context: int
    kv_tokens: int
    vocab_size: int
    max_open: int
    max_open_tokens: int = 0
    width: int = 0

    @property
    def max_total(self) -> int:
        """Most tokens of prompt and answer together; the last one sampled needs no KV."""
        return min(self.max_context, self.kv_tokens + 1)


class EngineSpec(msgspec.Struct, frozen=True, array_like=True):
    """Front to a new engine process, first: what to load. path: a .rebar file. speculation: ids
    guessed at a time. kept: the descriptor it inherits of memory for keys and values that outlives
    it; None for memory of its own.
    """

    path: str
    options: RunnerOptions
    max_running: int
    max_waiting: int
    speculation: int = MAX_GUESSES
    kept: int | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """An engine process to the front, first: it has loaded the model."""

    limits: EngineLimits
    stats: EngineStats


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Instead of Ready: why the model cannot be loaded. error: a class of rebar.errors."""

    error: str
    message: str


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat", gc=False):
    """An engine process is alive. turn_seconds: how long the turn in progress lasts, 0 between."""

    turn_seconds: float


FromEngine = Ready | Refused | Beat | StepReport
"""Everything an engine process says."""
