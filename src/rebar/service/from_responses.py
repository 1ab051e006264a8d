"""From OpenAI's Responses to a chat request.

Instructions are the first system message. A message that the model said and the calls it made after
it are one turn of the assistant; the output of a call is a turn of the tool. Nothing is stored, so
whatever refers to an earlier response is refused.
"""

from __future__ import annotations

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
from rebar.service.wire_responses import InputItem, InputPart, ResponsesBody, ResponseTool

NAMES = (
    (r"max_completion_tokens", "max_output_tokens"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
)
SAME = (
    "model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed", "stop", "top_k",
    "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",
    "ignore_eos", "priority",
)  # fmt: skip
ROLES = frozenset({"user", "assistant", "system", "developer"})
TEXTS = frozenset({"input_text", "output_text", "text"})


def from_responses(body: ResponsesBody) -> Converted:
    """The chat request that asks for the same. Raises InputError naming the field."""
    _refuse_storage(body)
    refuse_unsupported(body)
    turns = Turns()
    if body.instructions:
        turns.add(ChatMessage(role="system", content=body.instructions), "instructions")
    if isinstance(body.input, str):
        turns.add(ChatMessage(role="user", content=body.input), "input")
    else:
        for i, item in enumerate(body.input):
            _take(turns, item, f"input[{i}]")
    chat = ChatBody(
        messages=turns.messages,
        max_completion_tokens=body.max_output_tokens,
        response_format=_format(body),
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])] or None,
        tool_choice=_choice(body.tool_choice),
        **{name: getattr(body, name) for name in SAME},
    )
    return Converted(chat, tuple(turns.origins), NAMES, "input")


def _refuse_storage(body: ResponsesBody) -> None:
    if body.store:
        raise unsupported("store", "nothing is stored here. Set it to false, or leave it out.")
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name) is not None:
            raise unsupported(
                name, "nothing is stored here. Send the whole conversation as `input`."
            )


def _take(turns: Turns, item: InputItem, place: str) -> None:
    match item.type or "message":
        case "message":
            _message(turns, item, place)
        case "function_call":
            call = FunctionCall(
                given(item.name, f"{place}.name"), given(item.arguments, f"{place}.arguments")
            )
            turns.call(ToolCall(call, given(item.call_id, f"{place}.call_id")), place)
        case "function_call_output":
            call_id = given(item.call_id, f"{place}.call_id")
            content = _content(item.output, f"{place}.output")
            turns.add(ChatMessage(role="tool", content=content, tool_call_id=call_id), place)
        case kind:
            raise unsupported(
                place,
                f"an item of type {kind[:40]!r} means nothing here. Messages, function calls and "
                "their outputs do.",
            )


def _message(turns: Turns, item: InputItem, place: str) -> None:
    role = given(item.role, f"{place}.role")
    if role not in ROLES:
        raise InputError(
            f"`{place}.role` must be user, assistant, system or developer.", param=f"{place}.role"
        )
    content = _content(item.content, f"{place}.content")
    turns.add(ChatMessage(role=role, content=content), place)


def _content(asked: str | list[InputPart] | None, place: str) -> str | list[ContentPart]:
    if isinstance(asked, str):
        return asked
    parts = given(asked, place)
    for i, part in enumerate(parts):
        if part.type not in TEXTS or part.text is None:
            raise unsupported(
                f"{place}[{i}]", f"{part.type[:40]!r} is no text, and this model reads text only."
            )
    return [ContentPart("text", part.text) for part in parts]


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    """`text.format`, which has the parts of a json_schema beside its type."""
    asked = body.text.format if body.text is not None else None
    if asked is None or asked.get("type") != "json_schema":
        return asked
    return schema_format(asked)


def _tool(tool: ResponseTool, place: str) -> Tool:
    if tool.type != "function":
        raise unsupported(
            "tools", f"{place} is of type {tool.type[:40]!r}; only functions can be called here."
        )
    name = given(tool.name, f"{place}.name")
    return Tool("function", ToolFunction(name, tool.description, tool.parameters))


def _choice(asked: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(asked, dict) and asked.get("type") == "function" and "function" not in asked:
        return {"type": "function", "function": {"name": asked.get("name")}}
    if isinstance(asked, dict) and asked.get("type") != "function":
        raise unsupported("tool_choice", "give none, auto, required or a function.")
    return asked
