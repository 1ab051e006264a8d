"""Pages of 2 MiB: asked for where they pay, told truly, and never at the price of the contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rebar.hal import Pool, huge_pages
from rebar.hal.files import MappedFile, mapping_of


@pytest.fixture
def model_sized(tmp_path: Path) -> tuple[Path, np.ndarray]:
    content = np.random.default_rng(0).integers(0, 256, 16 << 20, dtype=np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(content.tobytes())
    return path, content


def test_large_memory_begins_at_a_huge_page_and_small_memory_is_left_alone() -> None:
    large = huge_pages.reserve(huge_pages.LEAST)
    assert large.nbytes == huge_pages.LEAST
    assert large.ctypes.data % huge_pages.HUGE == 0
    assert not large.any()
    large[:] = 7
    assert huge_pages.reserve(100).nbytes >= 100


def test_a_pool_that_may_have_them_gets_them() -> None:
    """A pool of 4 KiB pages reads half as fast; nothing but speed would show it."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("transparent huge pages are switched off on this machine")
    pool = Pool("weights", 4 * huge_pages.LEAST)
    pool.memory[:] = 1
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low < pool.address + pool.budget and pool.address < high
        elif inside and head == "AnonHugePages:":
            total += int(line.split()[1]) * 1024
    # memory may be too fragmented for all of it, not for the first of sixteen
    assert total >= huge_pages.HUGE


def test_a_mapped_file_keeps_its_bytes_whatever_its_pages(
    model_sized: tuple[Path, np.ndarray],
) -> None:
    path, content = model_sized
    with MappedFile(path) as file:
        held = huge_pages.hold_mapped(file.span(5000, 100))
        assert (file.data == content).all()
        found = mapping_of(file.data)
        assert found is not None
        huge = huge_pages._huge_bytes(found[0])
        assert (huge * 10 >= file.nbytes * 9) == held
    del file, found


def test_other_memory_and_small_files_have_nothing_to_gain(tmp_path: Path) -> None:
    assert not huge_pages.hold_mapped(np.zeros(16 << 20, dtype=np.uint8))
    path = tmp_path / "small"
    path.write_bytes(b"x" * 5000)
    with MappedFile(path) as file:
        assert not huge_pages.hold_mapped(file.data)


def test_what_the_system_says(tmp_path: Path, model_sized: tuple[Path, np.ndarray]) -> None:
    """The switch has three settings, the chosen one in brackets; smaps counts a region's pages."""
    switch = tmp_path / "enabled"
    for text, expected in (
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", True),
        ("always madvise [never]\n", False),
    ):
        switch.write_text(text)
        assert huge_pages.system_has_huge_pages(switch) is expected
    assert not huge_pages.system_has_huge_pages(tmp_path / "absent")
    with MappedFile(model_sized[0]) as file:
        found = mapping_of(file.data)
        assert found is not None
        low, high = file.address, file.address + file.nbytes
        smaps = tmp_path / "smaps"
        smaps.write_text(
            f"{low - 4096:x}-{low:x} r--s 0 00:00 1 /other\nFilePmdMapped: 2048 kB\n"
            f"{low:x}-{high:x} r--s 0 00:00 1 /weights\nRss: 16384 kB\nFilePmdMapped: 4096 kB\n"
            f"{high:x}-{high + 4096:x} r--s 0 00:00 1 /other\nFilePmdMapped: 2048 kB\n"
        )
        assert huge_pages._huge_bytes(found[0], smaps) == 4 << 20
        assert huge_pages._huge_bytes(found[0], tmp_path / "absent") == 0
    del found, file


def test_a_file_system_without_them_costs_one_small_read(
    model_sized: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first 2 MiB are dropped from the page cache to find out: a second read of a model of
    many GB from a slow disk would cost minutes at every start.
    """
    dropped: list[int] = []
    monkeypatch.setattr(huge_pages, "_huge_bytes", lambda _mapping: 0)
    path, content = model_sized
    with MappedFile(path) as file:
        found = mapping_of(file.data)
        assert found is not None
        monkeypatch.setattr(type(found[0]), "drop_cache", lambda _self, n: dropped.append(n))
        assert not huge_pages.hold_mapped(file.data)
        assert dropped == [huge_pages.HUGE]
        assert (file.data == content).all()
    del found, file
