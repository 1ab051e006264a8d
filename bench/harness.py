"""What the comparisons share: engines as commands that print facts, taken in turns; one table.

An engine that fails, or that is not there, leaves the run and not the run with it. Progress goes to
standard error, results to standard output.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT_S = 600  # no engine takes this long for one turn on a model these comparisons are for

Facts = dict[str, Any]
Command = list[str]


def note(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def rebar(*words: str) -> Command:
    """The command line of this project, in this environment."""
    return [sys.executable, "-m", "rebar", *words]


def peer(peers: Path, venv: str, script: str, *words: str) -> Command | None:
    """A script of bench/peers in the virtual environment PEERS/venv; None where that is not."""
    python = peers / venv / "bin" / "python"
    if not python.exists():
        note(f"{script}: {python} is not there, left out")
        return None
    return [str(python), str(HERE / "peers" / script), *words]


def measure(command: Sequence[str], limit_s: float = LIMIT_S) -> Facts | None:
    """The facts that a command prints in its last line, None when it fails (it says why on standard
    error)."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True
        )
        facts: Facts = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        note(f"  failed: {type(error).__name__}")
        return None
    return facts


def rounds(
    engines: Mapping[str, Command], count: int, run: Callable[[Command], Facts | None] = measure
) -> dict[str, list[Facts]]:
    """Alternately, so that a slow minute of the machine is everybody's. A failed engine is out."""
    results: dict[str, list[Facts]] = {name: [] for name in engines}
    for number in range(count):
        for name, command in engines.items():
            if len(results[name]) < number:
                continue
            note(f"round {number + 1} of {count}: {name}")
            if facts := run(command):
                results[name].append(facts)
    return {name: runs for name, runs in results.items() if runs}


def median(runs: Iterable[Facts], *path: str) -> float | None:
    """The median of the numbers at a path of keys; None when no run has it."""
    found = []
    for run in runs:
        value: Any = run
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(float(value))
    return statistics.median(found) if found else None


@dataclass(frozen=True, slots=True)
class Line:
    """A figure beside what it is measured against. target: what must hold, in words; met: whether
    it does, None when it could not be measured or nothing is asked."""

    figure: str
    target: str
    ours: str
    theirs: str = ""
    ratio: str = ""
    met: bool | None = None


def markdown(lines: Iterable[Line]) -> list[str]:
    """One table."""
    words = {True: "yes", False: "no", None: ""}
    head = ["| figure | target | ours | theirs | ratio | met |", "|---|---|---|---|---|---|"]
    return head + [
        f"| {x.figure} | {x.target} | {x.ours} | {x.theirs} | {x.ratio} | {words[x.met]} |"
        for x in lines
    ]


def number(value: float | None) -> str:
    """Four digits at most, "-" for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
