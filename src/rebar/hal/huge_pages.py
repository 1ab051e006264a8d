"""Pages of 2 MiB under what is read every step.

Weights and keys stream past once a step, so with pages of 4 KiB every 4 KiB costs a look-up, and on
a virtual machine that look-up walks two page tables. Measured on two cores of a Zen 4 class server:
one thread reads 16 GB/s from 4 KiB pages and 30 from 2 MiB pages, two threads 27 and 40.

Anonymous memory gets them by advice where the system allows it. A mapped file gets them, still
shared between processes, where the file system keeps large folios (XFS, ext4 from Linux 6.16) and
the page cache holds the file in 2 MiB pieces. A file that was copied or written lies there in small
ones; it is dropped from the cache once and read again.
"""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.hal.files import FileMapping, mapping_of

HUGE = 2 << 20
LEAST = 4 * HUGE  # below, the translation buffers cover everything anyway
MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMAPS = Path("/proc/self/smaps")


def system_has_huge_pages(setting: Path = SETTING) -> bool:
    """Whether anonymous memory can have them, by advice or always."""
    try:
        return "[never]" not in setting.read_text()
    except OSError:
        return False


def reserve(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous zeroed memory; from LEAST bytes on it begins at a 2 MiB border and asks for huge
    pages. Pages cost memory only when touched. Errors: OSError, OverflowError, ValueError of mmap.
    """
    room = nbytes + HUGE if nbytes >= LEAST else nbytes
    memory = mmap.mmap(-1, max(room, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(memory, dtype=np.uint8)
    if nbytes < LEAST:
        return view
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -int(view.ctypes.data) % HUGE
    return view[begin : begin + nbytes]


def hold_mapped(view: NDArray[np.uint8]) -> bool:
    """Reads the whole file behind a view of a MappedFile into memory, in huge pages if it can be.

    Returns whether most of it is in huge pages now. False for other memory and for a file so small
    that it gains nothing.
    """
    found = mapping_of(view)
    if found is None or len(found[0]) < LEAST:
        return False
    mapping = found[0]
    if not _advise(mapping, mmap.MADV_HUGEPAGE) or not _advise(mapping, MADV_POPULATE_READ):
        return False
    return _mostly_huge(mapping) or _read_again(mapping)


def _advise(mapping: FileMapping, advice: int, begin: int = 0, nbytes: int | None = None) -> bool:
    try:
        mapping.madvise(advice, begin, len(mapping) - begin if nbytes is None else nbytes)
    except (OSError, ValueError):
        return False
    return True


def _read_again(mapping: FileMapping) -> bool:
    """Drops the small pieces from the page cache and reads large ones; tried on the first 2 MiB, so
    that a file system without large folios costs one small read.
    """
    for nbytes in (HUGE, len(mapping)):
        _advise(mapping, mmap.MADV_DONTNEED, 0, nbytes)
        mapping.drop_cache(nbytes)
        _advise(mapping, MADV_POPULATE_READ, 0, nbytes)
        if _huge_bytes(mapping) < HUGE:
            _advise(mapping, MADV_POPULATE_READ)
            return False
    return _mostly_huge(mapping)


def _mostly_huge(mapping: FileMapping) -> bool:
    return _huge_bytes(mapping) * 10 >= len(mapping) * 9


def _huge_bytes(mapping: FileMapping, smaps: Path = SMAPS) -> int:
    """Bytes of a mapping that stand in huge pages now."""
    begin = int(np.frombuffer(mapping, dtype=np.uint8).ctypes.data)
    end = begin + -(-len(mapping) // mmap.PAGESIZE) * mmap.PAGESIZE
    total, inside = 0, False
    try:
        lines = smaps.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        head = line.split(maxsplit=1)[0]
        if "-" in head:  # "7f00-7f80 r--s ...": the next region
            low, _, high = head.partition("-")
            inside = begin <= int(low, 16) and int(high, 16) <= end
        elif inside and head == "FilePmdMapped:":
            total += int(line.split()[1]) * 1024
    return total
