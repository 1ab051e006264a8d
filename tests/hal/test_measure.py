"""Peak memory, and what the machine gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rebar.errors import DeviceError
from rebar.hal.measure import Buffer, Gauge, Rate, largest_cache, peak_resident_bytes

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


def test_the_largest_cache_is_the_systems(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "32768K", "unknown")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}/size").write_text(size + "\n")
    assert largest_cache(tmp_path) == 32 << 20
    assert largest_cache(tmp_path / "nothing") == 0


def test_a_rate_is_the_median_with_its_spread() -> None:
    assert Rate.of([5.0, 1.0, 2.0]) == Rate(2.0, 1.0, 5.0)


@pytest.mark.parametrize("huge", [False, True])
def test_a_buffer_is_there_and_begins_at_a_large_page(huge: bool) -> None:
    buffer = Buffer(5 << 20, huge=huge)
    assert buffer.data.nbytes == 5 << 20
    assert buffer.data.ctypes.data % (2 << 20) == 0
    assert buffer.data.min() == 1
    assert 0 <= buffer.huge_bytes <= (8 << 20 if huge else 0)


def test_everything_is_of_this_world() -> None:
    """Between a slow disk and the largest cache; between a pocket calculator and a supercomputer;
    a launch within a second. The units are bytes, operations and seconds."""
    gauge = Gauge(2)
    buffer = Buffer(1 << 20, huge=False)
    for threads in (1, 2):
        assert 1e7 < gauge.read(buffer.data, threads, passes=1).median < 1e14
    for kind in ("int8", "f32"):
        assert 1e6 < gauge.operations(kind, passes=1).median < 1e16
    for price in (
        gauge.launch(1, 10),
        gauge.meeting(asleep=True, passes=1),
        gauge.meeting(asleep=False, passes=1),
        gauge.native_call(1, 10),
    ):
        assert 0 < price.median < 1


def test_what_cannot_be_measured_is_refused() -> None:
    gauge = Gauge(3)
    with pytest.raises(DeviceError, match="at least 6,144"):
        gauge.read(Buffer(6143, huge=False).data)
    with pytest.raises(DeviceError, match="int8 or f32"):
        gauge.operations("f64")
    with pytest.raises(DeviceError, match="not available"):
        gauge.operations("f32", isa="mmx")
