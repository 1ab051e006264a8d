"""Every figure that Rebar has set itself, in one table: python -m bench.all PEERS

PEERS: a folder with the peers' virtual environments (llama, ov) and PEERS/models with
smollm2.gguf, smollm2-q4_0.gguf (the same, requantized: llama.cpp's fastest type), gemma3.gguf,
qwen05.gguf and smollm2-hf/tokenizer.json. --only: some parts. A part whose engine fails has empty
cells and the others go on. About a quarter of an hour for all.
The Markdown goes to standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.compare_peers import OURS, Comparison, rate, ratio
from bench.harness import Facts, Line, markdown, note, number

from bench import busy_neighbour, data_loading, memory, start, tokenizers

Results = dict[str, Facts]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the peers and models are, and how long to measure."""

    peers: Path
    threads: int = 2
    rounds: int = 3

    def model(self, name: str) -> Path:
        """A model's file."""
        return self.peers / "models" / name


@dataclass(frozen=True, slots=True)
class Target:
    """Ours over an engine's figure, at least; share: of the ceiling, at least."""

    figure: str
    engine: str = ""
    times: float = 0.0
    share: float = 0.0

    def line(self, model: str, results: Results) -> Line:
        """The target beside what was measured."""
        ours = rate(results, OURS, self.figure)
        name, words = f"{model}, {self.figure}, tok/s", f"{self.times} x {self.engine}"
        if self.share:
            reached = results.get(OURS, {}).get("figures", {}).get(self.figure, {}).get("share")
            shown = "" if reached is None else f"{reached:.0%}"
            met = None if reached is None else reached >= self.share
            return Line(name, f"{self.share:.0%} of the ceiling", number(ours), "", shown, met)
        theirs, ahead = rate(results, self.engine, self.figure), ratio(
            results, self.engine, self.figure
        )  # fmt: skip
        shown = "" if ahead is None else f"{ahead:.2f} x"
        met = None if ahead is None else ahead >= self.times
        return Line(name, words, number(ours), number(theirs), shown, met)


LLAMA, OPENVINO = "llama.cpp", "openvino"
TARGETS = {
    "smollm2.gguf": (
        Target("decode1", LLAMA, 2.0),
        Target("decode1", share=0.75),
        Target("decode8", LLAMA, 3.0),
        Target("decode32", LLAMA, 4.0),
        Target("prefill512", LLAMA, 3.0),
        Target("prefill512", OPENVINO, 1.25),
        Target("decode1_at4096", LLAMA, 2.0),
    ),
    "gemma3.gguf": tuple(Target(f, LLAMA, 1.5) for f in ("decode1", "decode8", "prefill512")),
    "qwen05.gguf": tuple(Target(f, LLAMA, 1.5) for f in ("decode1", "decode8", "prefill512")),
}
BEST_OF = {"smollm2.gguf": "smollm2-q4_0.gguf"}


def peers_of(model: str) -> Callable[[Setting], list[Line]]:
    """The part that compares one model's figures."""

    def part(setting: Setting) -> list[Line]:
        targets = TARGETS[model]
        figures = tuple(dict.fromkeys(target.figure for target in targets))
        other = setting.model(BEST_OF[model]) if model in BEST_OF else None
        comparison = Comparison(
            setting.peers, setting.model(model), other, setting.threads, figures
        )
        results = comparison.run(setting.rounds)
        return [target.line(model.removesuffix(".gguf"), results) for target in targets]

    return part


def neighbour_lines(setting: Setting) -> list[Line]:
    """One busy process on a core."""
    engines = busy_neighbour.engines(setting.peers, setting.model("smollm2.gguf"), setting.threads)
    found = busy_neighbour.shares(engines, setting.rounds)
    kept = {name: facts["kept"] for name, facts in found.items()}
    theirs = ", ".join(f"{name} {share:.0%}" for name, share in kept.items() if name != OURS)
    ours = kept.get(OURS)
    shown, met = ("-", None) if ours is None else (f"{ours:.0%}", ours >= 0.6)
    return [Line("one busy neighbour, decode kept", "60 %", shown, theirs, "", met)]


