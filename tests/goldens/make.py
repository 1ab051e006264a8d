"""Makes the golden values of a model: python -m tests.goldens.make ENGINE NAME MODEL.gguf [BOS]

ENGINE transformers writes NAME.npz and NAME.json anew, ENGINE llama.cpp adds its numbers to
NAME.json. BOS: the id every window begins with, where the model asks for one (gemma3: 2). Run in an
environment that has the engine (tools/parity-*.txt).
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.goldens import golden, reference


def text_ids(path: Path) -> list[int]:
    """The excerpt in the reference tokenizer's ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    ids: list[int] = tokenizer(golden.TEXT.read_text(), add_special_tokens=False)["input_ids"]
    return ids


def from_transformers(name: str, path: Path, begin: int | None) -> None:
    """NAME.npz and NAME.json."""
    windows = golden.windows(text_ids(path), begin)
    model = reference.transformers_model(path)
    means: list[float] = []
    kept: dict[int, NDArray[np.float64]] = {}
    for index, ids in enumerate(windows):
        slices = reference.transformers_logits(model, ids)
        mean, rows = reference.negative_log_probability(slices, ids)
        means.append(mean)
        kept = kept or rows
        print(f"{name} window {index}: {golden.perplexity([mean]):.4f}", file=sys.stderr)
    top = {p: np.argsort(-row, kind="stable")[: golden.TOP] for p, row in kept.items()}
    np.savez_compressed(
        golden.HERE / f"{name}.npz",
        ids=windows,
        top_ids=np.array([top[p] for p in golden.ROWS], np.int32),
        top_logprobs=np.array([kept[p][top[p]] for p in golden.ROWS], np.float32),
    )
    facts = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "text": golden.TEXT.name,
        "rule": "see golden.py",
        "begin": begin,
        "transformers": engine_facts(means, "transformers", "torch", "gguf", "tokenizers"),
    }
    write(name, facts)


def from_llama_cpp(name: str, path: Path) -> None:
    """Adds llama.cpp's numbers on the same ids."""
    means = [
        reference.negative_log_probability(reference.llama_cpp_logits(path, ids), ids)[0]
        for ids in load_ids(name)
    ]
    facts = json.loads((golden.HERE / f"{name}.json").read_text())
    facts["llama.cpp"] = engine_facts(means, "llama_cpp_python")
    write(name, facts)


def load_ids(name: str) -> NDArray[np.int32]:
    """(windows, WINDOW)."""
    return golden.load(name).ids


def engine_facts(means: list[float], *packages: str) -> dict[str, Any]:
    """Numbers and the versions that made them."""
    return {
        "perplexity": round(golden.perplexity(means), 6),
        "negative_log_probability": means,
        "versions": {package: version(package) for package in packages},
    }


def write(name: str, facts: dict[str, Any]) -> None:
    """NAME.json."""
    (golden.HERE / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    engine, model_name, model_path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if engine == "llama.cpp":
        from_llama_cpp(model_name, model_path)
    else:
        from_transformers(model_name, model_path, int(sys.argv[4]) if sys.argv[4:] else None)
