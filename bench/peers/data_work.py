"""What data loaders are measured with: batches of so many samples, and the memory of all processes.

Used by our side and, in environments without Rebar, by peers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BATCH = 32  # samples
EPOCHS = 10  # of records; one alone is a tenth of a second


def summed(of: Callable[[Path], int]) -> int:
    """Over this process and all below it. of: a number out of a folder of /proc."""
    total, todo = 0, [os.getpid()]
    while todo:
        folder = Path(f"/proc/{todo.pop()}")
        try:
            total += of(folder)
            for task in (folder / "task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):
            continue  # it ended meanwhile
    return total


def pss_mb() -> float:
    """MB (10^6); what they share counts once."""

    def kilobytes(folder: Path) -> int:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))

    return summed(kilobytes) * 1024 / 1e6


def processor_s() -> float:
    """Seconds of processors, which neighbours change less than those of a clock."""

    def ticks(folder: Path) -> int:
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    return summed(ticks) / os.sysconf("SC_CLK_TCK")


def measure(batches: Iterable[list[Any]]) -> dict[str, Any]:
    """Batches a second after the first, which pays for the start, and what one costs all processes
    together; memory at the end; how many samples came and, where they are ids, how many of those.
    """
    before = pss_mb()
    samples = ids = count = 0
    begun = worked = 0.0
    memory = before
    for batch in batches:
        if count == 0:
            begun, worked = time.perf_counter(), processor_s()
        count += 1
        samples += len(batch)
        if not isinstance(batch[0], dict):
            ids += sum(map(len, batch))
        if count == 300:
            paused = time.perf_counter()
            memory = pss_mb()
            begun += time.perf_counter() - paused
    seconds, worked = time.perf_counter() - begun, processor_s() - worked
    return {
        "batches_s": (count - 1) / seconds,
        "processor_us": worked * 1e6 / max(count - 1, 1),
        "samples": samples,
        "ids": ids,
        "memory_mb": memory - before,
    }
