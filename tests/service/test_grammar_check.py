"""Whatever is asked of the checker: an answer in bounded time, and nobody is refused for another's
sake.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebar.errors import EngineError, InputError
from rebar.service import grammar_check
from rebar.service.grammar_check import GrammarChecker
from tests.service.live import wait_for
from tests.service.rebar_process import RebarProcess
from tests.service.schemas import SCHEMAS
from tests.service.test_structured import grammar

GOOD = grammar(guided_json=SCHEMAS[0])


def slow(letter: str) -> str:
    """Seventeen patterns that must all hold take minutes to intersect."""
    patterns = [{"pattern": f".*{letter}.{{{i}}}b.*"} for i in range(3, 20)]
    return grammar(guided_json={"type": "string", "allOf": patterns})


def chain(length: int) -> str:
    """Rules that are each the next one; the compiler goes down them."""
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(length))
    return f'start: r0\n{rules}\nr{length}: "a"'


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    made.close()


def pid_of(checker: GrammarChecker) -> int:
    assert checker._process is not None
    return checker._process.pid


def test_a_hostile_grammar_is_refused_in_bounded_time(checker: GrammarChecker) -> None:
    """It is not tried again for a while, and the next question works."""
    with pytest.raises(InputError, match="longer than 2 s"):
        checker.check(slow("a"))
    assert checker._process is None
    with pytest.raises(InputError, match="longer than 2 s"):
        checker.check(slow("a"))
    assert checker._process is None, "it was remembered"
    checker.check(GOOD)


def test_what_is_known_waits_for_nobody(checker: GrammarChecker) -> None:
    """Somebody's hostile grammars, one after the other, would keep all others in a queue."""
    checker.check(GOOD)
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(InputError):
            checker.check(slow("c"))
        ended.set()

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(checker._turn.locked)
    for _ in range(100):
        checker.check(GOOD)
    assert not ended.is_set()
    thread.join()


def test_a_doubtful_refusal_is_forgotten(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was busy for two seconds refused a good schema until the server's end."""
    checker.check(grammar(guided_regex="a"))
    monkeypatch.setattr(grammar_check, "DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(grammar_check, "CHECK_SECONDS", 0.2)
    os.kill(pid_of(checker), signal.SIGSTOP)
    stat = Path(f"/proc/{pid_of(checker)}/stat")
    wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")
    with pytest.raises(InputError, match="takes longer"):
        checker.check(GOOD)
    monkeypatch.undo()
    checker.check(GOOD)
    assert checker.known(GOOD) == ""
    with pytest.raises(InputError):
        checker.check(grammar(guided_regex="(("))
    assert checker.known(grammar(guided_regex="((")), "what is surely wrong stays known"


def test_a_checker_that_was_killed_refuses_nobody(checker: GrammarChecker) -> None:
    """Its end was taken for the grammar's fault, and that was remembered."""
    checker.check(GOOD)
    os.kill(pid_of(checker), signal.SIGKILL)
    checker.check(grammar(guided_json=SCHEMAS[1]))
    first = pid_of(checker)
    killed = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    killed.start()
    with pytest.raises(InputError, match="longer than 2 s"):
        checker.check(slow("d"))  # the next one is asked, too
    killed.join()
    checker.check(grammar(guided_json=SCHEMAS[2]))


def test_what_ends_the_compiler_is_told(checker: GrammarChecker) -> None:
    checker.check(GOOD)
    with pytest.raises(InputError, match="nested too deeply"):
        checker.check(grammar(guided_grammar=chain(3000)))
    checker.check(grammar(guided_json=SCHEMAS[3]))


def test_a_checker_that_does_not_start(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No grammar's fault."""
    monkeypatch.setattr(grammar_check, "COMMAND", "raise SystemExit(1)")
    with pytest.raises(EngineError, match="does not start"):
        checker.check(GOOD)
    monkeypatch.undo()
    checker.check(GOOD)


def test_no_grammar_that_passes_ends_an_engine(processes: RebarProcess) -> None:
    """The checker had the stack that an engine has: between what one bears and what the other
    bears there was room for a grammar that ended one engine after the other. It has an eighth.
    """
    statuses = []
    for length in (50, 100, 150, 200, 250, 300, 400, 500, 700, 1000, 2000, 3000):
        answer = processes.chat(guided_grammar=chain(length), max_tokens=3)
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["message"]["content"] == "a"
    assert set(statuses) == {200, 400}, "void: the limit is not among these"
    assert statuses == sorted(statuses)
