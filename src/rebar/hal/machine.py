"""What this machine gives the process: cores and memory, control groups considered."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: usable now (affinity and CPU quota). memory_total and memory_available: bytes, the
    control group's if smaller.
    """

    cpu: str
    cores: int
    memory_total: int
    memory_available: int


def read_machine(cgroup: Path = CGROUP, proc: Path = PROC) -> Machine:
    """Reads the machine; files that do not exist limit nothing."""
    info = _table(proc / "meminfo")
    total = _kilobytes(info.get("MemTotal", "")) or 1 << 30
    available = _kilobytes(info.get("MemAvailable", "")) or total
    limit = _number(cgroup / "memory.max")
    if limit is not None and limit < total:
        used = _number(cgroup / "memory.current") or 0
        total, available = limit, min(available, max(limit - used, 0))
    return Machine(
        _table(proc / "cpuinfo").get("model name", "unknown CPU"), _cores(cgroup), total, available
    )


def _cores(cgroup: Path) -> int:
    usable = len(os.sched_getaffinity(0))
    quota = _text(cgroup / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        usable = min(usable, max(1, int(quota[0]) // int(quota[1])))
    return usable


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _table(path: Path) -> dict[str, str]:
    """First value of each `key: value` line."""
    found: dict[str, str] = {}
    for line in _text(path).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def _kilobytes(value: str) -> int:
    number = value.split()[0] if value else ""
    return int(number) * 1024 if number.isdigit() else 0
