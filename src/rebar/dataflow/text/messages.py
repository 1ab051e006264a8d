"""Chat messages as templates expect them: checked, copied, content as one text.

The rules: a content list of text parts becomes the parts joined by a line end. An assistant's null
or absent content is "". Arguments of a tool call given as JSON text become an object. The role
`developer` is given to templates as `system`, which is what they know. Roles are checked before
anything is rendered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rebar.errors import InputError

ROLES = ("system", "developer", "user", "assistant", "tool")
DEEPEST = 64  # nesting of tool descriptions and arguments

Messages = Sequence[Mapping[str, Any]]


def checked_messages(messages: Messages, text: Callable[[str], str]) -> list[dict[str, Any]]:
    """Copies for a template, every text passed through `text`. InputError names the message."""
    if not messages:
        raise InputError("messages is empty. Send at least one message.", param="messages")
    return [_message(message, f"messages[{i}]", text) for i, message in enumerate(messages)]


def copied(value: object, where: str, text: Callable[[str], str], depth: int = 0) -> object:
    """A deep copy of JSON-like data, texts and keys passed through `text`."""
    if isinstance(value, str):
        return text(_unicode(value, where))
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= DEEPEST:
        raise InputError(f"{where} is nested deeper than {DEEPEST}. Flatten it.", param=where)
    if isinstance(value, Mapping):
        return {
            copied(str(key), where, text): copied(item, where, text, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [copied(item, where, text, depth + 1) for item in value]
    raise InputError(f"{where} holds a {type(value).__name__}. Send JSON values.", param=where)


def _message(message: object, where: str, text: Callable[[str], str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{where} is no object. Send role and content.", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise InputError(
            f"{where} has role {role!r}. Use one of {', '.join(ROLES)}.", param=f"{where}.role"
        )
    result = {
        key: copied(value, f"{where}.{key}", text)
        for key, value in message.items()
        if key not in {"role", "content", "tool_calls"}
    }
    result["role"] = "system" if role == "developer" else role
    result["content"] = text(_content(message, f"{where}.content"))
    if message.get("tool_calls") is not None:
        result["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls", text)
    return result


def _content(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return _unicode(content, where)
    if content is None and message["role"] == "assistant":
        return ""
    if isinstance(content, list | tuple):
        return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))
    raise InputError(f"{where} must be text or a list of text parts.", param=where)


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InputError(
            f"{where} is of type {kind!r}, this model reads text only. Send text.", param=where
        )
    if not isinstance(part.get("text"), str):
        raise InputError(f"{where}.text must be text.", param=where)
    return _unicode(part["text"], where)


def _tool_calls(calls: object, where: str, text: Callable[[str], str]) -> list[object]:
    if not isinstance(calls, list | tuple):
        raise InputError(f"{where} must be a list of calls.", param=where)
    return [_tool_call(call, f"{where}[{i}]", text) for i, call in enumerate(calls)]


def _tool_call(call: object, where: str, text: Callable[[str], str]) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
    ):
        raise InputError(f"{where} needs a function with a name.", param=where)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return copied({**call, "function": {**function, "arguments": arguments}}, where, text)


def _arguments(arguments: object, where: str) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{where} is no JSON: {error}. Send an object.", param=where
            ) from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InputError(f"{where} must be a JSON object.", param=where)
    return arguments


def _unicode(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds a lone surrogate at character {error.start}, which is no Unicode text. "
            "Send well-formed UTF-8 or paired surrogates.",
            param=where,
            code="invalid_unicode",
        ) from error
    return value
