"""What a grammar costs a step: python -m bench.masks MODEL...

Twenty schemas, each walked to its end many times over the model's own vocabulary, in two ways: any
allowed id, each as likely as the others (stranger than any model), and the same texts again in the
tokens that the tokenizer gives them (what a model says). A mask is one `take`: go on by an id, say
what may follow. The first walk of each schema fills the lexer's tables and is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.service.schemas import SCHEMAS

from rebar.dataflow.text import Tokenizer
from rebar.graph.weights import open_model
from rebar.service.grammar import Grammars
from rebar.service.structured import rules_of

WALKS = 20
LONGEST = 600


@dataclass(frozen=True)
class Costs:
    """Microseconds of every mask, sorted, and milliseconds to compile each schema."""

    name: str
    vocabulary: int
    any_id: list[float]
    as_said: list[float]
    compile_ms: list[float]

    def row(self) -> str:
        """A line of the table."""
        cells = [self.name, f"{self.vocabulary:,}", f"{len(self.as_said) + len(self.any_id):,}"]
        for masks in (self.as_said, self.any_id):
            cells += [f"{statistics.median(masks):.0f}", f"{masks[len(masks) * 99 // 100]:.0f}"]
        cells += [f"{statistics.median(self.compile_ms):.1f}", f"{max(self.compile_ms):.1f}"]
        return "| " + " | ".join(cells) + " |"


def grammars_of_schemas() -> Iterator[str]:
    """The schemas as requests ask for them."""
    return map(rules_of, SCHEMAS)


class Walker:
    """Walks grammars over one vocabulary and notes what each mask takes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.grammars = Grammars(tokenizer)
        self.chance = random.Random(1)

    def compile(self, grammar: str) -> float:
        """Milliseconds until it can be opened."""
        began = time.perf_counter()
        while not self.grammars.ready(grammar, wait=1.0):
            pass
        return (time.perf_counter() - began) * 1e3

    def any_id(self, grammar: str) -> tuple[str, list[float]]:
        """A text that obeys the grammar, and the microseconds of its masks."""
        state, said, costs = self.grammars.open(grammar, ()), list[int](), list[float]()
        while len(said) < LONGEST:
            bits = np.unpackbits(state.allowed.view(np.uint8), bitorder="little")
            token = int(self.chance.choice(np.flatnonzero(bits[: self.tokenizer.vocab_size])))
            if token in self.tokenizer.end_ids:
                break
            said.append(token)
            began = time.thread_time()
            ended = state.take(token)
            costs.append((time.thread_time() - began) * 1e6)
            if ended:
                break
        return self.tokenizer.decode(said), costs

    def as_said(self, grammar: str, text: str) -> list[float]:
        """The microseconds of the masks of a text; none when its tokens are another text's, as
        where a tokenizer composes characters.
        """
        state, costs = self.grammars.open(grammar, ()), list[float]()
        ids = self.tokenizer.encode(text, bos=False)
        for token in ids if self.tokenizer.decode(ids) == text else ():
            began = time.thread_time()
            ended = state.take(token)
            costs.append((time.thread_time() - began) * 1e6)
            if ended:
                break
        return costs


def measure(path: Path) -> Costs:
    """The costs on the vocabulary of a model file."""
    tokenizer = Tokenizer.of(open_model(path))
    walker = Walker(tokenizer)
    walker.compile(next(grammars_of_schemas()))  # the vocabulary's own tables, once for all
    compiled, loose, tight = [], list[float](), list[float]()
    for grammar in grammars_of_schemas():
        compiled.append(walker.compile(grammar))
        text, _ = walker.any_id(grammar)
        walker.as_said(grammar, text)
        for _ in range(WALKS):
            text, costs = walker.any_id(grammar)
            loose += costs
            tight += walker.as_said(grammar, text)
    walker.grammars.close()
    name = path.stem.split("-")[0]
    return Costs(name, tokenizer.vocab_size, sorted(loose), sorted(tight), compiled[1:])


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(prog="bench.masks", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    head = ["model", "vocabulary", "masks", "as said: median us", "P99", "any id: median us", "P99"]
    head += ["compile: median ms", "most"]
    sys.stdout.write("| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n")
    for path in parser.parse_args().models:
        sys.stdout.write(measure(path).row() + "\n")


if __name__ == "__main__":
    main()
