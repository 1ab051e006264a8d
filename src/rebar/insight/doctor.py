"""The environment doctor: what is fit, what is not, and the next step of each finding.

A check looks at one thing and returns one finding. Nothing is changed, nothing is downloaded.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.dataflow.models import cached_model, source_digest
from rebar.errors import RebarError
from rebar.hal import DeviceManager, Limits, Rows, Step, launches, read_machine

DISTRIBUTION = "rebar-llm"
ABI = 3  # of native/rebar.h this release was written for
LEAST_MEMORY = 600_000_000  # the default model, its KV cache and the server
LEAST_DISK = 400_000_000  # the default model's wheel, its file and the converted one

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. next_step: what to do about it, empty when it is ok."""

    what: str
    state: State
    says: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the caller is about to use: a model of a cache, a port, an instruction set by name."""

    cache: Path
    hub: str
    model: str
    host: str
    port: int
    isa: str | None = None


def diagnose(subject: Subject) -> list[Finding]:
    """All findings, in the order a start would meet them."""
    return [check(subject) for check in CHECKS]


def _python(_: Subject) -> Finding:
    says = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding("python", "ok", says)


def _libraries(_: Subject) -> Finding:
    missing, found = [], []
    for requirement in metadata.requires(DISTRIBUTION) or []:
        name, *marker = re.split(r"[^\w.-]", requirement, maxsplit=1)
        if marker and "extra ==" in marker[0]:
            continue
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("libraries", "fail", f"missing: {', '.join(missing)}", "Start ./run again.")
    return Finding("libraries", "ok", ", ".join(found))


def _native_module(_: Subject) -> Finding:
    version = _native.ABI_VERSION
    if version != ABI:
        says = f"ABI {version}, this release speaks {ABI}"
        return Finding("native module", "fail", says, "Start ./run again: it builds the module.")
    return Finding("native module", "ok", f"ABI {version}")


def _compiler(_: Subject) -> Finding:
    path = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if path is None:
        step = "Needed to build after a change only: apt-get install g++"
        return Finding("compiler", "warn", "no C++ compiler", step)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Finding("compiler", "ok", (done.stdout.splitlines() or [path])[0])


def _processor(subject: Subject) -> Finding:
    machine, paths = read_machine(), _native.isas()
    says = f"{machine.cpu}, {machine.cores} cores, paths {' '.join(paths)}"
    if subject.isa is not None and subject.isa not in paths:
        return Finding("processor", "fail", says, f"REBAR_ISA={subject.isa} is not one; unset it.")
    if paths == ["scalar"]:
        return Finding("processor", "warn", says, "No vector path: a newer CPU is far faster.")
    return Finding("processor", "ok", f"{says}, uses {subject.isa or _native.best_isa()}")


def _kernels(_: Subject) -> Finding:
    """The same launch on every instruction set: it runs, and the bits are the reference's order."""
    results = {isa: _gated("cpu", isa) for isa in _native.isas()}
    differing = [isa for isa, y in results.items() if y.tobytes() != results["scalar"].tobytes()]
    # Two evaluations of x / (1 + exp(-x)) in f32, each within a few units in the last place.
    close = np.allclose(results["scalar"], _gated("ref", None), rtol=1e-5, atol=1e-6)
    if differing or not close:
        says = f"wrong results on {', '.join(differing) or 'scalar'}"
        step = "Build again (rm -r build && ./run); if it stays, tell us what processor this is."
        return Finding("kernels", "fail", says, step)
    return Finding("kernels", "ok", f"{', '.join(results)} ran and agree to the bit")


def _gated(device: str, isa: str | None) -> NDArray[np.float32]:
    """silu(x[:, :64]) x[:, 64:] of four fixed rows."""
    x = np.linspace(-8, 8, 4 * 128, dtype=np.float32).reshape(4, 128)
    y = np.zeros((4, 64), dtype=np.float32)
    program = DeviceManager(device, threads=1, isa=isa).backend.program(Limits(rows=4, positions=4))
    program.add(launches.Gated(Rows(x), Rows(y), launches.Activation.SILU))
    step = Step(4, 1, 1, 1)
    step.rows, step.positions[:4] = 4, range(4)
    program.run(step)
    return y


def _memory(_: Subject) -> Finding:
    machine = read_machine()
    free, total = machine.memory_available, machine.memory_total
    says = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB (the control group's, if it has less)"
    if free < LEAST_MEMORY:
        step = f"The default model wants {LEAST_MEMORY / 1e9:.1f} GB: free some, raise the limit."
        return Finding("memory", "fail", says, step)
    return Finding("memory", "ok", says)


def _disk(subject: Subject) -> Finding:
    folder = next(p for p in (subject.cache, *subject.cache.parents) if p.exists())
    free = shutil.disk_usage(folder).free
    says = f"{free / 1e9:.1f} GB free for {subject.cache}"
    try:
        probe = folder / f".rebar-doctor-{platform.node()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        step = "Make it writable, or name another folder with REBAR_CACHE."
        return Finding("cache", "fail", f"{folder}: {error.strerror}", step)
    if free < LEAST_DISK:
        return Finding("cache", "warn", says, "Free some, or name another folder with REBAR_CACHE.")
    return Finding("cache", "ok", says)


def _port(subject: Subject) -> Finding:
    where = f"{subject.host}:{subject.port}"
    family = socket.AF_INET6 if ":" in subject.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last owner has just gone is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((subject.host, subject.port))
        except OSError as error:
            step = f"Take another one: rebar serve --port {subject.port + 1}"
            return Finding("port", "warn", f"{where}: {error.strerror}", step)
    return Finding("port", "ok", f"{where} is free")


def _model(subject: Subject) -> Finding:
    try:
        source, converted = cached_model(subject.model, subject.cache, hub=subject.hub)
    except RebarError as error:
        step = "The next start fetches it (network needed once)."
        return Finding("model", "warn", f"{subject.model}: {error}", step)
    says = f"{subject.model}, sha256 {source_digest(source, subject.cache)}"
    if converted is None:
        return Finding("model", "warn", f"{says}, not converted yet", "The next start does it.")
    return Finding("model", "ok", f"{says}, {converted}")


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    _python,
    _libraries,
    _native_module,
    _compiler,
    _processor,
    _kernels,
    _memory,
    _disk,
    _port,
    _model,
)


def report(findings: list[Finding]) -> Iterator[str]:
    """The findings as lines of text."""
    for f in findings:
        yield f"{f.state:<5} {f.what:<14} {f.says}"
        if f.next_step:
            yield f"{'':<20} -> {f.next_step}"


def as_json(findings: list[Finding]) -> str:
    """The findings as one line of JSON."""
    rows = [{k: getattr(f, k) for k in Finding.__slots__} for f in findings]
    return json.dumps(rows, ensure_ascii=False)
