"""LoRA steps beside torch: python -m bench.finetune PEERS MODEL.gguf HF_FOLDER

The same work (r 8 on q and v, 4 x 256 ids, AdamW) in turns, each run in a process of its own;
ratios of medians. HF_FOLDER: the same weights for transformers, in float32 when loaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.harness import Line, markdown, median, number, peer, rounds

OURS, THEIRS = "rebar", "torch"
FASTER, SMALLER = 1.5, 0.5


def main() -> None:
    """Measures and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    words = ("--threads", str(asked.threads), "--steps", str(asked.steps))
    engines = {OURS: [sys.executable, "-m", "bench.lora_step", str(asked.model), *words]}
    settings = ("speed", str(asked.folder), str(asked.threads), str(asked.steps))
    if command := peer(asked.peers, "ov", "peer_torch_lora.py", *settings):
        engines[THEIRS] = command
    runs = rounds(engines, asked.rounds)
    rate, memory = (
        [median(runs.get(name, []), key) for name in (OURS, THEIRS)]
        for key in ("tokens_s", "peak_mb")
    )
    lines = [_line("tokens/s", rate, FASTER), _line("peak MB", memory, SMALLER)]
    print("\n".join(markdown(lines)))


def _line(name: str, values: list[float | None], target: float) -> Line:
    ours, theirs = values
    ahead = ours / theirs if ours and theirs else None
    met = None if ahead is None else (ahead >= target if target > 1 else ahead <= target)
    words = f"{'at least' if target > 1 else 'at most'} {target} x torch"
    shown = "" if ahead is None else f"{ahead:.2f} x"
    return Line(f"LoRA step, {name}", words, number(ours), number(theirs), shown, met)


if __name__ == "__main__":
    main()
