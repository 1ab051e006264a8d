"""Peak memory and read bandwidth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from rebar.hal.measure import peak_resident_bytes, read_bandwidth

SOURCE = Path(__file__).parents[2] / "src"


def in_a_child(code: str) -> int:
    """What `code` prints in a process of its own: the peak of this one may be anything by now."""
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    return int(out.stdout)


def test_the_peak_covers_what_was_touched() -> None:
    grown = in_a_child(
        "import numpy as np; from rebar.hal.measure import peak_resident_bytes as p; before = p(); "
        "touched = np.ones(64 << 20, np.uint8); print(p() - before)"
    )
    assert 60 << 20 < grown < 70 << 20  # a little may have been free before, or be NumPy's own


def test_a_child_does_not_inherit_the_peak() -> None:
    """getrusage's figure passes through exec: a small child reported its large parent's peak."""
    touched = np.ones(256 << 20, np.uint8)
    peak = in_a_child("from rebar.hal.measure import peak_resident_bytes as p; print(p())")
    assert 1 << 20 < peak < touched.nbytes


def test_the_peak_is_read_in_kilobytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  321 kB\nVmRSS:\t  123 kB\n")
    assert peak_resident_bytes(status) == 321 * 1024


def test_without_proc_there_is_still_an_answer(tmp_path: Path) -> None:
    assert peak_resident_bytes(tmp_path / "nothing") > 1 << 20


def test_bandwidth_is_of_this_world() -> None:
    """Between a slow disk and the largest cache: the unit is bytes a second."""
    assert 1e8 < read_bandwidth(1, nbytes=16 << 20, passes=2) < 1e13
