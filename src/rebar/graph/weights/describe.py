"""What a model file holds, for people and for machines (`rebar inspect`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod
from typing import Any

from rebar.graph.weights.model_file import ModelFile, StoredTensor


def describe(model: ModelFile) -> dict[str, Any]:
    """Architecture, sizes, bytes by type, tokenizer and the list of tensors, as plain values
    that JSON can hold.
    """
    tensors = list(model.tensors.values())
    return {
        "name": model.name,
        "path": str(model.path),
        "format": model.format,
        "architecture": model.config.family,
        "parameters": sum(prod(tensor.shape) for tensor in tensors),
        "bytes": sum(tensor.data.nbytes for tensor in tensors),
        "context": model.config.context_length,
        "config": dataclasses.asdict(model.config),
        "types": _by_type(tensors),
        "tokenizer": _tokenizer(model),
        "chat_template": model.chat_template is not None,
        "provenance": dict(model.provenance),
        "tensors": [_tensor(tensor) for tensor in tensors],
    }


def _by_type(tensors: list[StoredTensor]) -> dict[str, dict[str, int]]:
    """Tensors, parameters and bytes of each type, the largest first."""
    found: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        row = found.setdefault(tensor.type, {"tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += prod(tensor.shape)
        row["bytes"] += tensor.data.nbytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def _tokenizer(model: ModelFile) -> dict[str, Any]:
    if model.tokenizer is None:
        assert model.vocabulary is not None
        return {"kind": "tables", "bytes": model.vocabulary.nbytes}
    data = model.tokenizer
    return {
        "kind": data.kind,
        "pre": data.pre,
        "tokens": len(data.tokens),
        "bos_id": data.bos_id,
        "add_bos": data.add_bos,
        "end_ids": list(data.end_ids),
    }


def _tensor(tensor: StoredTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.type,
        "shape": list(tensor.shape),
        "bytes": tensor.data.nbytes,
        "packed": tensor.packed,
    }


def describe_lines(model: ModelFile, *, tensors: bool = True) -> Iterator[str]:
    """The same for a terminal."""
    facts, c = describe(model), model.config
    yield f"{facts['name']}  ({facts['format']}, {facts['path']})"
    yield (
        f"{c.family}: {c.layers} layers, width {c.width}, {c.heads} heads on {c.kv_heads} KV "
        f"heads of {c.head_dim}, "
        f"MLP {c.mlp_width}, vocabulary {c.vocab_size:,}, context {c.context_length:,}"
    )
    yield f"{facts['parameters'] / 1e6:,.1f} M parameters, {facts['bytes'] / 1e6:,.1f} MB"
    for kind, row in facts["types"].items():
        yield f"  {kind:<5} {row['tensors']:>5} tensors {row['bytes'] / 1e6:>10,.1f} MB"
    yield "tokenizer: " + ", ".join(f"{key} {value}" for key, value in facts["tokenizer"].items())
    yield f"chat template: {'yes' if facts['chat_template'] else 'no'}"
    yield from (f"{key}: {value}" for key, value in facts["provenance"].items())
    if tensors:
        yield from (
            f"  {t['name']:<40} {t['type']:<5} {' x '.join(map(str, t['shape'])):>16} "
            f"{t['bytes']:>13,} B"
            for t in facts["tensors"]
        )
