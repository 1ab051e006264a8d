"""Fuzzes the .rebar reader: any bytes give a model or a ModelFileError, nothing else.

The header's digest and the lengths before it are made right again after each change: with them
wrong, nothing behind them would ever be reached.

    python -m tests.fuzz.fuzz_rebar CORPUS -max_total_time=600
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from rebar.graph.weights import open_model, write_rebar
from tests.fuzz.harness import Target, fuzz
from tests.tiny import tiny_gguf

PREFIX_BYTES = 64


def seeds(folder: Path) -> list[bytes]:
    """Headers of a small file of each family."""
    small = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "mlp_width": 32}
    found = []
    for family in ("llama", "qwen2", "gemma3"):
        target = folder / f"{family}.rebar"
        source = open_model(tiny_gguf(folder, family, "Q8_0", **small))
        write_rebar(source, target, vocabulary=b"tables", provenance={"source": "fuzz"})
        raw = target.read_bytes()
        found.append(raw[: PREFIX_BYTES + int.from_bytes(raw[16:24], "little")])
    return found


def mended(data: bytes) -> bytes:
    """A file of 256 KiB around the header in `data`, with lengths and digest that fit."""
    body = data[PREFIX_BYTES:]
    whole = 1 << 18
    lengths = len(body).to_bytes(8, "little") + whole.to_bytes(8, "little")
    return (data[:16] + lengths + hashlib.sha256(body).digest() + body).ljust(whole, b"\0")


TARGET = Target("model.rebar", seeds, open_model, mended)

if __name__ == "__main__":
    fuzz(TARGET)
