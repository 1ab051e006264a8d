"""What decides the bits of a training step beside the values that learn. It goes into a checkpoint,
and a run goes on only where it is equal: with another base model, scale of the adapter or format of
the cache, a run would go on without a word and be another one.
"""

from __future__ import annotations

import hashlib
from typing import Any

from rebar.graph.lora.spec import LoraSpec
from rebar.graph.parameters import Parameters
from rebar.graph.weights.hf_names import namer
from rebar.graph.weights.model_file import ModelFile, StoredTensor
from rebar.hal.files import hash_mapped


def settings_of(
    model: ModelFile, parameters: Parameters, spec: LoraSpec | None, kv: str
) -> dict[str, Any]:
    """Plain values. spec: of the adapter that learns, if one does. kv: the cache's format."""
    name_of = namer(model.config)
    frozen = [t for name, t in model.tensors.items() if name_of(name) not in parameters]
    return {
        "model": hashlib.sha256(repr(model.config).encode()).hexdigest(),
        "frozen weights": tensors_digest(frozen),
        "adapter scale": spec.scale if spec is not None else None,
        "kv": kv,
    }


def tensors_digest(tensors: list[StoredTensor]) -> str:
    """Of names, types and bytes; empty for none. The pages that were read for it are let go."""
    if not tensors:
        return ""
    said = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda t: t.name):
        described = [tensor.name, tensor.type, list(tensor.shape), tensor.packed]
        said.update(repr(described).encode())
        hash_mapped(said, tensor.data)
    return said.hexdigest()
