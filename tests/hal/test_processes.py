"""What the kernel says of processes, read from files of the kernel's form and from the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rebar.hal.processes import (
    PAGE,
    TICK,
    allow_connections,
    busy_seconds,
    process_cpu_seconds,
    process_resident_bytes,
)


def proc(folder: Path, pid: int, name: str = "python") -> Path:
    fields = ["S", "1", *map(str, range(5, 53))]  # field n of proc_pid_stat(5) is n
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    return folder


@pytest.mark.parametrize("name", ["python", "a b", "we) ird ("])
def test_fields_are_counted_from_behind_the_name(tmp_path: Path, name: str) -> None:
    folder = proc(tmp_path, 7, name)
    assert process_cpu_seconds(7, folder) == (14 + 15) / TICK
    assert process_resident_bytes(7, folder) == 24 * PAGE


def test_a_process_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert process_cpu_seconds(7, tmp_path) is None
    assert process_resident_bytes(7, tmp_path) is None
    assert busy_seconds(tmp_path) is None


def test_this_process_and_the_machine() -> None:
    before = process_cpu_seconds(os.getpid()) or 0.0
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    used = (process_cpu_seconds(os.getpid()) or 0.0) - before
    assert used >= 0.08
    assert (process_resident_bytes(os.getpid()) or 0) > 1 << 20
    assert (busy_seconds() or 0.0) > 0


def test_one_that_ended_still_tells_until_it_is_waited_for() -> None:
    """So an engine that was killed is in the sum."""
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    process = subprocess.Popen([sys.executable, "-c", burn])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (process_cpu_seconds(process.pid) or 0.0) >= 0.15
    process.wait()
    assert process_cpu_seconds(process.pid) is None


def test_a_server_may_have_as_many_connections_as_the_system_permits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the usual soft limit of 1,024 files a thousand streams ended in refused connections."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1024, 20_000))
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: given.append(limits))
    allow_connections()
    assert given == [(20_000, 20_000)]
