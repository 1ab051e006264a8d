"""Our tokenizer beside Hugging Face's: python -m bench.tokenizers PEERS MODEL.gguf TOKENIZER.json

SmolLM2's vocabulary twice: MODEL for ours, TOKENIZER.json for theirs (in PEERS/ov). Half a megabyte
of Python's own documentation (prose, code, tables; nothing repeats, so no cache of words is
flattered), a short prompt, and texts made to be slow, whose time should grow as their length. Both
sides must give the same ids, or the table says that it compares nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.harness import Command, Facts, median, number, peer, rounds
from bench.peers.text_work import measure

# Over texts 32 times as long, memory that is no longer cached, and pages that the allocator fetches
# anew for each call, cost up to threefold; a quadratic algorithm would show 32.
LINEAR = 4.0
OURS, THEIRS = "rebar", "tokenizers"


def long_text() -> str:
    """The help topics that every CPython carries."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def ours(model: Path, text: Path) -> Facts:
    """The facts of our tokenizer, measured in this process."""
    from rebar.dataflow.text import Tokenizer
    from rebar.graph.weights import open_model

    tokenizer = Tokenizer.of(open_model(model))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, bos=False)

    return measure(encode, text.read_text(encoding="utf-8")) | {"engine": OURS}


def repaired(exported: str) -> str:
    """A tokenizer.json of SmolLM2 as its authors publish it: what transformers exports from a GGUF
    file forgets that digits stand alone."""
    data = json.loads(exported)
    if data["pre_tokenizer"]["type"] == "ByteLevel":
        digits = {"type": "Digits", "individual_digits": True}
        data["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [digits, data["pre_tokenizer"]],
        }
    return json.dumps(data)


def compare(peers: Path, model: Path, tokenizer: Path, count: int) -> dict[str, Facts]:
    """Medians by engine: long_mb_s, short_us, worst growth and of what, digest of the ids."""
    with tempfile.TemporaryDirectory() as folder:
        text, theirs = Path(folder) / "long.txt", Path(folder) / "tokenizer.json"
        theirs.write_text(repaired(tokenizer.read_text(encoding="utf-8")), encoding="utf-8")
        text.write_text(long_text(), encoding="utf-8")
        own: Command = [sys.executable, "-m", "bench.tokenizers", "--ours", str(model), str(text)]
        engines = {OURS: own}
        if command := peer(peers, "ov", "peer_tokenizers.py", str(theirs), str(text)):
            engines[THEIRS] = command
        return {name: summary(runs) for name, runs in rounds(engines, count).items()}


def summary(runs: list[Facts]) -> Facts:
    """The medians of one engine's runs."""
    growth = {
        pattern: value
        for pattern in runs[0]["growth"]
        if (value := median(runs, "growth", pattern)) is not None
    }
    worst = max(growth, key=lambda pattern: growth[pattern])
    return {
        "long_mb_s": median(runs, "long_mb_s"),
        "short_us": median(runs, "short_us"),
        "worst": worst,
        "growth": growth[worst],
        "digest": runs[0]["digest"],
    }


def table(found: Mapping[str, Facts]) -> list[str]:
    """A line an engine, then how far ours is ahead."""
    lines = [f"{'':<14}{'long, MB/s':>12}{'short, us':>12}  worst growth of time over length"]
    for name, f in found.items():
        lines.append(
            f"{name:<14}{number(f['long_mb_s']):>12}{number(f['short_us']):>12}"
            f"  {f['growth']:.2f} ({f['worst']})"
        )
    if found.keys() >= {OURS, THEIRS}:
        first, second = found[OURS], found[THEIRS]
        lines.append(
            f"{'ahead':<14}{first['long_mb_s'] / second['long_mb_s']:>11.2f}x"
            f"{second['short_us'] / first['short_us']:>11.2f}x"
        )
        if first["digest"] != second["digest"]:
            lines.append("THE IDS DIFFER: this compares nothing")
    return lines


def main() -> None:
    """Measures and prints."""
    if sys.argv[1:2] == ["--ours"]:
        print(json.dumps(ours(Path(sys.argv[2]), Path(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf or .rebar file")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of the same model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = compare(given.peers, given.model.resolve(), given.tokenizer.resolve(), given.rounds)
    print(json.dumps(found) if given.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
