"""Tool calls out of text as it comes, in the notation of Hermes and Qwen:

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>

The law: the result is a function of the whole text; how it was cut into pieces decides only when
a part is given out, never what. Arguments go out as they come, in the model's own spelling. What
looks like a call and is none is text.
"""

from __future__ import annotations

import json
import re
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


class ToolParser:
    """One answer. `push` and `finish` give text and parts of calls in the order of the answer."""

    def __init__(self) -> None:
        self.calls = 0
        self._buffer = ""
        self._state = self._text
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

    def _head(self) -> bool:
        """Behind the mark, before the arguments."""
        close, head = self._buffer.find(CLOSE), _HEAD.match(self._buffer)
        if head and (close < 0 or head.end() <= close):
            name = _name(head[1])
            if name is not None:
                self._begin(name)
                self._buffer, self._state = self._buffer[head.end() :], self._arguments
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
                    self._buffer, self._state = self._buffer[at + 1 :], self._tail
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
