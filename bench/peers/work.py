"""The work behind a figure's name, as src/rebar/insight/figures.py defines it for our engine.

prefillN: a prompt of N random ids, logits of the last. decodeR: steps of R sequences, one id each,
after 16 positions; decode1_atD: after D. Peers run in environments without Rebar, so the few
numbers stand here again; a test compares.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass

SHORT = 16
FIRST_ID, MARGIN = 100, 1000  # control ids lie below and, in some vocabularies, above
CHUNK = 512  # ids of a step


@dataclass(frozen=True)
class Work:
    """prompt ids at once, or `steps` steps of `rows` sequences at `depth` positions."""

    prompt: int = 0
    rows: int = 1
    depth: int = SHORT
    steps: int = 32

    @property
    def positions(self) -> int:
        """Positions of one sequence."""
        return (self.prompt or self.depth + self.steps) + 1


def parse(name: str) -> Work:
    """Raises ValueError for a name that is none."""
    if found := re.fullmatch(r"prefill(\d+)", name):
        return Work(prompt=int(found[1]))
    if found := re.fullmatch(r"decode(\d+)(?:_at(\d+))?", name):
        rows, depth = int(found[1]), int(found[2] or SHORT)
        return Work(rows=rows, depth=depth, steps=64 if rows == 1 and not found[2] else 32)
    raise ValueError(f"no figure {name!r}: prefillN, decodeR or decode1_atD")


def figures(names: list[str], run: Callable[[Work], list[float]]) -> dict[str, dict[str, float]]:
    """Median and spread of the runs of each figure; one that fails is said and left out."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        try:
            rates = run(parse(name))
        except Exception as error:  # whatever a foreign engine raises
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        if rates:
            found[name] = {
                "tok_s": statistics.median(rates), "low": min(rates), "high": max(rates)
            }  # fmt: skip
    return found
