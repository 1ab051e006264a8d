"""A request in the words of another API as a chat request, and the way back for its errors.

The law: there is one way to the engine. Responses and Messages are turned into a ChatBody here and
go on as one; what the chat request finds wrong is told in the names of the API that the caller
speaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rebar.errors import InputError
from rebar.service.wire import ChatBody, ChatMessage, ToolCall

_MESSAGE = re.compile(r"\bmessages(?:\[(\d+)\](?:\.(?:content|tool_calls)(?:\[\d+\])?[\w.]*)?)?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Converted:
    """chat: what goes on. origins: where each of its messages came from, as the caller calls it.
    names: patterns of chat parameters, as `param` says them, and what the caller calls them.
    whole: the field that holds the conversation.
    """

    chat: ChatBody
    origins: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    whole: str

    def told(self, work: Callable[[ChatBody], T]) -> T:
        """The result of `work` on the chat request; its InputError in the caller's names."""
        try:
            return work(self.chat)
        except InputError as error:
            raise self.renamed(error) from None

    def renamed(self, error: InputError) -> InputError:
        """An error about the chat request in the caller's names."""
        param = self._named(f"`{error.param}`")[1:-1] if error.param else None
        return type(error)(self._named(str(error)), param=param, code=error.code)

    def _named(self, text: str) -> str:
        for pattern, theirs in self.names:
            text = re.sub(rf"`{pattern}(?=[`.\[])", f"`{theirs}", text)
        return _MESSAGE.sub(self._place, text)

    def _place(self, match: re.Match[str]) -> str:
        index = int(match[1]) if match[1] else None
        known = index is not None and index < len(self.origins)
        return self.origins[index] if known and index is not None else self.whole


@dataclass(slots=True)
class Turns:
    """Chat messages as they are gathered, and where each came from."""

    messages: list[ChatMessage] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    def add(self, message: ChatMessage, origin: str) -> None:
        """One more turn."""
        self.messages.append(message)
        self.origins.append(origin)

    def last(self, role: str) -> ChatMessage | None:
        """The latest turn, if it is of `role`."""
        latest = self.messages[-1] if self.messages else None
        return latest if latest is not None and latest.role == role else None

    def call(self, call: ToolCall, origin: str) -> None:
        """A call of the assistant, in the turn in which it last spoke or called."""
        said = self.last("assistant")
        if said is None:
            self.add(ChatMessage(role="assistant", tool_calls=[call]), origin)
        else:
            said.tool_calls = [*(said.tool_calls or []), call]


def schema_format(asked: dict[str, Any]) -> dict[str, Any]:
    """Chat's `response_format` for a json_schema whose parts stand beside its type."""
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in asked.items() if key != "type"},
    }


def given(value: T | None, place: str) -> T:
    """The value, which must be there."""
    if value is None:
        raise InputError(f"`{place}` is required.", param=place, code="missing_parameter")
    return value


def unsupported(param: str, what: str) -> InputError:
    """An error for what the other API has and this server has not."""
    return InputError(f"`{param}`: {what}", param=param, code="unsupported_parameter")
