"""From the messages of a request to what a chat template is given.

What a message may be (roles, content, parts, calls) is checked where it is rendered, in
rebar.dataflow.text; here is only what belongs to this API.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rebar.errors import InputError
from rebar.service.interfaces import ChatRenderer
from rebar.service.wire import ChatMessage

Turn = dict[str, Any]


def turns_of(messages: list[ChatMessage]) -> list[Turn]:
    """The messages as plain objects without what was not given."""
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _turn(message: ChatMessage, place: str) -> Turn:
    if message.audio or message.function_call:
        raise InputError(
            f"`{place}` holds audio or a function_call, which are not supported. Leave them out.",
            param=place,
            code="unsupported_parameter",
        )
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise InputError(f"`{place}.content` is required.", param=f"{place}.content")
    turn: Turn = msgspec.to_builtins(message)
    return {key: value for key, value in turn.items() if value is not None and value != []}


def refuse_lost_calls(turns: list[Turn], template: ChatRenderer) -> None:
    """Raises when the template leaves out a tool call: not every one knows of tools, and an answer
    that never saw the call would look like a bad model. Costs a rendering, where calls are.
    """
    if not any("tool_calls" in turn for turn in turns):
        return
    rendered = template.render(turns)
    for i, turn in enumerate(turns):
        for call in turn.get("tool_calls", ()):
            if call["function"]["name"] not in rendered:
                raise InputError(
                    f"The model's chat template leaves out the tool calls of messages[{i}]. "
                    "Put them into a text.",
                    param=f"messages[{i}].tool_calls",
                )


def refuse_lost_tools(
    turns: list[Turn], tools: list[dict[str, Any]], template: ChatRenderer
) -> None:
    """Raises when the template leaves out a tool, as those of models without tool use do."""
    if not tools:
        return
    rendered = template.render(turns, tools=tools)
    if not all(tool["function"]["name"] in rendered for tool in tools):
        raise InputError(
            "This model's chat template knows no tools. Use a model made for them, or describe "
            "them in a message.",
            param="tools",
            code="unsupported_parameter",
        )
