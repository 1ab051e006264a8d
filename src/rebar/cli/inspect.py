"""rebar inspect"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rebar.cli.models import find_named
from rebar.cli.options import Json, Model, Offline, format_size
from rebar.cli.output import emit

if TYPE_CHECKING:
    from pathlib import Path

    from rebar.graph.weights import ModelFile
    from rebar.graph.weights.classifier import ClassifierFile


def inspect(model: Model, *, json: Json = False, offline: Offline = False) -> None:
    """Show what is in a model file.

    Description, tensors by type, tokenizer, origin; with --json every tensor. Of the folder of an
    adapter: rank, scale, modules, what it was trained on.
    """
    from rebar.graph.lora.config import CONFIG
    from rebar.graph.weights import open_model
    from rebar.graph.weights.classifier import is_classifier, open_classifier

    path = find_named(model, offline=offline)
    if (path / CONFIG).exists() and not (path / "config.json").exists():
        emit(describe_adapter(path), json=json)
        return
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


def describe_adapter(folder: Path) -> dict[str, Any]:
    """Everything that an adapter says without the model it was made for."""
    from rebar.graph.lora.config import read_config
    from rebar.graph.lora.folder import TRAINED_ON, WEIGHTS, digest_of
    from rebar.graph.lora.spec import scale_of
    from rebar.graph.weights.safetensors import read_notes, read_safetensors

    config, tensors = read_config(folder), read_safetensors(folder / WEIGHTS).values()
    nbytes = sum(t.data.nbytes for t in tensors)
    targets = config.targets if isinstance(config.targets, str) else ", ".join(config.targets)
    return {
        "path": str(folder),
        "format": "adapter (LoRA, PEFT's layout)",
        "base": config.base,
        "rank": config.largest_rank,
        "alpha": config.alpha,
        "scale": scale_of(config.r, config.alpha, rslora=config.rslora),
        "targets": targets,
        "modules": len(tensors) // 2,
        "parameters": sum(math.prod(t.shape) for t in tensors),
        "nbytes": nbytes,
        "size": format_size(nbytes),
        "digest": digest_of(folder),
        "trained_on": read_notes(folder / WEIGHTS).get(TRAINED_ON, ""),
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
