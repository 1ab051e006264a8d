"""The fuzz targets work: their seeds are sound, and a first few changed bytes meet typed errors
only.

atheris, which runs them with guidance, has no place in the default installation.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import (
    fuzz_classifier,
    fuzz_gguf,
    fuzz_images,
    fuzz_png,
    fuzz_rebar,
    fuzz_records,
    fuzz_safetensors,
    fuzz_tokens,
)
from tests.fuzz.harness import Target

MODULES = (
    fuzz_gguf,
    fuzz_rebar,
    fuzz_classifier,
    fuzz_safetensors,
    fuzz_records,
    fuzz_tokens,
    fuzz_png,
    fuzz_images,
)
TARGETS = tuple(module.TARGET for module in MODULES)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut out or doubled, mostly where the structure is."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(raw), 4000))
        match rng.randrange(4):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x80"))
            case 2:
                del raw[at : at + rng.randint(1, 40)]
            case _:
                raw[at:at] = raw[at : at + rng.randint(1, 40)]
    return bytes(raw)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_targets(tmp_path: Path, target: Target) -> None:
    path, rng = tmp_path / target.name, random.Random(0)
    refused = 0
    for seed in target.seeds(tmp_path):
        assert target.run_one(seed, path)
        refused += sum(not target.run_one(mutated(seed, rng), path) for _ in range(100))
    assert refused > 50
