"""Times the rungs and the libraries in turns, and writes the table.

One row or eight read weights that no cache holds, as a model's layers do: 96 MB of copies take
turns. Each contender runs for a tenth of a second, then the next; the median of the rounds counts.
A multiply-add is two operations. The ceiling of a product is the time that its operations take at
the peak of their kind, or its weights take to be read, whichever is longer; both are measured
before and after the products of each m, and the best counts.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from lab.gemm import vendors
from lab.gemm.ladder import (
    Case,
    Rung,
    build,
    compare,
    empty,
    exact,
    pointer,
    rungs,
    tolerance,
    verify,
)

Call = Callable[[], object]
Maker = Callable[[list[Case]], Iterator[Call]]
N, K = 3072, 576
"""Gate and up of SmolLM2-135M, as one product."""
ROWS = (1, 8, 512)
COPIED = 96 << 20
TURN_SECONDS, ROUNDS = 0.1, 3
PAUSE_SECONDS = 0.25  # OpenMP threads of the last one spin for 0.2 s before they let the core go


@dataclass
class Line:
    """A line of the table. seconds: of one product, by rows."""

    name: str
    floats: bool
    threads: int
    why: str = ""
    seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceilings:
    """Per second: float and byte operations, bytes read."""

    floats: float
    bytes: float
    read: float

    def share(self, line: Line, m: int) -> float | None:
        """How near a product came, 1 at the ceiling; None for an operation not at hand."""
        peak = self.floats if line.floats else self.bytes
        if not peak:
            return None
        read = N * K * (4 if line.floats else 1) / self.read
        return max(2 * m * N * K / peak, read) / line.seconds[m]


def ceilings(folder: Path, threads: int) -> Ceilings:
    """Of this machine, now."""
    library = build(Path(__file__).parent / "ceilings.cpp", folder)
    for name in ("float_operations", "byte_operations", "bytes_read"):
        getattr(library, name).restype = ctypes.c_double
    buffer = empty((256 << 20,), np.int8)
    buffer[:] = 1
    read = library.bytes_read(pointer(buffer), ctypes.c_int64(len(buffer)), threads, 5)
    return Ceilings(library.float_operations(threads, 5), library.byte_operations(threads, 5), read)


def seconds_of(calls: Iterator[Call]) -> float:
    """Of one call, over a turn."""
    begin = now = time.perf_counter()
    for done in itertools.count(1):
        next(calls)()
        now = time.perf_counter()
        if now - begin >= TURN_SECONDS:
            return (now - begin) / done
    raise AssertionError("not reached")


def copies(case: Case, floats: bool) -> list[Case]:
    """Enough that no cache holds their weights; one, where arithmetic is all that counts."""
    if case.size[0] > 8:
        return [case]
    nbytes = case.wf.nbytes if floats else case.wi.nbytes
    return [case.copy() for _ in range(COPIED // nbytes + 1)]


def rung_calls(rung: Rung, threads: int, cases: list[Case]) -> Iterator[Call]:
    """Products of one case after the other, without end."""
    ready = [rung.problem(case, threads) for case in cases]
    for problem, _arrays in itertools.cycle(ready):
        yield partial(rung.multiply, ctypes.byref(problem))


def vendor_calls(vendor: vendors.Vendor, cases: list[Case]) -> Iterator[Call]:
    """The same by a library."""
    return itertools.cycle([vendor.prepare(case) for case in cases])


def contenders(folder: Path, threads: int, case: Case) -> Iterator[tuple[Line, Maker]]:
    """Every line with a maker of its calls; each was found right on this case first."""
    ladder = rungs(folder)
    for rung in ladder:
        if rung.needs or (rung.name == "threads") != (threads > 1):
            continue
        verify(rung, ladder[0], case, threads)
        line = Line(f"{int(rung.number)} {rung.name}", rung.floats, threads, rung.why)
        yield line, partial(rung_calls, rung, threads)
    for vendor in vendors.vendors(threads):
        verify_vendor(vendor, ladder[0], case)
        yield Line(vendor.name, vendor.floats, threads), partial(vendor_calls, vendor)


def verify_vendor(vendor: vendors.Vendor, first: Rung, case: Case) -> None:
    """Raises unless the library was called for the right product."""
    if vendor.floats:
        compare(vendor.name, vendor.prepare(case)(), first.product(case), tolerance(case))
    else:
        compare(vendor.name, vendor.prepare(case)(), first.product(exact(case)), np.zeros(1))


def measured(threads: int) -> tuple[list[Line], Ceilings]:
    """All lines of this number of threads, on as many cores: no library takes more than it says."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines: list[Line] = []
        found_limits = [ceilings(folder, threads)]
        for m in ROWS:
            case = Case.random(m, N, K)
            all_cases = {floats: copies(case, floats) for floats in (True, False)}
            pairs = list(contenders(folder, threads, case))
            lines = lines or [line for line, _ in pairs]
            turns = [make(all_cases[line.floats]) for line, make in pairs]
            found: list[list[float]] = [[] for _ in turns]
            for _ in range(ROUNDS):
                for calls, times in zip(turns, found, strict=True):
                    time.sleep(PAUSE_SECONDS if threads > 1 else 0)
                    times.append(seconds_of(calls))
            for line, times in zip(lines, found, strict=True):
                line.seconds[m] = statistics.median(times)
            found_limits.append(ceilings(folder, threads))
        return lines, Ceilings(*map(max, zip(*map(astuple, found_limits), strict=True)))


def table(parts: list[tuple[list[Line], Ceilings]]) -> str:
    """The lines of all parts, the ladder's own first."""
    rows = [(line, limits) for lines, limits in parts for line in lines]
    rows.sort(key=lambda row: (not row[0].why, row[0].threads))
    head = "| | m = 1 | m = 8 | m = 512 | of the ceiling | over the rung before | why |"
    text = [head, "|---|" + "---:|" * 5 + "---|"]
    before: Line | None = None
    for line, limits in rows:
        rates = [f"{2e-9 * m * N * K / line.seconds[m]:.3g}" for m in ROWS]
        shares = [limits.share(line, m) for m in ROWS]
        share = " / ".join("-" if s is None else f"{100 * s:.0f}" for s in shares) + " %"
        gain = ""
        if before and line.why:
            gain = " / ".join(f"{before.seconds[m] / line.seconds[m]:.1f}" for m in ROWS) + " x"
        name = line.name + (f", {line.threads} threads" if line.threads > 1 else "")
        text.append(f"| {name} | {' | '.join(rates)} | {share} | {gain} | {line.why} |")
        before = line
    for lines, limits in parts:
        threads = "one thread" if lines[0].threads == 1 else f"{lines[0].threads} threads"
        text += ["", f"Ceilings, {threads}: {limits.floats / 1e9:.0f} Gop/s in f32,"]
        text += [f"{limits.bytes / 1e9:.0f} in int8, {limits.read / 1e9:.1f} GB/s read."]
    return "\n".join(text)


def in_a_process(threads: int) -> tuple[list[Line], Ceilings]:
    """measured() where every library uses that many threads."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.gemm.measure", str(threads)],
        cwd=Path(__file__).parents[2],
        env=vendors.environment(threads),
        stdout=subprocess.PIPE,
        check=True,
    )
    lines, limits = json.loads(done.stdout)
    for line in lines:
        line["seconds"] = {int(m): s for m, s in line["seconds"].items()}
    return [Line(**line) for line in lines], Ceilings(**limits)


if __name__ == "__main__":
    found, here = measured(int(sys.argv[1]))
    json.dump([[asdict(line) for line in found], asdict(here)], sys.stdout)
