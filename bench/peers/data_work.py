"""What data loaders are measured with: batches of so many samples, and the memory of all processes.

Used by our side and, in environments without Rebar, by peers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BATCH = 32  # samples


def pss_mb() -> float:
    """MB (10^6) of this process and all below it; what they share counts once."""
    total, todo = 0, [os.getpid()]
    while todo:
        folder = Path(f"/proc/{todo.pop()}")
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            for task in (folder / "task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):
            continue  # it ended meanwhile
    return total * 1024 / 1e6


def measure(batches: Iterable[list[Any]]) -> dict[str, Any]:
    """Batches a second after the first, which pays for the start; memory at the end; how many
    samples came and, where they are ids, how many of those."""
    before = pss_mb()
    samples = ids = count = 0
    begun = 0.0
    memory = before
    for batch in batches:
        if count == 0:
            begun = time.perf_counter()
        count += 1
        samples += len(batch)
        if not isinstance(batch[0], dict):
            ids += sum(map(len, batch))
        if count == 300:
            paused = time.perf_counter()
            memory = pss_mb()
            begun += time.perf_counter() - paused
    seconds = time.perf_counter() - begun
    return {
        "batches_s": (count - 1) / seconds,
        "samples": samples,
        "ids": ids,
        "memory_mb": memory - before,
    }
