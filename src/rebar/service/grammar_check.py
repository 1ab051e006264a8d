"""Is a grammar one that can be compiled, and in bounded time? Asked in a process of its own.

Some regular expressions take minutes to compile, in native code that cannot be interrupted. A
process can: what takes longer than CHECK_SECONDS is killed and refused, and the next question
starts a new one. Only grammars that passed go to an engine.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

from rebar.errors import RebarError
from rebar.service.frames import FrameReader, frame, leave_with, receive
from rebar.service.grammar import limits, refusal, sentence_of
from rebar.service.grammar_blame import place_of
from rebar.service.schema_places import TOOLS, at_pointer

CHECK_SECONDS = 2.0
START_SECONDS = 20.0  # a busy machine that starts Python
MAX_REMEMBERED = 256
COMMAND = "from rebar.service.grammar_check import main; main()"
_POINTER = re.compile(r"at (/.*?): ", re.DOTALL)
TOO_LONG = f"it takes longer than {CHECK_SECONDS:.0f} s to compile"


class GrammarChecker:
    """Checks grammars, one at a time; safe for threads. Starts its process when first asked."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._known: OrderedDict[str, str] = OrderedDict()

    def check(self, grammar: str, place: str = "response_format") -> None:
        """Raises InputError for a grammar that cannot be compiled within CHECK_SECONDS. place:
        where in the request it is said; the error names the part of it that is at fault.
        """
        with self._turn:
            reason = self._known.get(grammar)
            if reason is None:
                reason = self._known[grammar] = self._ask(grammar)
                while len(self._known) > MAX_REMEMBERED:
                    self._known.popitem(last=False)
            self._known.move_to_end(grammar)
        if reason:
            raise refusal(reason, fault_place(place, reason))

    def close(self) -> None:
        """Ends the process."""
        with self._turn:
            self._end()

    def _ask(self, grammar: str) -> str:
        try:
            sock = self._sock or self._start()
            sock.settimeout(CHECK_SECONDS)
            sock.sendall(frame(grammar))
            answer = receive(sock, FrameReader(str))
        except OSError:  # of which a time-out is one
            answer = []
        if not answer:
            self._end()
            return TOO_LONG
        return answer[0]

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND], stdin=theirs.fileno(), start_new_session=True
            )
        ours.settimeout(START_SECONDS)
        self._sock = ours
        receive(ours, FrameReader(str))
        return ours

    def _end(self) -> None:
        process, self._process = self._process, None
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        if process is not None:
            process.kill()
            process.wait()


# The other end.


def main() -> NoReturn:
    """Answers each grammar on standard input with what is wrong with it, "" for nothing."""
    sock = socket.socket(fileno=0)
    leave_with(sock)
    from llguidance import LLMatcher, LLTokenizer

    tables = LLTokenizer("byte")

    def reason_of(grammar: str) -> str:
        matcher = LLMatcher(tables, grammar, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        return str(matcher.get_error() or "")

    sock.sendall(frame("ready"))
    reader = FrameReader(str)
    with contextlib.suppress(OSError, RebarError):
        while given := receive(sock, reader):
            for grammar in given:
                sock.sendall(frame(_explained(grammar, reason_of)))
    sys.exit(0)


def fault_place(place: str, reason: str) -> str:
    """The place at fault, from the words of `_explained`. Of tools the first part of the pointer is
    the tool's number.
    """
    found = _POINTER.match(reason)
    if found is None:
        return place
    if place != TOOLS:
        return at_pointer(place, found[1])
    number, slash, rest = found[1][1:].partition("/")
    return at_pointer(f"{TOOLS}[{number}].function.parameters", slash + rest)


def _explained(grammar: str, reason_of: Callable[[str], str]) -> str:
    """What is wrong with a grammar and, in a schema, where, as far as that is found quickly."""
    reason = reason_of(grammar)
    if not reason:
        return ""
    end = time.monotonic() + CHECK_SECONDS / 4
    place = place_of(grammar, lambda part: reason_of(part) if time.monotonic() < end else "")
    return f"at {place}: {sentence_of(reason)}" if place else reason
