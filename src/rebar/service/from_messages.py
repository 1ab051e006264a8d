"""From Anthropic's Messages to a chat request.

`system` is the first message. Blocks of text are one text, joined by a line end; turns of one role
that follow each other are one turn, as there. What the model called is in its own turn; the result
of a call is a turn of the tool, and one with `is_error` begins with "Error: ". The last turn is the
caller's: an answer that is begun for the model ("prefill") is refused, since a template cannot be
asked to leave a turn open.
"""

from __future__ import annotations

import json
from typing import Any

from rebar.errors import InputError
from rebar.service.converted import Converted, Turns, given, schema_format, unsupported
from rebar.service.validator import refuse_unsupported
from rebar.service.wire import (
    ChatBody,
    ChatMessage,
    ContentPart,
    FunctionCall,
    Tool,
    ToolCall,
    ToolFunction,
)
from rebar.service.wire_messages import (
    Block,
    CountTokensBody,
    InputMessage,
    MessagesBody,
    MessagesTool,
    ToolChoice,
)

NAMES = (
    (r"response_format(\.json_schema)?", "output_config.format"),
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"stop", "stop_sequences"),
)
SAME = (
    "max_tokens", "temperature", "top_p", "top_k", "stream", "seed", "min_p",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "ignore_eos", "priority",
)  # fmt: skip


def from_messages(body: MessagesBody) -> Converted:
    """The chat request that asks for the same. Raises InputError naming the field."""
    converted = from_input(body)
    for name in SAME:
        setattr(converted.chat, name, getattr(body, name))
    converted.chat.stop = body.stop_sequences
    return converted


def from_input(body: CountTokensBody) -> Converted:
    """The input alone: what is read before anything is said."""
    refuse_unsupported(body)
    turns = Turns()
    if body.system:
        turns.add(ChatMessage(role="system", content=_texts(body.system, "system")), "system")
    for i, message in enumerate(body.messages):
        _take(turns, message, f"messages[{i}]")
    if body.messages and body.messages[-1].role == "assistant":
        raise unsupported(
            "messages", "the last turn must be the user's; an answer cannot be begun for the model."
        )
    choice = body.tool_choice
    chat = ChatBody(
        messages=turns.messages,
        model=body.model,
        response_format=_format(body),
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])] or None,
        tool_choice=_choice(choice),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
    )
    return Converted(chat, tuple(turns.origins), NAMES, "messages")


def _take(turns: Turns, message: InputMessage, place: str) -> None:
    match message.role:
        case "user":
            _user(turns, message.content, place)
        case "assistant":
            _assistant(turns, message.content, place)
        case "system":
            content = _texts(message.content, f"{place}.content")
            turns.add(ChatMessage(role="system", content=content), place)
        case _:
            raise InputError(
                f"`{place}.role` must be user, assistant or system.", param=f"{place}.role"
            )


def _user(turns: Turns, content: str | list[Block], place: str) -> None:
    if isinstance(content, str):
        _say(turns, "user", [ContentPart("text", content)], place)
        return
    for i, block in enumerate(content):
        where = f"{place}.content[{i}]"
        if block.type == "tool_result":
            text = _texts(block.content or "", f"{where}.content")
            if block.is_error and isinstance(text, str):
                text = f"Error: {text}"
            elif block.is_error:
                text = [ContentPart("text", "Error:"), *text]
            called = given(block.tool_use_id, f"{where}.tool_use_id")
            turns.add(ChatMessage(role="tool", content=text, tool_call_id=called), place)
        else:
            _say(turns, "user", [_text(block, where)], place)


def _assistant(turns: Turns, content: str | list[Block], place: str) -> None:
    if isinstance(content, str):
        _say(turns, "assistant", [ContentPart("text", content)], place)
        return
    for i, block in enumerate(content):
        where = f"{place}.content[{i}]"
        if block.type != "tool_use":
            _say(turns, "assistant", [_text(block, where)], place)
            continue
        arguments = json.dumps(given(block.input, f"{where}.input"))
        call = ToolCall(
            FunctionCall(given(block.name, f"{where}.name"), arguments),
            given(block.id, f"{where}.id"),
        )
        turns.call(call, place)


def _say(turns: Turns, role: str, parts: list[ContentPart], place: str) -> None:
    """Adds text to a turn that is not over, or begins one."""
    latest = turns.last(role)
    if latest is None or latest.tool_calls:
        turns.add(ChatMessage(role=role, content=parts), place)
    elif isinstance(latest.content, list):
        latest.content = [*latest.content, *parts]


def _texts(asked: str | list[Block], place: str) -> str | list[ContentPart]:
    if isinstance(asked, str):
        return asked
    return [_text(block, f"{place}[{i}]") for i, block in enumerate(asked)]


def _text(block: Block, place: str) -> ContentPart:
    if block.type != "text":
        raise unsupported(
            place, f"a block of type {block.type[:40]!r} means nothing to this model."
        )
    return ContentPart("text", given(block.text, f"{place}.text"))


def _format(body: CountTokensBody) -> dict[str, Any] | None:
    if body.output_config is None:
        return None
    if body.output_config.effort is not None:
        raise unsupported("output_config.effort", "there is one way to think here. Leave it out.")
    asked = body.output_config.format
    if asked is None:
        return None
    if asked.get("type") != "json_schema":
        raise InputError(
            "`output_config.format.type` must be json_schema.", param="output_config.format"
        )
    return schema_format(asked)


def _tool(tool: MessagesTool, place: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported("tools", f"{place} is of type {tool.type[:40]!r}, which is not run here.")
    schema = given(tool.input_schema, f"{place}.input_schema")
    return Tool("function", ToolFunction(tool.name, tool.description, schema))


def _choice(asked: ToolChoice | None) -> str | dict[str, Any] | None:
    if asked is None:
        return None
    match asked.type:
        case "auto" | "none":
            return asked.type
        case "any":
            return "required"
        case "tool":
            name = given(asked.name, "tool_choice.name")
            return {"type": "function", "function": {"name": name}}
    raise InputError("`tool_choice.type` must be auto, any, tool or none.", param="tool_choice")
