"""Fuzzes the GGUF reader: any bytes give a model or a ModelFileError, nothing else.

python -m tests.fuzz.fuzz_gguf CORPUS -max_total_time=600
"""

from __future__ import annotations

from pathlib import Path

from rebar.graph.weights import open_model
from tests.fuzz.harness import Target, fuzz
from tests.tiny import tiny_gguf


def seeds(folder: Path) -> list[bytes]:
    """One small file of each family."""
    small = {"layers": 1, "heads": 2, "kv_heads": 1}
    return [
        tiny_gguf(folder, "llama", "Q4_0", width=32, mlp_width=32, **small).read_bytes(),
        tiny_gguf(folder, "qwen2", "F16", width=8, mlp_width=8, **small).read_bytes(),
        tiny_gguf(folder, "gemma3", "BF16", width=8, mlp_width=8, **small).read_bytes(),
    ]


TARGET = Target("model.gguf", seeds, open_model)

if __name__ == "__main__":
    fuzz(TARGET)
