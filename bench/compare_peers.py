"""Rebar beside other engines, alternately: python -m bench.compare_peers PEERS MODEL.gguf

PEERS: a folder with a virtual environment per engine: PEERS/llama (llama-cpp-python) and, where it
is there, PEERS/ov (openvino-genai). Absolute figures differ from machine to machine and hour to
hour, so the ratios of medians are what counts; every engine gets the same file, threads and hour.
Rebar runs as its users run it: through the command line, on the converted file. --best-of: another
file of the same model for llama.cpp, which counts with the better of both, figure by figure.
Progress goes to standard error, the table (or, with --json, one line of JSON) to standard output.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Command, Facts, median, note, number, peer, rebar, rounds

FIGURES = (
    *("prefill128", "prefill512", "prefill2048"),
    *("decode1", "decode1_at1024", "decode1_at4096", "decode8", "decode32"),
)
OURS = "rebar"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is measured: the file, another one for llama.cpp or None, threads, figures, runs of each
    figure in a round."""

    peers: Path
    model: Path
    best_of: Path | None = None
    threads: int = 2
    figures: tuple[str, ...] = FIGURES
    repeats: int = 3

    def commands(self) -> dict[str, Command]:
        """The engines that can be run here, ours first. "name: file" is one engine with several
        files."""
        threads, repeats = str(self.threads), str(self.repeats)
        only = [word for figure in self.figures for word in ("--only", figure)]
        ours = rebar("bench", "engine", str(self.model), "--json", "--threads", threads)
        found = {OURS: [*ours, "--repeats", repeats, *only]}
        for file in (self.model, self.best_of):
            words = (str(file), threads, repeats, *self.figures)
            if file and (command := peer(self.peers, "llama", "peer_llama_cpp.py", *words)):
                found[f"llama.cpp: {file.name}"] = command
        single = [
            f for f in self.figures if f.startswith(("prefill", "decode1_")) or f == "decode1"
        ]
        words = (str(self.model), repeats, *single)
        if single and (command := peer(self.peers, "ov", "peer_openvino.py", *words)):
            found["openvino"] = command
        return found

    def run(self, count: int) -> dict[str, Facts]:
        """`count` rounds; the figures of every engine that lived through one."""
        results = rounds(self.commands(), count)
        figures = {name: self._medians(runs) for name, runs in results.items()}
        if missing := self.commands().keys() - results.keys():
            note(f"failed and left out: {', '.join(sorted(missing))}")
        return best_files(figures)

    def _medians(self, runs: list[Facts]) -> Facts:
        keys = ("tok_s", "ceiling_tok_s", "share")
        found: Facts = {"load_s": median(runs, "load_s"), "version": runs[0].get("version")}
        found["figures"] = {
            figure: {
                key: value
                for key in keys
                if (value := median(runs, "figures", figure, key)) is not None
            }
            for figure in self.figures
            if median(runs, "figures", figure, "tok_s") is not None
        }
        return found


def best_files(results: Mapping[str, Facts]) -> dict[str, Facts]:
    """Engines with several files become one: of each figure the better, with the file it is of."""
    merged: dict[str, Facts] = {}
    for name, facts in results.items():
        engine, _, file = name.partition(": ")
        whole = merged.setdefault(engine, {**facts, "figures": {}})
        for figure, values in facts["figures"].items():
            known = whole["figures"].get(figure)
            if known is None or values["tok_s"] > known["tok_s"]:
                whole["figures"][figure] = values | ({"file": file} if file else {})
    return merged


def ratio(results: Mapping[str, Facts], engine: str, figure: str) -> float | None:
    """Ours over theirs, None where one of both is missing."""
    ours, theirs = (rate(results, name, figure) for name in (OURS, engine))
    return ours / theirs if ours is not None and theirs else None


def rate(results: Mapping[str, Facts], engine: str, figure: str) -> float | None:
    """Tokens a second."""
    value = results.get(engine, {}).get("figures", {}).get(figure, {}).get("tok_s")
    return None if value is None else float(value)


def table(results: Mapping[str, Facts], figures: tuple[str, ...]) -> list[str]:
    """A line a figure: ours, its share of the ceiling, then each peer and ours over it."""
    peers = [name for name in results if name != OURS]
    head = f"{'tok/s':<16}{OURS:>10}{'of ceiling':>12}" + "".join(f"{p:>22}" for p in peers)
    lines = [head]
    for figure in figures:
        share = results.get(OURS, {}).get("figures", {}).get(figure, {}).get("share")
        line = f"{figure:<16}{number(rate(results, OURS, figure)):>10}"
        line += f"{'-' if share is None else f'{share:.0%}':>12}"
        for name in peers:
            ahead = ratio(results, name, figure)
            times = "" if ahead is None else f" ({ahead:.2f}x)"
            line += f"{number(rate(results, name, figure)) + times:>22}"
        lines.append(line)
    loads = ", ".join(f"{name} {number(facts['load_s'])}" for name, facts in results.items())
    return [*lines, f"(ours over theirs; seconds to load: {loads})"]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--best-of", type=Path, help="another file of it for llama.cpp")
    parser.add_argument("--only", nargs="+", default=FIGURES, choices=FIGURES, metavar="FIGURE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="runs of a figure in each round")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    comparison = Comparison(
        given.peers, given.model.resolve(), given.best_of and given.best_of.resolve(),
        given.threads, tuple(given.only), given.repeats,
    )  # fmt: skip
    results = comparison.run(given.rounds)
    if given.json:
        print(json.dumps({"model": given.model.name, "results": results}))
    else:
        print("\n".join(table(results, comparison.figures)))


if __name__ == "__main__":
    main()
