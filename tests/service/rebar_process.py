"""`rebar serve` as people start it: a front process, an engine process, a small random model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.service.live import Client
from tests.tiny.vocabulary import SIZE

ROOT = Path(__file__).parents[2]
READY = re.compile(r"ready .*: (http://[^,]+), ")


def start(
    model: Path, cache: Path, log: Path, *flags: str, port: int = 0
) -> subprocess.Popen[bytes]:
    """The process, not waited for, in a process group of its own; what it writes goes to `log`."""
    command = [sys.executable, "-m", "rebar", "serve", str(model), "--port", str(port)]
    with log.open("wb") as out:
        return subprocess.Popen(
            [*command, "--threads", "1", "--memory", "256MB", *flags],
            cwd=ROOT,
            env={
                "PYTHONPATH": str(ROOT / "src"),
                "PATH": "/usr/bin:/bin",
                "REBAR_CACHE": str(cache),
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Waits until it serves; gives its URL."""
    while True:
        ended = process.poll() is not None
        if ready := READY.search(log.read_text()):
            return ready[1]
        assert not ended, log.read_text()
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def descendants(pid: int) -> list[int]:
    """Processes below `pid`."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def gone(pids: list[int], within: float) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def resident_bytes(pid: int | str = "self") -> int:
    """Memory that the process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class RebarProcess(Client):
    """A running one."""

    vocab_size = SIZE

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        super().__init__(address(process, log))

    @property
    def pids(self) -> list[int]:
        """Front, engine, and whatever else it started."""
        return [self.process.pid, *descendants(self.process.pid)]

    def resident_bytes(self) -> int:
        """Of the front: it is what clients talk to."""
        return resident_bytes(self.process.pid)

    def errors(self) -> list[str]:
        """Lines of its log that say that something went wrong."""
        return [
            line
            for line in self.log.read_text().splitlines()
            if re.search(r"ERROR|CRITICAL|Traceback", line)
        ]

    def stop(self) -> int:
        """Ends it by SIGTERM; its exit code."""
        self.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)


@contextlib.contextmanager
def serving_process(model: Path, cache: Path, *flags: str, port: int = 0) -> Iterator[RebarProcess]:
    """Runs one; PROBE before and after, then all of its processes end."""
    cache.mkdir(exist_ok=True)
    log = cache / f"serve-{time.monotonic_ns()}.log"
    process = start(model, cache, log, *flags, port=port)
    try:
        server = RebarProcess(process, log)
        yield server
        server.probe()
        pids = server.pids
        assert server.stop() == 0
        assert gone(pids, 5.0)
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends it and all that it started."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
