"""Is a grammar one that can be compiled, and in bounded time? Asked in a process of its own.

Some regular expressions take minutes to compile, in native code that cannot be interrupted. A
process can: what takes longer than CHECK_SECONDS is killed and refused, and the next question
starts a new one. Only grammars that passed go to an engine.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

from rebar.errors import EngineError, RebarError
from rebar.service.frames import FrameReader, frame, leave_with, receive
from rebar.service.grammar import limits, refusal, sentence_of
from rebar.service.grammar_blame import place_of
from rebar.service.schema_places import TOOLS, at_pointer

CHECK_SECONDS = 2.0
START_SECONDS = 20.0  # a busy machine that starts Python
MAX_REMEMBERED = 256
DOUBT_SECONDS = 60.0
"""So long a grammar stays refused for what may have been the machine's fault."""
STACK_BYTES = 1 << 20
"""An eighth of what an engine compiles with: what is nested too deeply ends the checker, and never
an engine."""
MEMORY_BYTES = 4 << 30
_POINTER = re.compile(r"at (/.*?): ", re.DOTALL)
COMMAND = "from rebar.service.grammar_check import main; main()"
TOO_LONG = f"it takes longer than {CHECK_SECONDS:.0f} s to compile"
TOO_DEEP = "it is nested too deeply, or needs too much memory"


class GrammarChecker:
    """Checks grammars, one at a time; safe for threads. Starts its process when first asked."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # of the process
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._books = threading.Lock()  # of what is known: never held for long
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def check(self, grammar: str, place: str = "response_format") -> None:
        """Raises InputError for a grammar that cannot be compiled within CHECK_SECONDS. place:
        where in the request it is said; the error names the part of it that is at fault. What is
        known is answered at once, whoever is being checked.
        """
        reason = self.known(grammar)
        if reason is None:
            with self._turn:
                reason = self.known(grammar)  # somebody else may have asked meanwhile
                if reason is None:
                    reason = self._ask(grammar)
                    self._remember(grammar, reason)
        if reason:
            raise refusal(reason, fault_place(place, reason))

    def known(self, grammar: str) -> str | None:
        """Why it cannot be used, "" when it can, None when nobody has asked lately."""
        with self._books:
            reason, until = self._known.get(grammar, ("", 0.0))
            if time.monotonic() >= until:
                return None
            self._known.move_to_end(grammar)
            return reason

    def _remember(self, grammar: str, reason: str) -> None:
        doubtful = reason in (TOO_LONG, TOO_DEEP)
        with self._books:
            until = time.monotonic() + DOUBT_SECONDS if doubtful else math.inf
            self._known[grammar] = (reason, until)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)

    def close(self) -> None:
        """Ends the process."""
        with self._turn:
            self._end()

    def _ask(self, grammar: str) -> str:
        """The process's answer. One that ends may have been ended by somebody: the next is asked,
        too.
        """
        for _ in range(2):
            sock = self._sock or self._start()
            try:
                sock.settimeout(CHECK_SECONDS)
                sock.sendall(frame(grammar))
                answer = receive(sock, FrameReader(str))
            except TimeoutError:
                self._end()
                return TOO_LONG
            except OSError:
                answer = []
            if answer:
                return answer[0]
            self._end()
        return TOO_DEEP

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND], stdin=theirs.fileno(), start_new_session=True
            )
        ours.settimeout(START_SECONDS)
        self._sock = ours
        try:
            ready = bool(receive(ours, FrameReader(str)))
        except OSError:
            ready = False
        if not ready:
            self._end()
            raise EngineError("The grammar checker does not start. Look for its words above.")
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
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    answering = threading.Thread(target=_answer, args=(sock,))
    answering.start()
    answering.join()
    os._exit(0)


def _answer(sock: socket.socket) -> None:
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