def start_lines(setting: Setting) -> list[Line]:
    """Process start to first token."""
    model = setting.model("smollm2.gguf")
    facts = start.measure(setting.peers, model, setting.threads, 2 * setting.rounds + 1)
    theirs = number(facts.get("llama_s"))
    return [
        at_most("start to first token, s", 0.6, facts.get("ours_s"), theirs),
        at_most("of that in the engine, s", 0.25, facts.get("engine_s"), ""),
    ]


def tokenizer_lines(setting: Setting) -> list[Line]:
    """Text to ids."""
    found = tokenizers.compare(
        setting.peers, setting.model("smollm2.gguf"),
        setting.model("smollm2-hf/tokenizer.json"), setting.rounds,
    )  # fmt: skip
    ours, theirs = found.get(tokenizers.OURS, {}), found.get(tokenizers.THEIRS, {})
    lines = []
    for title, key, times in (
        ("tokenizer, long text, MB/s", "long_mb_s", 5.0),
        ("tokenizer, short prompt, us", "short_us", 4.0),
    ):
        a, b = ours.get(key), theirs.get(key)
        ahead = None if a is None or b is None else (a / b if key == "long_mb_s" else b / a)
        same = ours.get("digest") == theirs.get("digest")
        met = None if ahead is None else ahead >= times and same
        shown = "" if ahead is None else f"{ahead:.1f} x" + ("" if same else ", other ids")
        lines.append(Line(title, f"{times:g} x tokenizers", number(a), number(b), shown, met))
    growth = ours.get("growth")
    met = None if growth is None else growth <= tokenizers.LINEAR
    words, shown = (
        f"time over length: at most {tokenizers.LINEAR:g} (quadratic: 32)",
        "" if growth is None else f"{growth:.2f}",
    )
    theirs_shown = number(theirs.get("growth"))
    return [*lines, Line("tokenizer, worst input", words, shown, theirs_shown, "", met)]


def memory_lines(setting: Setting) -> list[Line]:
    """Peak resident memory."""
    facts = memory.facts(setting.model("smollm2.gguf"), setting.threads)
    if facts is None:
        return [at_most("peak RSS, MB", float("nan"), None, "")]
    return [at_most("peak RSS, MB (weights + KV + 120)", facts["limit_mb"], facts["peak_mb"], "")]


def data_lines(setting: Setting) -> list[Line]:
    """Records and ids for training."""
    model, tokenizer = setting.model("smollm2.gguf"), setting.model("smollm2-hf/tokenizer.json")
    return data_loading.lines_of(
        data_loading.compare(setting.peers, model, tokenizer, setting.rounds)
    )


def at_most(title: str, limit: float, value: float | None, theirs: str) -> Line:
    """A line whose figure should be small."""
    met = None if value is None else value <= limit
    return Line(title, f"at most {number(limit)}", number(value), theirs, "", met)


PARTS: dict[str, Callable[[Setting], list[Line]]] = {
    **{model.removesuffix(".gguf"): peers_of(model) for model in TARGETS},
    "neighbour": neighbour_lines,
    "start": start_lines,
    "tokenizer": tokenizer_lines,
    "memory": memory_lines,
    "data": data_lines,
}


def run(setting: Setting, parts: dict[str, Callable[[Setting], list[Line]]]) -> list[Line]:
    """The lines of the parts; one that fails is a line that says so."""
    lines: list[Line] = []
    for name, part in parts.items():
        note(f"== {name}")
        try:
            lines += part(setting)
        except Exception as error:  # whatever one part does, the others are measured
            note(f"{name}: {type(error).__name__}: {error}")
            lines.append(Line(name, "", f"failed: {type(error).__name__}"))
    return lines


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="the peers' environments, and models/")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    setting = Setting(given.peers.resolve(), given.threads, given.rounds)
    print("\n".join(markdown(run(setting, {name: PARTS[name] for name in given.only}))))


if __name__ == "__main__":
    main()
