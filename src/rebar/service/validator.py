"""From a request body to packets, or an InputError that names the parameter. Nothing past here can
be malformed.

Rules that a caller may want to know:
- max_tokens beyond what the context has left is lowered to what is left; a prompt that leaves no
room is refused. - Absent max_tokens means all that is left in chat, DEFAULT_COMPLETION_TOKENS in
plain completions (as OpenAI). - Temperatures up to GREEDY_BELOW are greedy. An absent seed is drawn
at random; choice i of n uses a seed mixed from (seed, i), choice 0 the seed itself, so the prompts
of a list are answered as if each had come alone. - Control tokens in the text of messages are text;
in a raw completion prompt they are control tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from rebar.errors import ContextLengthError, InputError, ModelNameError
from rebar.graph.sequence import SamplingParams
from rebar.service.amounts import refuse_many_messages, refuse_many_scores
from rebar.service.conversation import refuse_lost_calls, refuse_lost_tools, turns_of
from rebar.service.messages import NORMAL, RequestPacket
from rebar.service.model import ServedAdapter, ServedModel
from rebar.service.structured import form_of
from rebar.service.tools import ToolUse, tools_of, with_tools
from rebar.service.wire import ChatBody, ChatMessage, CompletionBody, SamplingBody

DEFAULT_COMPLETION_TOKENS = 16
GREEDY_BELOW = 1e-4
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_COUNT = 2**31 - 1
MAX_PRIORITY = 1000

_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Job:
    """A validated request: the packets of its choices and how its answer is to be written.

    packets come in groups of `n` per prompt; packet.index counts through. echo: prompt text that
    goes before each choice's text, by index. scored: log probabilities were asked for. explain:
    the answer is to tell what happened to it. tools: names of those that the text may call.
    one_call: and no more than one. place: where in the request its grammar is said.
    """

    model: str
    packets: list[RequestPacket]
    stream: bool
    include_usage: bool
    scored: bool
    n: int
    echo: tuple[str, ...] = ()
    explain: bool = False
    tools: tuple[str, ...] = ()
    one_call: bool = False
    place: str = ""

    @property
    def grammar(self) -> str:
        """What every choice must obey, "" for nothing."""
        return self.packets[0].grammar

    @property
    def prompt_tokens(self) -> int:
        """Tokens of every prompt, each counted once however many choices it has."""
        return sum(len(packet.prompt) for packet in self.packets[:: self.n])


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the ids that follow the request through every layer. tenant: whose computed
    prompts it may share.
    """

    request_id: str
    trace_id: str
    tenant: str = ""


