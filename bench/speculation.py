"""What guessing from the text so far gives, and what it costs where nothing repeats.

python -m bench.speculation MODEL: ten prompts that ask for a text again with one change, greedy,
and ten that ask for something new, sampled; each with and without guesses in turns, in one process.
All answers must be the same ids. Tokens a second are those of answers to prompts that the cache
knows; the ratio is also given in processor time of all threads, which neighbours change less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Facts, Line, markdown, note, number
from bench.speculation_prompts import COPYING, FREE

import rebar

COPYING_TARGET, FREE_TARGET = 1.8, 0.97


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of an answer: by the clock, and of the processor."""

    wall: float
    cpu: float


@dataclass
class Answered:
    """One prompt: its ids, and what each run took without and with guesses."""

    ids: list[int]
    plain: list[Took] = field(default_factory=list)
    guessed: list[Took] = field(default_factory=list)

    def seconds(self, kind: str, clock: str) -> float:
        """The median of the runs of a kind."""
        return float(statistics.median(getattr(took, clock) for took in getattr(self, kind)))

    @property
    def ratio(self) -> float:
        """How many times faster with guesses, by medians."""
        return self.seconds("plain", "wall") / self.seconds("guessed", "wall")


def answer(
    model: rebar.Model, prompt: str, tokens: int, temperature: float
) -> tuple[list[int], Took]:
    """The ids of an answer, and what it took."""
    begin, busy = time.perf_counter(), time.process_time()
    said = model.chat(prompt, max_tokens=tokens, temperature=temperature, seed=len(prompt))
    return said.ids, Took(time.perf_counter() - begin, time.process_time() - busy)


def compare(
    plain: rebar.Model,
    guessing: rebar.Model,
    prompts: tuple[str, ...],
    rounds: int,
    tokens: int,
    temperature: float,
) -> list[Answered]:
    """Every prompt in turns, after one turn that counts for nothing: it puts the prompts into both
    caches. AssertionError when an answer depends on guesses.
    """
    found = [Answered(answer(plain, prompt, tokens, temperature)[0]) for prompt in prompts]
    for prompt in prompts:
        answer(guessing, prompt, tokens, temperature)
    for round_ in range(rounds):
        for prompt, one in zip(prompts, found, strict=True):
            models = [(plain, one.plain), (guessing, one.guessed)]
            for model, runs in models if round_ % 2 else reversed(models):
                ids, took = answer(model, prompt, tokens, temperature)
                assert ids == one.ids, f"guesses changed the answer to {prompt!r}"
                runs.append(took)
    return found


def rate(found: list[Answered], kind: str, clock: str = "wall") -> float:
    """Tokens a second over all prompts, by the median of each."""
    return sum(len(one.ids) for one in found) / sum(one.seconds(kind, clock) for one in found)


def facts(model: str, threads: int | None, rounds: int, tokens: int) -> Facts:
    """copying and free: tokens a second without and with guesses, their ratio, the ratio of each
    prompt."""
    plain, guessing = (
        rebar.load(model, speculation=n, threads=threads, max_context=2048, kv_tokens=4096)
        for n in (0, 7)
    )
    measured: Facts = {}
    for name, prompts, temperature in (("copying", COPYING, 0.0), ("free", FREE, 0.8)):
        note(f"{name}: {len(prompts)} prompts, {rounds} rounds each way")
        found = compare(plain, guessing, prompts, rounds, tokens, temperature)
        was, now = rate(found, "plain"), rate(found, "guessed")
        measured[name] = {
            "plain": round(was, 1),
            "guessed": round(now, 1),
            "ratio": round(now / was, 3),
            "cpu_ratio": round(rate(found, "guessed", "cpu") / rate(found, "plain", "cpu"), 3),
            "each": [round(one.ratio, 2) for one in found],
            "tokens": sum(len(one.ids) for one in found),
        }
    plain.close()
    guessing.close()
    return measured


def line_of(name: str, target: float, measured: Facts) -> Line:
    """One line of the table: with guesses beside without."""
    one = measured[name]
    each = ", ".join(f"{ratio:.2f}" for ratio in sorted(one["each"]))
    return Line(
        f"{name} ({one['tokens']} tokens; each: {each})",
        f"at least {target} x",
        number(one["guessed"]),
        number(one["plain"]),
        f"{one['ratio']:.2f} (processor time {one['cpu_ratio']:.2f})",
        one["ratio"] >= target,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a file, a folder or pypi:package")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = str(Path(given.model).resolve()) if Path(given.model).exists() else given.model
    measured = facts(model, given.threads, given.rounds, given.tokens)
    lines = [
        line_of("copying", COPYING_TARGET, measured),
        line_of("free", FREE_TARGET, measured),
    ]
    print(json.dumps(measured) if given.json else "\n".join(markdown(lines)))


if __name__ == "__main__":
    main()
