"""The tools of a chat request: what the template is given, and what the answer may be.

`auto`: the model decides, and its text is looked through for calls. `required` or a named tool: a
grammar lets it say calls and nothing else, with arguments of the tool's own schema. `none`: the
tools are not shown to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from rebar.errors import InputError
from rebar.service.schema_places import TOOLS, Schema, check_schema
from rebar.service.structured import MAX_GRAMMAR_BYTES, json_rules
from rebar.service.tool_parser import CLOSE, OPEN
from rebar.service.wire import ChatBody, Tool

if TYPE_CHECKING:
    from rebar.service.validator import Job

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """shown: the tools for the template. grammar: "" where the model decides. one: one call."""

    shown: list[dict[str, Any]]
    grammar: str
    one: bool


def tools_of(body: ChatBody) -> ToolUse | None:
    """What a request asks for, None without tools. Raises InputError naming the field."""
    tools = body.tools or []
    _check(tools)
    choice = _choice(body.tool_choice, tools)
    if not tools or choice == "none":
        return None
    one = body.parallel_tool_calls is False
    called = {i: t for i, t in enumerate(tools) if choice in {"required", t.function.name}}
    if choice != "auto" and body.ignore_eos:
        raise InputError("`ignore_eos` cannot go with `tool_choice`.", param="ignore_eos")
    grammar = "" if choice == "auto" else _grammar(called, one or choice != "required")
    shown = [msgspec.to_builtins(tool) for tool in tools]
    return ToolUse(shown, grammar, one)


def with_tools(job: Job, use: ToolUse) -> Job:
    """The job of a request with tools: its packets held to the calls, its text looked through.

    One call alone ends at its end mark, which is then a stop string.
    """
    if job.grammar:
        raise InputError(
            "`tools` and a form of the answer exclude each other. Leave one out, or set "
            "`tool_choice`: none.",
            param="tools",
        )
    stop = (CLOSE,) if use.one and not use.grammar else ()
    packets = [
        msgspec.structs.replace(packet, grammar=use.grammar, stop=(*packet.stop, *stop))
        for packet in job.packets
    ]
    names = tuple(tool["function"]["name"] for tool in use.shown)
    return replace(job, packets=packets, tools=names, one_call=use.one, place=TOOLS)


def _check(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise InputError(f"`tools` has more than {MAX_TOOLS} entries.", param="tools")
    names = [tool.function.name for tool in tools]
    for i, tool in enumerate(tools):
        if tool.type != "function":
            raise InputError(
                f"`tools[{i}].type` must be function.", param="tools", code="unsupported_parameter"
            )
        if not _NAME.fullmatch(tool.function.name):
            raise InputError(
                f"`tools[{i}].function.name` must have 1 to 64 letters, digits, _ or -.",
                param="tools",
            )
        if names.index(tool.function.name) != i:
            raise InputError(f"`tools` names {tool.function.name!r} twice.", param="tools")


def _choice(given: str | dict[str, Any] | None, tools: Sequence[Tool]) -> str:
    """none, auto, required, or the name of a tool (which may be called so: it is then itself)."""
    if given is None:
        return "auto"
    if isinstance(given, str):
        if given not in {"none", "auto", "required"}:
            raise InputError(
                "`tool_choice` must be none, auto, required or a function.", param="tool_choice"
            )
        if given == "required" and not tools:
            raise InputError("`tool_choice` needs `tools`.", param="tool_choice")
        return given
    function = given.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if given.get("type") != "function" or not isinstance(name, str):
        raise InputError(
            '`tool_choice` must be {"type": "function", "function": {"name": ...}}.',
            param="tool_choice",
        )
    if name not in {tool.function.name for tool in tools} or name in {"none", "auto", "required"}:
        raise InputError(f"`tool_choice`: there is no tool {name[:64]!r}.", param="tool_choice")
    return name


def _schema(tool: Tool) -> Schema:
    """Of its arguments, which are an object."""
    given = tool.function.parameters
    return {"type": "object", **(given or {"additionalProperties": False})}


def _grammar(tools: Mapping[int, Tool], one: bool) -> str:
    """Calls of these tools. Each schema stands alone, so that its own $defs are found."""
    lines = ["start: call" if one else 'start: call ("\\n" call)*']
    lines.append("call: " + " | ".join(f"call_{i}" for i in tools))
    for i, tool in tools.items():
        before = f'{OPEN}\n{{"name": "{tool.function.name}", "arguments": '
        schema = _schema(tool)
        check_schema(schema, f"{TOOLS}[{i}].function.parameters")
        text = json.dumps(json_rules(schema))
        after = json.dumps("}\n" + CLOSE)
        lines.append(f"call_{i}: {json.dumps(before)} args_{i} {after}")
        lines.append(f"args_{i}: %json {text}")
    grammar = "\n".join(lines)
    if len(grammar) > MAX_GRAMMAR_BYTES:
        raise InputError(
            f"The schemas of `tools` are larger than {MAX_GRAMMAR_BYTES} bytes. Offer fewer.",
            param="tools",
        )
    return msgspec.json.encode({"grammars": [{"lark_grammar": grammar}]}).decode()
