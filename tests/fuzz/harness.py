"""What the fuzz targets share: bytes -> a file -> a reader; only ModelFileError may come out."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rebar"]):
    from rebar.errors import ModelFileError
    from rebar.graph.weights import open_model, write_rebar
    from rebar.graph.weights.safetensors import read_safetensors

__all__ = ["fuzz", "open_model", "read_safetensors", "write_rebar"]


def fuzz(
    seeds: Callable[[Path], list[bytes]],
    name: str,
    read: Callable[[Path], object],
    mended: Callable[[bytes], bytes] = bytes,
) -> None:
    """Runs libFuzzer; argv[1] is the corpus folder, the rest are its flags.

    seeds: sound files, put beside what earlier runs have found. mended: repairs checksums in what
    the fuzzer made.
    """
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, seed in enumerate(seeds(Path(scratch))):
            (corpus / f"seed-{number}").write_bytes(seed)
        path = Path(scratch) / name

        def one(data: bytes) -> None:
            path.write_bytes(mended(data))
            try:
                read(path)
            except ModelFileError:
                return

        atheris.Setup(sys.argv, one)
        atheris.Fuzz()
