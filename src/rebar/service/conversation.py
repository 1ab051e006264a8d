"""From the messages of a request to what a chat template is given.

Roles are system, user, assistant, tool, and developer, which is an other name for system. Text
parts of one message are joined by a line break. A call's arguments, JSON in a string on the wire,
become an object, as templates expect.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rebar.errors import InputError
from rebar.service.body import check_depth
from rebar.service.wire import ChatMessage, ContentPart, ToolCall

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
PART_SEPARATOR = "\n"

Turn = dict[str, Any]


def conversation_of(messages: list[ChatMessage]) -> list[Turn]:
    """The turns, checked one by one. Raises InputError with the place."""
    if not messages:
        raise InputError("`messages` is empty.", param="messages")
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _turn(message: ChatMessage, place: str) -> Turn:
    if message.role not in ROLES:
        raise InputError(
            f"`{place}.role` is {message.role[:40]!r}; it must be one of {', '.join(ROLES)}.",
            param=f"{place}.role",
        )
    if message.audio or message.function_call:
        raise InputError(f"`{place}` holds audio or a function_call.", param=place)
    turn: Turn = {"role": ROLES[message.role], "content": _content(message, place)}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, f"{place}.tool_calls") for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _content(message: ChatMessage, place: str) -> str:
    content = message.content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise InputError(f"`{place}.content` is required.", param=f"{place}.content")
    if isinstance(content, str):
        return content
    return PART_SEPARATOR.join(
        _part(part, f"{place}.content[{i}]") for i, part in enumerate(content)
    )


def _part(part: ContentPart, place: str) -> str:
    if part.type != "text" or part.text is None:
        raise InputError(
            f"`{place}` has the type {part.type[:40]!r}; only text is supported.",
            param=place,
            code="unsupported_parameter",
        )
    return part.text


def _call(call: ToolCall, place: str) -> Turn:
    try:
        check_depth(call.function.arguments.encode())
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, InputError):
        raise InputError(
            f"`{place}`: the arguments of {call.function.name[:60]!r} are no JSON object.",
            param=place,
        ) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "id": call.id, "function": function}


def refuse_lost_text(turns: list[Turn], rendered: str) -> None:
    """Raises when the template left out what a system or user message said, or a call's name.

    Some templates drop system messages in places they do not expect, or know no tools; an answer
    that never saw the instruction would look like a bad model.
    """
    at = 0
    for i, turn in enumerate(turns):
        if turn["role"] in ("system", "user"):
            text = turn["content"].strip()
            found = rendered.find(text, at)
            if found < 0:
                raise _lost(f"messages[{i}]", "what this message says, at its place")
            at = found + len(text)
        for call in turn.get("tool_calls", ()):
            if call["function"]["name"] not in rendered:
                raise _lost(f"messages[{i}].tool_calls", "tool calls")


def _lost(place: str, what: str) -> InputError:
    return InputError(
        f"The model's chat template leaves out {what}. Merge or reorder the messages.", param=place
    )
