"""What was used and what the machine can do: peak memory of this process, read bandwidth."""

from __future__ import annotations

import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

STATUS = Path("/proc/self/status")


def peak_resident_bytes(status: Path = STATUS) -> int:
    """Most bytes of memory this process held at once, mapped files that were read included.

    From VmHWM where there is one: getrusage's figure is inherited from the parent across exec
    (Linux keeps it in the process, not in its address space), so a small child of a large parent
    would report the parent's.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def read_bandwidth(threads: int, *, nbytes: int = 256 << 20, passes: int = 8) -> float:
    """Bytes a second that `threads` threads read together from memory: the best of some passes.

    nbytes must be beyond every cache. One pass is a float sum, which NumPy does in wide registers
    without holding the interpreter.
    """
    buffer = np.ones(nbytes // 4, np.float32)
    parts = np.array_split(buffer, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(passes):
            begin = time.perf_counter()
            list(pool.map(np.add.reduce, parts))
            best = min(best, time.perf_counter() - begin)
    return buffer.nbytes / best
