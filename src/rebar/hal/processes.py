"""What the kernel says of processes: processor time and memory. It only reads, but for one
limit that it raises.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def process_cpu_seconds(pid: int, proc: Path = PROC) -> float | None:
    """User and system time of a process and its threads; None when there is no such process. One
    that has ended and was not waited for still tells.
    """
    fields = _stat(pid, proc)
    return (int(fields[11]) + int(fields[12])) / TICK if fields else None


def process_resident_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Memory of a process that is in RAM now, mapped files included."""
    fields = _stat(pid, proc)
    return int(fields[21]) * PAGE if fields else None


def peak_resident_bytes(proc: Path = PROC) -> int:
    """Most memory this process has had in RAM, mapped files included; 0 where the kernel does not
    say. (getrusage would tell the parent's peak too: exec keeps it.)
    """
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def process_stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether a process has been stopped by a signal, not by a debugger."""
    fields = _stat(pid, proc)
    return bool(fields) and fields[0] == "T"


def busy_seconds(proc: Path = PROC) -> float | None:
    """Processor time of the whole machine, this process left out."""
    try:
        words = (proc / "stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, soft = map(int, words[1:8])
    own = process_cpu_seconds(os.getpid(), proc) or 0.0
    return (user + nice + system + irq + soft) / TICK - own


def allow_connections() -> None:
    """Lets this process hold as many connections as the system permits at all: the soft limit is
    1,024 in most places, and a front with no file left accepts nobody.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stat(pid: int, proc: Path) -> list[str]:
    """Fields of /proc/PID/stat from the third on (state is [0]; proc_pid_stat(5))."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()  # a name may hold spaces and parentheses
