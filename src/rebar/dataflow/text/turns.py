"""A conversation as ids, cut where the assistant begins and ends: what training asks for.

A turn of the assistant begins where the prompt that asked for it ends: the messages before it,
rendered with the generation prompt, as serving renders them. That prompt must be the beginning of
the whole conversation's text; a template that shows the past otherwise than it was said (thoughts
left out, say) cannot be trained on turn by turn and is refused. What a turn says is encoded by
itself, since a model that is served starts after the prompt's ids: "\\n" and "\\nSure" are not what
"\\n\\nSure" becomes. A turn ends with its last end token; what the template puts after that nobody
generates. A turn without any end token is asked for whole, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar.dataflow.text.chat import ChatTemplate, Tools
from rebar.dataflow.text.messages import Messages
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import InputError


@dataclass(frozen=True, slots=True)
class Part:
    """Ids in a row. asked: the assistant said them."""

    ids: list[int]
    asked: bool


def conversation(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Tools | None = None,
    *,
    first: int = 0,
) -> tuple[list[Part], int]:
    """All ids of a conversation in parts, and how many turns had no end token.

    first: only turns from this message on are asked for. Of those, one with `weight` 0 (as in
    OpenAI's fine-tuning files) is not. Raises InputError: malformed messages, the template's own
    refusal, or a template that does not render a conversation's beginning as the beginning of the
    conversation.
    """
    border = template.border(messages, tools)
    whole = template.bordered(messages, tools, False, border)
    parts: list[Part] = []
    at = endless = 0
    for i, message in enumerate(messages):
        if i < first or message["role"] != "assistant" or message.get("weight") == 0:
            continue
        begin, end = _place(template, messages, tools, i, border, whole)
        if begin > at:
            ids = template.ids_of(whole[at:begin], border, continued=at > 0)
            parts.append(Part(ids, asked=False))
        ids = template.ids_of(whole[begin:end], border, continued=True)
        turn, after = _until_end(ids, tokenizer.end_ids)
        parts += [Part(turn, asked=True), Part(after, asked=False)]
        endless += tokenizer.end_ids.isdisjoint(turn)
        at = end
    if rest := whole[at:]:
        parts.append(Part(template.ids_of(rest, border, continued=at > 0), asked=False))
    return [part for part in parts if part.ids], endless


def _place(
    template: ChatTemplate, messages: Messages, tools: Tools | None, i: int, border: str, whole: str
) -> tuple[int, int]:
    """Where message i, the assistant's, begins and ends in the text of the conversation."""
    if i == 0:
        raise InputError(
            "messages[0] is the assistant's, and nothing asked for it. Begin with a user message.",
            param="messages[0]",
        )
    before = template.bordered(messages[:i], tools, True, border)
    last = i + 1 == len(messages)
    through = whole if last else template.bordered(messages[: i + 1], tools, False, border)
    if not whole.startswith(before) or not whole.startswith(through) or len(before) > len(through):
        raise InputError(
            f"the chat template renders the beginning of a conversation (up to messages[{i}]) "
            "otherwise than within the whole, so the assistant's turns have no fixed place. Give "
            "the turns as samples of their own, or take another template.",
            param=f"messages[{i}]",
            code="template_not_incremental",
        )
    return len(before), len(through)


def _until_end(ids: list[int], ends: frozenset[int]) -> tuple[list[int], list[int]]:
    """Up to and with the last end token, and what follows it."""
    last = max((at for at, id in enumerate(ids) if id in ends), default=len(ids) - 1)
    return ids[: last + 1], ids[last + 1 :]
