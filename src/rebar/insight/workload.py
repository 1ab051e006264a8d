"""What users ask: when they come, how much they say, how long an answer they want, who leaves.

The law: the request of number i is a function of (seed, i) and nothing else, so two runs, two
servers and two machines get the same bytes, and nothing is kept of a request that was sent.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rebar.errors import InputError

Kind = Literal["constant", "uniform", "lognormal"]
Route = Literal["chat", "completions"]
PATHS: dict[Route, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
CHARACTERS_PER_TOKEN = 4.5
"""Of the words below under the usual vocabularies; a server that has /tokenize is asked instead."""
TEXT_CHARACTERS = 1 << 18
WORDS = tuple(
    """
the of and to in a is that for it as was with be by on not he this are or his from at which
but have an had they you were their one all we can her has there been if more when will would
who so no said what up its about into than them only other time new some could these two may
first then do any like my now over such our man me even most made after also did many before
must through back years where much your way well down should because each just those people
how too little state good very make world still own see men work long get here between both
life being under never day same another know while last might us great old year off come
since against go came right used take three house river winter letter garden morning answer
""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts: `constant` (low), `uniform` (low to high, both included) or
    `lognormal` (median, sigma of the logarithm; never below 1 nor above 64 medians).
    """

    kind: Kind
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """ "64", "20-200" (uniform) or "lognormal:120,0.6". InputError for anything else."""
        number = r"([0-9]{1,7}(?:\.[0-9]{1,6})?)"
        if match := re.fullmatch(r"([0-9]{1,7})", text):
            return cls._of("constant", match[1])
        if match := re.fullmatch(r"(?:uniform:)?([0-9]{1,7})-([0-9]{1,7})", text):
            return cls._of("uniform", match[1], match[2])
        if match := re.fullmatch(rf"lognormal:{number},{number}", text):
            return cls._of("lognormal", match[1], match[2])
        raise InputError(
            f"{text!r} is no distribution of lengths. Write 64, 20-200 or lognormal:120,0.6 "
            "(median, sigma)."
        )

    @classmethod
    def _of(cls, kind: Kind, first: str, second: str = "0") -> Lengths:
        found = cls(kind, float(first), float(second))
        if found.first < 1 or (kind == "uniform" and found.second < found.first):
            raise InputError("Lengths are 1 token or more, and the lower bound comes first.")
        return found

    def draw(self, chance: random.Random) -> int:
        """A number of tokens, 1 or more."""
        if self.kind == "constant":
            return int(self.first)
        if self.kind == "uniform":
            return chance.randint(int(self.first), int(self.second))
        drawn = self.first * math.exp(self.second * chance.gauss(0.0, 1.0))
        return max(1, min(round(drawn), round(64 * self.first)))

    def __str__(self) -> str:
        if self.kind == "constant":
            return f"{self.first:.0f}"
        if self.kind == "uniform":
            return f"{self.first:.0f}-{self.second:.0f}"
        return f"lognormal, median {self.first:g}, sigma {self.second:g}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. number: its place in the run. leaves_after: texts after which its user is gone,
    leaves_at: seconds after which; None for one who stays.
    """

    number: int
    body: bytes
    max_tokens: int
    leaves_after: int | None = None
    leaves_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What all users of a run have in common.

    prompt, output: tokens (output as `max_tokens`). text: what prompts are cut from; "" for words
    at random. per_token: its characters a token. shared: tokens with which every prompt begins.
    leave: share of users who leave in the middle: somewhere in the first half of what they asked
    for, or within so many seconds (hurry), whatever has come. extra: fields of every body.
    """

    prompt: Lengths = Lengths("uniform", 20, 200)
    output: Lengths = Lengths("uniform", 16, 64)
    seed: int = 0
    route: Route = "chat"
    model: str | None = None
    text: str = ""
    per_token: float = CHARACTERS_PER_TOKEN
    shared: int = 0
    leave: float = 0.0
    hurry: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.leave <= 1:
            raise InputError("A share of users is 0 to 1.", param="leave")
        if not self.text:
            object.__setattr__(self, "text", words(self.seed))
        elif len(self.text) < 1000:
            raise InputError("Prompts are cut from a text of 1,000 characters or more.")

    def ask(self, number: int) -> Ask:
        """The request of this number."""
        chance = random.Random(f"{self.seed}:{number}")
        tokens = self.prompt.draw(chance)
        prompt = self._cut(0, self.shared) + self._prompt(chance, tokens - self.shared)
        wanted = self.output.draw(chance)
        leaves = chance.random() < self.leave
        after = chance.randrange(max(1, wanted // 2)) if leaves and not self.hurry else None
        at = chance.uniform(0.0, self.hurry) if leaves and self.hurry else None
        body: dict[str, Any] = {"model": self.model} if self.model else {}
        if self.route == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body |= {"max_tokens": wanted, "stream": True, "stream_options": {"include_usage": True}}
        return Ask(number, json.dumps(body | self.extra).encode(), wanted, after, at)

    def _prompt(self, chance: random.Random, tokens: int) -> str:
        """So many tokens of the text from the beginning of a word on, wherever that is."""
        return self._cut(chance.randrange(len(self.text)), max(tokens, 1))

    def _cut(self, start: int, tokens: int) -> str:
        """From the next word on; the text goes round."""
        if tokens <= 0:
            return ""
        text, count = self.text, max(1, round(tokens * self.per_token))
        start = text.find(" ", start) + 1 if start else 0
        times = 1 + (start + count) // len(text)
        return (text * times)[start : start + count] + " "


def words(seed: int, characters: int = TEXT_CHARACTERS) -> str:
    """A text of common words in random order: no sense in it, and no repetition either."""
    chance = random.Random(f"{seed}:words")
    return " ".join(chance.choices(WORDS, k=characters // 5))


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Moments of a Poisson process, seconds from its start: users do not know each other."""
    chance = random.Random(f"{seed}:arrivals")
    moment = 0.0
    while True:
        moment += chance.expovariate(rate)
        yield moment
