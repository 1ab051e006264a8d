"""This machine's ceilings: how fast memory and caches can be read, how many operations a second
the cores do, what a launch costs.

Measured by the engine's own pool and vector code with nothing else to do, so no engine figure can
honestly be above them. Each value is the median of several passes, with the lowest and highest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rebar import _native
from rebar.hal import read_machine
from rebar.hal.measure import Buffer, Gauge, Rate

KB, MB = 1 << 10, 1 << 20
# From the smallest first-level caches to beyond the largest last-level caches of usual machines.
SIZES = (16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)
PAGES = {"4 KiB": False, "2 MiB": True}
KINDS = ("int8", "f32")

Report = Callable[[str], None]
Facts = dict[str, Any]


def bench_machine(
    threads: int | None = None,
    isa: str | None = None,
    *,
    report: Report,
    sizes: tuple[int, ...] = SIZES,
) -> Facts:
    """Ceilings of this machine with 1 to `threads` threads (None: all usable cores).

    read: GB/s (10^9) by working set (shared among the threads), threads and pages. huge_mb: MiB of
    the largest working set that the system really gave in 2 MiB pages. operations: Gop/s (10^9, a
    multiply-add counts two) by instruction set; int8 are dot products of bytes into int32.
    launch_ns: an empty launch among many; meeting_us: until all threads of the pool work, awake
    and asleep before; call_ns: a native call from Python. Takes about 3 s on two cores. One buffer
    serves all sizes of a page size, and where the system puts it may decide half of memory's rate.
    Errors: DeviceError for an instruction set that is not here.
    """
    machine = read_machine()
    count = machine.cores if threads is None else threads
    gauge = Gauge(count, isa)
    facts: Facts = {"cpu": machine.cpu, "threads": count, "isa": isa or _native.best_isa()}
    facts |= _reading(gauge, sizes, report)
    facts["operations"] = list(_operations(gauge, report))
    report("launches")
    facts["launch_ns"] = rounded(gauge.launch(), 1e9)
    facts["meeting_us"] = {
        "awake": rounded(gauge.meeting(asleep=False), 1e6),
        "asleep": rounded(gauge.meeting(asleep=True), 1e6),
    }
    facts["call_ns"] = rounded(gauge.native_call(), 1e9)
    return facts


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]


def rounded(rate: Rate, unit: float = 1e-9) -> Facts:
    """A rate in other units, as facts."""
    return {
        "median": float(f"{rate.median * unit:.4g}"),
        "low": float(f"{rate.low * unit:.4g}"),
        "high": float(f"{rate.high * unit:.4g}"),
    }


def _reading(gauge: Gauge, sizes: tuple[int, ...], report: Report) -> Facts:
    rows: list[Facts] = []
    given = 0
    for pages, huge in PAGES.items():
        buffer = Buffer(max(sizes), huge=huge)
        given = buffer.huge_bytes
        for threads in thread_counts(gauge.threads):
            report(f"reading, {pages} pages, {plural(threads)}")
            for size in sizes:
                rate = rounded(gauge.read(buffer.data[:size], threads))
                rows.append({"pages": pages, "threads": threads, "bytes": size} | rate)
    return {"read": rows, "huge_mb": given // MB}


def _operations(gauge: Gauge, report: Report) -> Iterator[Facts]:
    for isa in _native.isas():
        report(f"operations, {isa}")
        for kind in KINDS:
            for threads in thread_counts(gauge.threads):
                rate = rounded(gauge.operations(kind, threads, isa))
                yield {"isa": isa, "kind": kind, "threads": threads} | rate


def plural(threads: int) -> str:
    """ "1 thread", "2 threads" """
    return f"{threads} thread{'s' if threads > 1 else ''}"


def size_name(nbytes: int) -> str:
    """16384 -> "16 KiB" """
    return f"{nbytes // MB} MiB" if nbytes >= MB else f"{nbytes // KB} KiB"


def cell(rate: Facts) -> str:
    """Median, and in brackets the lowest and highest."""
    return f"{figure(rate['median'])} ({figure(rate['low'])}-{figure(rate['high'])})"


def figure(value: float) -> str:
    """Three digits, more where there are more before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(facts: Facts) -> list[str]:
    """The facts for people."""
    counts = thread_counts(facts["threads"])
    lines = [f"{facts['cpu']}, {plural(facts['threads'])}, {facts['isa']}", ""]
    lines += grid(
        "reading, GB/s",
        [f"{pages}, {plural(n)}" for pages in PAGES for n in counts],
        by(facts["read"], lambda r: size_name(r["bytes"])),
    )
    largest = max(row["bytes"] for row in facts["read"])
    lines += [f"2 MiB pages: the system gave {facts['huge_mb']} of {largest // MB} MiB", ""]
    lines += grid(
        "operations, Gop/s",
        [plural(n) for n in counts],
        by(facts["operations"], lambda r: f"{r['isa']} {r['kind']}"),
    )
    meeting = facts["meeting_us"]
    return [
        *lines,
        "",
        f"launch                 {cell(facts['launch_ns'])} ns",
        f"until all threads work {cell(meeting['awake'])} us awake, "
        f"{cell(meeting['asleep'])} us asleep",
        f"call from Python       {cell(facts['call_ns'])} ns",
        "Median of the passes (lowest-highest). A working set is shared among the threads.",
    ]


def by(rows: list[Facts], name: Callable[[Facts], str]) -> dict[str, list[Facts]]:
    """Rows of one name together, in order."""
    found: dict[str, list[Facts]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


def grid(title: str, columns: list[str], rows: dict[str, list[Facts]]) -> list[str]:
    """A table of cells under headings, all of one width."""
    cells = {name: [cell(rate) for rate in rates] for name, rates in rows.items()}
    width = 2 + max(len(text) for texts in [columns, *cells.values()] for text in texts)
    left = max(len(title), *map(len, rows))
    lines = [f"{title:<{left}}" + "".join(f"{c:>{width}}" for c in columns)]
    return lines + [
        f"{name:<{left}}" + "".join(f"{c:>{width}}" for c in texts) for name, texts in cells.items()
    ]
