"""Tool calls out of text as it comes, in the notation of Hermes and Qwen:

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>

Models that were not taught these marks say the object alone, or in a code fence: Qwen2.5-Coder
gives `<tool_call>` a chance of one in 10^8, after five calls in the conversation. So an answer that
begins with such an object, of a tool that was offered, is a call as well, and what follows it may
be another.

The law: the result is a function of the whole text; how it was cut into pieces decides only when
a part is given out, never what. Arguments go out as they come, in the model's own spelling. What
looks like a call and is none is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call. name: with the first part only. arguments: what follows of their JSON."""

    index: int
    name: str | None
    arguments: str


Part = str | CallPiece
"""Text to show, or a part of a call."""


_SPACE = re.compile(r"\s+")
_BARE = re.compile(
    r'\s*(?P<fence>```(?:json)?\s*)?\{\s*"name"\s*:\s*"(?P<name>[A-Za-z0-9_-]{1,64})"\s*'
    r'(?:\}|(?P<arguments>,\s*"arguments"\s*:\s*(?=\{)))'
)


class ToolParser:
    """One answer. `push` and `finish` give text and parts of calls in the order of the answer.

    names: of the tools that were offered. one: of calls without marks only the first counts.
    """

    def __init__(self, names: Iterable[str] = (), *, one: bool = False) -> None:
        self.calls = 0
        self._one = one
        self._buffer = ""
        self._names = frozenset(names)
        self._heads = [
            f'{fence}{{"name":"{name}"{more}'
            for fence in ("", "```", "```json")
            for name in self._names
            for more in ("}", ',"arguments":{')
        ]
        self._fenced = False
        self._state = self._bare if self._names else self._text
        self._ending = self._tail
        self._depth = 0
        self._quoted = self._escaped = False
        self._out: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """More text."""
        self._buffer += text
        while self._state():
            pass
        return self._given()

    def finish(self) -> list[Part]:
        """The end: what was held back is text, unless it is a call that only lacks its end mark."""
        if self._state == self._text:
            self._out.append(self._buffer.rstrip() if self.calls else self._buffer)
        elif self._state == self._head:
            self._whole(self._buffer, OPEN + self._buffer)
        elif self._state in (self._bare, self._behind):
            self._out.append(self._buffer.rstrip() if self.calls else self._buffer)
        self._buffer = ""
        return self._given()

    def _given(self) -> list[Part]:
        parts, self._out = self._out, []
        return [part for part in parts if part]

    def _text(self) -> bool:
        """Outside of calls. Space before a call is no text, so it waits for what follows."""
        before, mark, after = self._buffer.partition(OPEN)
        if mark:
            self._out.append(before.rstrip())
            self._buffer, self._state = after, self._head
            return True
        keep = len(before) - _partial(before, OPEN)
        keep = len(before[:keep].rstrip())
        self._out.append(before[:keep])
        self._buffer = before[keep:]
        return False

    def _bare(self) -> bool:
        """At the beginning, or behind a call without marks: is this one? Space does not count."""
        compact = _SPACE.sub("", self._buffer)
        if any(head.startswith(compact) and head != compact for head in self._heads):
            return False
        found = _BARE.match(self._buffer)
        if found is None or found["name"] not in self._names:
            self._state = self._text
            return True
        self._fenced = self._fenced or bool(found["fence"])
        self._buffer = self._buffer[found.end() :]
        self._begin(found["name"])
        if found["arguments"]:
            self._state, self._ending = self._arguments, self._bare_tail
        else:
            self._more("{}")
            self._state = self._behind
        return True

    def _bare_tail(self) -> bool:
        """Behind the arguments of a call without marks: the bracket of its object."""
        rest = self._buffer.lstrip()
        if not rest:
            return False
        self._buffer, self._state = rest.removeprefix("}"), self._behind
        return True

    def _behind(self) -> bool:
        """Behind a call without marks: the end of its fence, then perhaps another."""
        self._buffer = "" if self._one else self._buffer.lstrip()
        if self._fenced and self._buffer.startswith("```"):
            self._buffer, self._fenced = self._buffer[3:].lstrip(), False
        if not self._buffer or (self._fenced and "```".startswith(self._buffer)):
            return False
        self._state = self._bare
        return True

    def _head(self) -> bool:
        """Behind the mark, before the arguments."""
        close, head = self._buffer.find(CLOSE), _HEAD.match(self._buffer)
        if head and (close < 0 or head.end() <= close):
            name = _name(head[1])
            if name is not None:
                self._begin(name)
                self._buffer, self._state = self._buffer[head.end() :], self._arguments
                self._ending = self._tail
                return True
        if close < 0:
            return False
        body, self._buffer = self._buffer[:close], self._buffer[close + len(CLOSE) :]
        self._state = self._text
        self._whole(body, OPEN + body + CLOSE)
        return True

    def _arguments(self) -> bool:
        """Inside the arguments: up to the bracket that closes the first."""
        for at, char in enumerate(self._buffer):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = char == "\\", char != '"'
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._more(self._buffer[: at + 1])
                    self._buffer, self._state = self._buffer[at + 1 :], self._ending
                    return True
        self._more(self._buffer)
        self._buffer = ""
        return False

    def _tail(self) -> bool:
        """Behind the arguments: nothing of it counts."""
        _, mark, after = self._buffer.partition(CLOSE)
        if not mark:
            return False
        self._buffer, self._state = after, self._text
        return True

    def _begin(self, name: str) -> None:
        self._out.append(CallPiece(self.calls, name, ""))
        self.calls += 1

    def _more(self, arguments: str) -> None:
        if arguments:
            self._out.append(CallPiece(self.calls - 1, None, arguments))

    def _whole(self, body: str, raw: str) -> None:
        """A call in another order of keys, or none at all."""
        try:
            call = json.loads(body)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._out.append(raw)
            return
        if not isinstance(name, str) or not isinstance(arguments, dict | str):
            self._out.append(raw)
            return
        self._begin(name)
        whole = arguments if isinstance(arguments, str) else json.dumps(arguments)
        self._more(whole)


def _name(quoted: str) -> str | None:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None


def _partial(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