class Validator:
    """Checks bodies against one model and turns them into a Job. Holds no state between calls."""

    def __init__(self, model: ServedModel, adapter: ServedAdapter | None = None) -> None:
        """adapter: what requests are computed with, and named after."""
        self.model = model
        self.name = model.name if adapter is None else adapter.name
        self.adapter = "" if adapter is None else adapter.digest

    def chat(self, body: ChatBody, caller: Caller) -> Job:
        """A chat completion."""
        refuse_unsupported(body)
        scores = None if not body.logprobs else body.top_logprobs or 0
        if body.top_logprobs is not None:
            check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
            if not body.logprobs:
                raise InputError("`top_logprobs` needs `logprobs`: true.", param="top_logprobs")
        use = tools_of(body)
        prompt = self.prompt_of(body, use)
        asked = self._asked_in_chat(body)
        job = self._job(body, caller, [prompt], scores, asked, default=MAX_COUNT)
        return with_tools(job, use) if use else job

    def prompt_of(self, body: ChatBody, use: ToolUse | None) -> list[int]:
        """Ids of all that a chat request gives the model to read. use: its tools."""
        return self.chat_prompt(body.messages, tools=use.shown if use else None)

    def completion(self, body: CompletionBody, caller: Caller) -> Job:
        """A plain completion of one prompt or several."""
        refuse_unsupported(body)
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise InputError("`best_of` other than `n` is not supported.", param="best_of")
        if body.logprobs is not None:
            check_range("logprobs", body.logprobs, 0, MAX_TOP_LOGPROBS)
        if body.max_tokens is not None:
            check_range("max_tokens", body.max_tokens, 0 if body.echo else 1, MAX_COUNT)
        prompts = list(self.prompts(body.prompt))
        ids = [prompt for prompt, _ in prompts]
        default = DEFAULT_COMPLETION_TOKENS
        job = self._job(body, caller, ids, body.logprobs, body.max_tokens, default=default)
        if not body.echo:
            return job
        return replace(job, echo=tuple(text for _, text in prompts for _ in range(job.n)))

    def chat_prompt(
        self,
        messages: list[ChatMessage],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a conversation, by the model's own template."""
        template = self.model.template
        if template is None:
            raise InputError(
                "This model has no chat template. Use /v1/completions.", param="messages"
            )
        refuse_many_messages(len(messages), self.model.limits.max_total)
        turns = turns_of(messages)
        refuse_lost_calls(turns, template)
        refuse_lost_tools(turns, tools or [], template)
        return template.encode(turns, tools=tools, add_generation_prompt=add_generation_prompt)

    def prompts(
        self,
        prompt: str | list[str | int | list[int]],
        param: str = "prompt",
        *,
        special: bool = True,
    ) -> Iterator[tuple[list[int], str]]:
        """Each prompt as ids and as text. special: control tokens in a text are control tokens."""
        items: list[str | int | list[int]]
        if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt) and prompt:
            items = [[item for item in prompt if isinstance(item, int)]]
        else:
            items = [prompt] if isinstance(prompt, str) else prompt
        if not items:
            raise InputError(f"`{param}` is empty.", param=param)
        if len({type(item) for item in items}) > 1:
            raise InputError(
                f"`{param}` must be text, a list of texts, ids, or a list of ids.", param=param
            )
        tokenizer = self.model.tokenizer
        for item in items:
            if isinstance(item, str):
                yield checked_prompt(tokenizer.encode(item, special=special), param), item
            elif isinstance(item, list):
                ids = checked_prompt(self.checked_ids(item, param), param)
                yield ids, tokenizer.decode(ids)

    def checked_ids(self, ids: list[int], param: str) -> list[int]:
        """The ids, all of them in the vocabulary."""
        top = self.model.tokenizer.vocab_size
        if not all(0 <= token < top for token in ids):
            raise InputError(f"`{param}`: token ids must be 0 to {top - 1}.", param=param)
        return ids

    def _asked_in_chat(self, body: ChatBody) -> int | None:
        both = (body.max_tokens, body.max_completion_tokens)
        for name, value in zip(("max_tokens", "max_completion_tokens"), both, strict=True):
            if value is not None:
                check_range(name, value, 1, MAX_COUNT)
        if None not in both and both[0] != both[1]:
            raise InputError(
                "`max_tokens` and `max_completion_tokens` differ; give one.", param="max_tokens"
            )
        return both[1] if both[0] is None else both[0]

    def _job(
        self,
        body: SamplingBody,
        caller: Caller,
        prompts: list[list[int]],
        scores: int | None,
        asked: int | None,
        *,
        default: int,
    ) -> Job:
        n = self._choices(body, len(prompts))
        stream = bool(body.stream)
        if body.stream_options is not None and not stream:
            raise InputError("`stream_options` needs `stream`: true.", param="stream_options")
        sampling = replace(self._sampling(body), logprobs=scores)
        priority = NORMAL if body.priority is None else body.priority
        check_range("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        stop, end_ids = stops_of(body.stop), self._end_ids(body)
        form = form_of(body)
        packets = [
            RequestPacket(
                ticket=0,
                request_id=caller.request_id,
                trace_id=caller.trace_id,
                prompt=prompt,
                sampling=replace(sampling, seed=mix_seed(sampling.seed, choice)),
                max_tokens=self._budget(len(prompt), asked, default),
                index=which * n + choice,
                stop=stop,
                end_ids=end_ids,
                score_prompt=bool(getattr(body, "echo", False)) and scores is not None,
                priority=priority,
                tenant=caller.tenant,
                grammar=form.grammar if form else "",
                adapter=self.adapter,
            )
            for which, prompt in enumerate(prompts)
            for choice in range(n)
        ]
        refuse_many_scores(packets)
        usage = bool(body.stream_options and body.stream_options.include_usage)
        explain = bool(body.explain)
        scored, place, name = scores is not None, form.place if form else "", self.name
        return Job(name, packets, stream, usage, scored, n, explain=explain, place=place)

    def _choices(self, body: SamplingBody, prompts: int) -> int:
        """Choices of each prompt. More than can ever be held at once is the caller's error."""
        n = 1 if body.n is None else body.n
        most = min(MAX_CHOICES, self.model.limits.max_open)
        check_range("n", n, 1, most)
        if n * prompts > most:
            raise InputError(f"More than {most} choices in one request.", param="prompt")
        return n

    def _budget(self, prompt_tokens: int, asked: int | None, default: int) -> int:
        limits = self.model.limits
        room = limits.max_total - prompt_tokens
        if room < (0 if asked == 0 else 1):
            capacity = limits.kv_tokens
            cache = f" (the KV cache holds {capacity})" if capacity < limits.max_context else ""
            raise ContextLengthError(
                f"This model's context is {limits.max_total} tokens{cache}; the prompt alone has "
                f"{prompt_tokens}, and the answer needs room too. Shorten the prompt, or start "
                "the server with a larger --max-context or --kv-tokens.",
                param="prompt" if default == DEFAULT_COMPLETION_TOKENS else "messages",
                code="context_length_exceeded",
            )
        return min(default if asked is None else asked, room)

    def _end_ids(self, body: SamplingBody) -> tuple[int, ...]:
        own = self.checked_ids(body.stop_token_ids or [], "stop_token_ids")
        if len(own) > MAX_BIASES:
            raise InputError("Too many `stop_token_ids`.", param="stop_token_ids")
        model = frozenset() if body.ignore_eos else self.model.tokenizer.end_ids
        return tuple(sorted(model | frozenset(own)))

    def _sampling(self, body: SamplingBody) -> SamplingParams:
        temperature = in_range("temperature", body.temperature, 0.0, 2.0, 1.0)
        top_p = in_range("top_p", body.top_p, 0.0, 1.0, 1.0)
        if top_p == 0:
            raise InputError("`top_p` must be above 0.", param="top_p")
        top_k = 0 if body.top_k is None else body.top_k
        check_range("top_k", top_k, -1, MAX_COUNT)
        seed = secrets.randbits(64) if body.seed is None else body.seed
        check_range("seed", seed, -(2**63), _MASK)
        return SamplingParams(
            temperature=0.0 if temperature <= GREEDY_BELOW else temperature,
            top_k=0 if top_k < 1 else min(top_k, self.model.tokenizer.vocab_size),
            top_p=top_p,
            min_p=in_range("min_p", body.min_p, 0.0, 1.0, 0.0),
            repetition_penalty=in_range(
                "repetition_penalty", body.repetition_penalty, 0.1, 10, 1.0
            ),
            frequency_penalty=in_range("frequency_penalty", body.frequency_penalty, -2, 2, 0.0),
            presence_penalty=in_range("presence_penalty", body.presence_penalty, -2, 2, 0.0),
            logit_bias=self._biases(body.logit_bias or {}),
            seed=seed & _MASK,
        )

    def _biases(self, given: dict[str, float]) -> tuple[tuple[int, float], ...]:
        if len(given) > MAX_BIASES:
            raise InputError(
                f"`logit_bias` has more than {MAX_BIASES} entries.", param="logit_bias"
            )
        top = self.model.tokenizer.vocab_size
        for key, value in given.items():
            if not _ID.fullmatch(key) or int(key) >= top:
                raise InputError(
                    f"`logit_bias` keys are token ids, 0 to {top - 1}; {key[:40]!r} is none.",
                    param="logit_bias",
                )
            check_range("logit_bias", value, -100, 100)
        return tuple(sorted((int(key), float(value)) for key, value in given.items()))


class Partial(Protocol):
    """A body some of whose fields may only ask for nothing."""

    harmless: ClassVar[dict[str, tuple[Any, ...]]]


def refuse_unsupported(body: Partial) -> None:
    """Raises for a parameter of OpenAI's API that asks for something this server does not do."""
    for name, nothing in body.harmless.items():
        value = getattr(body, name)
        if value is not None and value not in nothing:
            raise InputError(
                f"`{name}` is not supported by this server. Leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings; null and [] mean none, an empty string is refused."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise InputError(f"`stop` has more than {MAX_STOPS} strings.", param="stop")
    if any(not 0 < len(text) <= MAX_STOP_LENGTH for text in stops):
        raise InputError(
            f"A `stop` string must have 1 to {MAX_STOP_LENGTH} characters.", param="stop"
        )
    return tuple(dict.fromkeys(stops))


def checked_prompt(ids: list[int], param: str = "prompt") -> list[int]:
    """The prompt, which must have a token."""
    if not ids:
        raise InputError(f"`{param}` has no tokens; give the model something to read.", param=param)
    return ids


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises unless low <= value <= high."""
    if not low <= value <= high:
        raise InputError(f"`{name}` must be {low} to {high}.", param=name, code="invalid_value")


def in_range(name: str, value: float | None, low: float, high: float, default: float) -> float:
    """The value, or the default when it was not given. Raises when out of range."""
    if value is None:
        return default
    check_range(name, value, low, high)
    return value


def mix_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice`: the seed itself for 0, else splitmix64 of (seed, choice)."""
    if choice == 0:
        return seed
    x = (seed + choice * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def model_not_found(name: str) -> ModelNameError:
    """The 404 of an unknown model."""
    return ModelNameError(
        f"The model {name[:200]!r} is not served here. GET /v1/models lists those that are.",
        param="model",
        code="model_not_found",
    )
