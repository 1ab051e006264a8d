"""What the fuzz targets share: bytes -> a file -> open_model; only ModelFileError may come out."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rebar"]):
    from rebar.errors import ModelFileError
    from rebar.graph.weights import open_model


def write_corpus(folder: Path, seeds: Iterable[bytes]) -> None:
    """Puts the sound files beside whatever an earlier run has found."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(seed)


def fuzz(seeds: Iterable[bytes], name: str) -> None:
    """Runs libFuzzer; argv[1] is the corpus folder, the rest are its flags."""
    write_corpus(Path(sys.argv[1]), seeds)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / name

        def one(data: bytes) -> None:
            path.write_bytes(data)
            try:
                open_model(path)
            except ModelFileError:
                return

        atheris.Setup(sys.argv, one)
        atheris.Fuzz()
