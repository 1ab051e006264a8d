"""From the body of an embedding request to packets, one an input, or an InputError that names the
field.

Control tokens in a text are text, as in messages. A text longer than the context is refused, never
cut: whoever wants its beginning sends its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar.errors import ContextLengthError, InputError
from rebar.graph.sequence import SamplingParams
from rebar.service.messages import NORMAL, RequestPacket
from rebar.service.validator import MAX_PRIORITY, Caller, Validator, check_range
from rebar.service.wire import EmbeddingBody

MAX_INPUTS = 2048
"""Texts of one request, as OpenAI takes them."""


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """A validated request. dimensions: None for all there are. base64: how vectors are written."""

    model: str
    packets: list[RequestPacket]
    dimensions: int | None
    base64: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(len(packet.prompt) for packet in self.packets)


def embedding_job(validator: Validator, body: EmbeddingBody, caller: Caller) -> EmbeddingJob:
    """Checks a body against the validator's model."""
    model = validator.model
    if body.dimensions is not None:
        check_range("dimensions", body.dimensions, 1, model.limits.width)
    priority = NORMAL if body.priority is None else body.priority
    check_range("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
    if isinstance(body.input, list) and len(body.input) > MAX_INPUTS and _texts(body.input):
        raise InputError(f"`input` has more than {MAX_INPUTS} texts.", param="input")
    packets = [
        RequestPacket(
            ticket=0,
            request_id=caller.request_id,
            trace_id=caller.trace_id,
            prompt=_fitting(validator, ids),
            sampling=SamplingParams(),
            max_tokens=1,
            index=index,
            priority=priority,
            tenant=caller.tenant,
            pooling=body.pooling or "mean",
            adapter=validator.adapter,
        )
        for index, (ids, _) in enumerate(validator.prompts(body.input, "input", special=False))
    ]
    return EmbeddingJob(validator.name, packets, body.dimensions, body.encoding_format == "base64")


def _texts(given: list[str | int | list[int]]) -> bool:
    """Whether the list holds several inputs, not the ids of one."""
    return not all(isinstance(item, int) for item in given)


def _fitting(validator: Validator, ids: list[int]) -> list[int]:
    limits = validator.model.limits
    most = min(limits.max_context, limits.kv_tokens)
    if len(ids) > most:
        raise ContextLengthError(
            f"This model takes {most} tokens at once; a text of `input` has {len(ids)}. Send it in "
            "parts, or start the server with a larger --max-context or --kv-tokens.",
            param="input",
            code="context_length_exceeded",
        )
    return ids
