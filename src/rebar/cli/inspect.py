"""rebar inspect"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rebar.cli.options import Json, Model, Offline, format_size
from rebar.cli.output import emit, progress
from rebar.cli.settings import places

if TYPE_CHECKING:
    from rebar.graph.weights import ModelFile
    from rebar.graph.weights.classifier import ClassifierFile


def inspect(model: Model, *, json: Json = False, offline: Offline = False) -> None:
    """Show what is in a model file.

    Description, tensors by type, tokenizer, origin; with --json every tensor.
    """
    from rebar.graph.weights import open_model
    from rebar.graph.weights.classifier import is_classifier, open_classifier
    from rebar.graph.weights.source import resolve

    where = places()
    with progress() as shown:
        path = resolve(model, where.cache, hub=where.hub, progress=shown, offline=offline)
    facts = describe(open_classifier(path) if is_classifier(path) else open_model(path))
    if json:
        emit(facts, json=True)
        return
    emit({k: facts[k] for k in ("path", "format", "name", "parameters", "size")}, json=False)
    for title in ("config", "types", "tokenizer", "provenance"):
        sys.stdout.write(f"\n{title}\n")
        for key, value in facts[title].items():
            sys.stdout.write(f"  {key:<24} {value}\n")


def describe(model: ModelFile | ClassifierFile) -> dict[str, Any]:
    """Everything `inspect` tells of a model; `tensors` lists each with shape, type and bytes."""
    tensors = model.tensors.values()
    types: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        types[tensor.type] += tensor.data.nbytes
    nbytes = sum(types.values())
    return {
        "path": str(model.path),
        "format": model.format,
        "name": model.name,
        "parameters": sum(math.prod(t.shape) for t in tensors),
        "nbytes": nbytes,
        "size": format_size(nbytes),
        "config": asdict(model.config),
        "types": dict(types),
        "tokenizer": _tokenizer(model),
        "provenance": dict(model.provenance),
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "type": t.type, "nbytes": t.data.nbytes}
            for t in tensors
        ],
    }


def _tokenizer(model: ModelFile | ClassifierFile) -> dict[str, Any]:
    if model.format == "classifier":
        return {}
    facts: dict[str, Any] = {"chat_template": model.chat_template is not None}
    if model.tokenizer is not None:
        facts |= {
            "kind": model.tokenizer.kind,
            "pre": model.tokenizer.pre,
            "tokens": len(model.tokenizer.tokens),
        }
    if model.vocabulary is not None:
        facts["vocabulary_bytes"] = model.vocabulary.nbytes
    return facts
