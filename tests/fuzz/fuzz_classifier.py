"""Fuzzes the reader of image classifiers: any bytes give one or a ModelFileError.

python -m tests.fuzz.fuzz_classifier CORPUS -max_total_time=600
"""

from __future__ import annotations

from pathlib import Path

from rebar.graph.weights.classifier import open_classifier
from tests.fuzz.fuzz_rebar import PREFIX_BYTES, mended
from tests.fuzz.harness import Target, fuzz
from tests.tiny.classifier import tiny_classifier


def seeds(folder: Path) -> list[bytes]:
    """The header of a small one."""
    raw = tiny_classifier(folder).read_bytes()
    return [raw[: PREFIX_BYTES + int.from_bytes(raw[16:24], "little")]]


TARGET = Target("classifier.rebar", seeds, open_classifier, mended)

if __name__ == "__main__":
    fuzz(TARGET)
