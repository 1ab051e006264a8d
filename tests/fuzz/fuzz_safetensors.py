"""Fuzzes the safetensors reader: any bytes give tensors or a ModelFileError, nothing else.

python -m tests.fuzz.fuzz_safetensors CORPUS -max_total_time=600
"""

from __future__ import annotations

from pathlib import Path

from rebar.graph.weights.safetensors import read_safetensors
from tests.fuzz.harness import Target, fuzz
from tests.tiny import tiny_model
from tests.tiny.hf import hf_values, safetensors_bytes


def seeds(_folder: Path) -> list[bytes]:
    """Small files of two types."""
    small = {"layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "mlp_width": 8, "vocab_size": 8}
    values = hf_values(tiny_model("llama", **small))
    return [safetensors_bytes(values, "F32"), safetensors_bytes(values, "BF16")]


TARGET = Target("model.safetensors", seeds, read_safetensors)

if __name__ == "__main__":
    fuzz(TARGET)
