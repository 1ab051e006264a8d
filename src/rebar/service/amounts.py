"""How much one request may ask for, where each part is allowed and all of them are too much."""

from __future__ import annotations

from rebar.errors import ContextLengthError, InputError
from rebar.service.messages import RequestPacket

MAX_SCORES = 1 << 20
"""Log probabilities that the choices of a request may come to, alternatives included: some 100 MB
of memory and of answer. One choice may have all that its context allows."""


def refuse_many_messages(count: int, most: int) -> None:
    """Raises for more messages than the context has tokens: each comes to one at least, and a
    hundred thousand take seconds to render.
    """
    if count > most:
        raise ContextLengthError(
            f"`messages` has {count} messages, and this model's context is {most} tokens. Send "
            "fewer.",
            param="messages",
            code="context_length_exceeded",
        )


def refuse_many_scores(packets: list[RequestPacket]) -> None:
    """Raises for more log probabilities than MAX_SCORES: 128 choices of 2,000 tokens with 20
    alternatives each filled gigabytes.
    """
    scored = packets[0].sampling.logprobs
    if len(packets) == 1 or scored is None:
        return
    tokens = sum(p.max_tokens + len(p.prompt) * p.score_prompt for p in packets)
    if tokens * (scored + 1) > MAX_SCORES:
        raise InputError(
            f"The choices may come to more than {MAX_SCORES} log probabilities. Ask for fewer "
            "choices, tokens or alternatives.",
            param="logprobs",
            code="invalid_value",
        )
