"""Adapters of random values for the tiny models, in folders as peft writes them. Written by hand
here, not by the writer that is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.graph.models.config import DecoderConfig
from tests.tiny.hf import FloatType, safetensors_bytes, write_json

F32 = NDArray[np.float32]
LEAVES = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip
PREFIX = "base_model.model."


def leaf_shape(c: DecoderConfig, leaf: str) -> tuple[int, int]:
    """(outputs, inputs) of a linear layer."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return {
        "q_proj": (q, c.width), "k_proj": (kv, c.width), "v_proj": (kv, c.width),
        "o_proj": (c.width, q), "gate_proj": (c.mlp_width, c.width),
        "up_proj": (c.mlp_width, c.width), "down_proj": (c.width, c.mlp_width),
    }[leaf]  # fmt: skip


def adapter_values(
    c: DecoderConfig, targets: Sequence[str], r: int, seed: int = 0, size: float = 1.0
) -> dict[str, F32]:
    """A and B of every layer, of variance 1/k and size^2/r: with a scale of 1 it changes a product
    about as much as the product is.
    """
    random = np.random.default_rng(seed)
    values: dict[str, F32] = {}
    for layer in range(c.layers):
        for leaf in targets:
            n, k = leaf_shape(c, leaf)
            module = f"model.layers.{layer}.{LEAVES[leaf]}.{leaf}"
            a, b = (random.standard_normal(s, dtype=np.float32) for s in ((r, k), (n, r)))
            values[f"{module}.lora_A.weight"] = a * np.float32(k**-0.5)
            values[f"{module}.lora_B.weight"] = b * np.float32(size * r**-0.5)
    return values


def tiny_adapter(
    folder: Path,
    c: DecoderConfig,
    *,
    targets: Sequence[str] = tuple(LEAVES),
    r: int = 4,
    seed: int = 0,
    size: float = 1.0,
    kind: FloatType = "F32",
    prefix: str = PREFIX,
    values: dict[str, F32] | None = None,
    **fields: Any,
) -> Path:
    """Writes a folder and gives its path. fields: of adapter_config.json, over the usual ones."""
    if values is None:
        values = adapter_values(c, targets, r, seed, size)
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": r,
        "lora_alpha": r, "target_modules": list(targets), "bias": "none", "use_rslora": False,
        "fan_in_fan_out": False, "init_lora_weights": True, "lora_dropout": 0.1,
        "modules_to_save": None, "use_dora": False, "inference_mode": True,
    }  # fmt: skip
    write_json(folder / "adapter_config.json", described | fields)
    named = {prefix + name: array for name, array in values.items()}
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(named, kind))
    return folder
