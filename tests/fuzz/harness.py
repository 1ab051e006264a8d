"""What the fuzz targets share: bytes -> a file -> a reader; only one kind of error may come out."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from rebar.errors import ModelFileError, RebarError


@dataclass(frozen=True)
class Target:
    """A reader under test.

    seeds: writes sound files with the help of a scratch folder. mended: repairs checksums in what
    the fuzzer made. refusal: what the reader raises for bytes that it cannot trust.
    """

    name: str
    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]
    mended: Callable[[bytes], bytes] = bytes
    refusal: type[RebarError] = ModelFileError

    def run_one(self, data: bytes, path: Path) -> bool:
        """Whether `data`, written to `path`, was read; anything but a refusal comes out."""
        path.write_bytes(self.mended(data))
        try:
            self.read(path)
        except self.refusal:
            return False
        return True


def reader_functions() -> list[FunctionType]:
    """Functions and methods of the readers: what the fuzzer must see to be guided."""
    found: list[FunctionType] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(
            (
                "rebar.graph.weights",
                "rebar.hal.files",
                "rebar.dataflow.data",
                "rebar.dataflow.images",
            )
        ):
            continue
        classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == name]
        members = [*vars(module).values(), *(m for c in classes for m in vars(c).values())]
        found += [m for m in members if isinstance(m, FunctionType) and m.__module__ == name]
    return found


def fuzz(target: Target) -> None:
    """Runs libFuzzer; argv[1] is the corpus folder, the rest are its flags."""
    import atheris

    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, seed in enumerate(target.seeds(Path(scratch))):
            (corpus / f"seed-{number}").write_bytes(seed)
        path = Path(scratch) / target.name
        for function in reader_functions():
            atheris.instrument_func(function)
        atheris.Setup(sys.argv, lambda data: target.run_one(data, path) and None)
        atheris.Fuzz()
