"""What was used, and what this machine can give: peak memory, read bandwidth, operations a second,
the price of a launch.

Ceilings are measured with the engine's own thread pool by loops that do one thing only
(native/cpu/probe.h), so an engine figure and its ceiling stand on the same ground.
"""

from __future__ import annotations

import mmap
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import DeviceError
from rebar.hal.backend import Limits
from rebar.hal.cpu import CpuBackend

STATUS = Path("/proc/self/status")
MAPS = Path("/proc/self/smaps")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

READ_BLOCK = 2048  # bytes; kProbeBlock of native/cpu/probe_tables.h
HUGE_PAGE = 2 << 20
# A pass shorter than this measures the launch, a longer one meets more interruptions.
PASS_S = 0.004


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


def largest_cache(caches: Path = CACHES) -> int:
    """Bytes of the largest cache of a core as the system tells it; 0 when it does not."""
    sizes = [0]
    for file in caches.glob("index*/size"):
        number = re.fullmatch(r"(\d+)K", file.read_text().strip())
        sizes.append(int(number[1]) << 10 if number else 0)
    return max(sizes)


@dataclass(frozen=True, slots=True)
class Rate:
    """Something a second (or seconds): the median of several passes, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Rate:
        """The median and spread of some passes."""
        return cls(statistics.median(values), min(values), max(values))


class Buffer:
    """Bytes to read, in 2 MiB or in 4 KiB pages; written once, so that every page is there.

    huge: ask for 2 MiB pages (transparent huge pages). huge_bytes: how many bytes the system gave
    so; on a machine without them, or one that has run out, none.
    """

    def __init__(self, nbytes: int, *, huge: bool) -> None:
        self._map = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        begin = -whole.ctypes.data % HUGE_PAGE
        self.data = whole[begin : begin + nbytes]
        self.data[:] = 1
        self.huge_bytes = _huge_bytes(self.data.ctypes.data)


def _huge_bytes(address: int, maps: Path = MAPS) -> int:
    """Bytes in 2 MiB pages of the mapping that holds `address`, as the kernel counts them."""
    try:
        text = maps.read_text()
    except OSError:
        return 0
    inside = False
    for line in text.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(head[1], 16) <= address < int(head[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


class Gauge:
    """Measures the machine as the CPU back end uses it.

    threads: of the pool; a measurement may use fewer. isa: None for the best. Errors: DeviceError
    for what this machine lacks.
    """

    def __init__(self, threads: int, isa: str | None = None) -> None:
        self._backend = CpuBackend(threads, isa)
        self.threads = threads
        self._pool = self._backend.pool
        self._isa = self._backend.isa

    def read(self, data: NDArray[np.uint8], threads: int | None = None, passes: int = 7) -> Rate:
        """Bytes a second that threads read together from `data`, each thread its own part again and
        again: what fits a cache comes from there.

        Of two loops, with and without prefetching, the better one counts. DeviceError for less data
        than a block for each thread.
        """
        count = threads or self.threads
        grain = count * READ_BLOCK
        if data.nbytes < grain:
            raise DeviceError(
                f"{data.nbytes:,} bytes are too few for {count} threads to read. Give it at least "
                f"{grain:,}."
            )
        part = data[: data.nbytes // grain * grain]

        def once(ahead: bool, rounds: int) -> float:
            return _native.probe_read(
                self._pool, self._isa, part, threads=count, rounds=rounds, ahead=ahead
            )

        rounds = _rounds(lambda n: once(False, n))
        size = part.nbytes * rounds
        rates = [
            Rate.of([size / once(ahead, rounds) for _ in range(passes)]) for ahead in (False, True)
        ]
        return max(rates, key=lambda rate: rate.median)

    def operations(
        self, kind: str, threads: int | None = None, isa: str | None = None, passes: int = 7
    ) -> Rate:
        """Operations a second, a multiply-add counting two. kind "int8": byte dot products into
        int32, as block-quantized weights of up to 7 bits need them; "f32": fused multiply-adds.
        """
        if kind not in ("int8", "f32"):
            raise DeviceError(f"no operations {kind!r} are measured. Ask for int8 or f32.")
        number = self._isa if isa is None else CpuBackend(1, isa).isa
        count = threads or self.threads

        def once(rounds: int) -> tuple[float, int]:
            return _native.probe_arithmetic(
                self._pool, number, dot=kind == "int8", threads=count, rounds=rounds
            )

        rounds = _rounds(lambda n: once(n)[0])
        timed = [once(rounds) for _ in range(passes)]
        return Rate.of([operations / seconds for seconds, operations in timed])

    def launch(self, passes: int = 15, count: int = 1000) -> Rate:
        """Seconds of one launch of empty tasks among many: the pool's threads are awake."""
        return Rate.of([_native.probe_launches(self._pool, count) / count for _ in range(passes)])

    def meeting(self, *, asleep: bool, passes: int = 15) -> Rate:
        """Seconds until a launch has every thread of the pool at work; asleep: they rested first,
        as between two requests."""
        seconds = []
        for _ in range(passes):
            if asleep:
                time.sleep(0.003)  # many times longer than the pool's threads spin
            else:
                _native.probe_launches(self._pool, 100)
            seconds.append(_native.probe_meeting(self._pool))
        return Rate.of(seconds)

    def native_call(self, passes: int = 15, count: int = 10_000) -> Rate:
        """Seconds of a call from Python into a program that has nothing to launch."""
        program = self._backend.program(Limits(rows=1))
        step = _native.Step(1, 0, 1, 1)
        seconds = []
        for _ in range(passes):
            begin = time.perf_counter()
            for _ in range(count):
                program.run(step)
            seconds.append((time.perf_counter() - begin) / count)
        return Rate.of(seconds)


def _rounds(seconds_of: Callable[[int], float]) -> int:
    """How many rounds make a pass of PASS_S; the tries warm caches and clocks as well."""
    rounds = 1
    while True:
        seconds = max(seconds_of(rounds), 1e-9)
        if seconds >= PASS_S / 4:
            return max(1, round(rounds * PASS_S / seconds))
        rounds *= max(2, min(16, int(PASS_S / seconds / 2)))
