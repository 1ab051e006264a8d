"""What a device is: a name, memory, and programs of launches. A back end is one file; others
register by entry point.

A package offers a back end with an entry point in the group `rebar.backends` whose object is a
callable `(threads: int, isa: str | None) -> Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rebar import _native
from rebar.errors import DeviceError, ShapeError
from rebar.hal.arrays import Indices, LoraTable, QuantizedRows, Rows
from rebar.hal.launches import Domain, Launch, Select
from rebar.hal.launches_backward import SelectGradient

ENTRY_POINT_GROUP = "rebar.backends"
Step = _native.Step


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may meet: most rows, logit rows and block tables of a step; ids, positions,
    blocks and slots of adapters below a number.
    """

    rows: int
    logit_rows: int = 0
    sequences: int = 1
    vocab: int = 1
    positions: int = 1
    blocks: int = 1
    adapters: int = 0


class Program(Protocol):
    """Launches in recorded order, run by one call."""

    def add(self, launch: Launch) -> None:
        """Appends a launch; ShapeError when its sizes disagree or its buffers are too small for the
        limits.
        """

    def __len__(self) -> int:
        """Launches recorded."""

    def name(self, index: int) -> str:
        """Kernel name of a launch."""

    def run(self, step: Step, begin: int = 0, end: int | None = None) -> None:
        """Runs launches begin..end-1 for one step; ValueError for a step outside the limits."""

    def run_timed(self, step: Step) -> list[int]:
        """Runs all launches; nanoseconds of each."""


class Backend(Protocol):
    """A device that runs programs."""

    name: str

    @property
    def pool(self) -> _native.Pool | None:
        """Threads that may also share what is left to the processor, such as sampling; None where
        there are none.
        """

    def describe(self) -> str:
        """One line: what computes here and with how much."""

    def program(self, limits: Limits) -> Program:
        """An empty program."""


BackendFactory = Callable[[int, str | None], Backend]


# Read by position, or counted by a rule of their own.
_NO_ROWS = ("table", "work", "key")
# Operands over the logit rows of launches whose others cover all rows.
_SELECTED = {Select: "y", SelectGradient: "dy"}


def operands(launch: Launch) -> Iterator[tuple[str, Rows | QuantizedRows | Indices, Domain]]:
    """The operands of a launch that have a row for each row of the step, with the rows each must
    have room for.
    """
    domain = getattr(launch, "domain", Domain.ROWS)
    for name in launch.__slots__:
        value = getattr(launch, name)
        if isinstance(value, Rows | QuantizedRows | Indices) and name not in _NO_ROWS:
            selected = _SELECTED.get(type(launch)) == name
            yield name, value, Domain.LOGIT_ROWS if selected else domain


def check(launch: Launch, limits: Limits) -> None:
    """The native door: named sizes agree and every buffer has room for the most rows."""
    launch.check()
    adapters = getattr(launch, "adapters", None)
    if isinstance(adapters, LoraTable) and adapters.slots < limits.adapters:
        raise ShapeError(f"{type(launch).__name__}: a table of {adapters.slots} adapters")
    work = getattr(launch, "work", None)
    if work is not None and work.count < min(limits.rows, _native.ATTENTION_SPLIT_ROWS):
        raise ShapeError(f"{type(launch).__name__}: work has room for {work.count} rows")
    for name, value, domain in operands(launch):
        count = value.n if isinstance(value, Indices) else value.count
        if count < domain.rows(limits):
            kind = type(launch).__name__
            raise ShapeError(
                f"{kind}: {name} has room for {count} rows, the program needs {domain.rows(limits)}"
            )


def _cpu() -> BackendFactory:
    from rebar.hal.cpu import CpuBackend

    return CpuBackend


def _ref() -> BackendFactory:
    from rebar.hal.ref import RefBackend

    return RefBackend


def _ref64() -> BackendFactory:
    from rebar.hal.ref import WideBackend

    return WideBackend


_BUILT_IN: dict[str, Callable[[], BackendFactory]] = {"cpu": _cpu, "ref": _ref, "ref64": _ref64}


def backends() -> dict[str, BackendFactory]:
    """Every back end at hand: the built-in `cpu` and `ref`, and those of installed packages."""
    from importlib.metadata import entry_points

    found = {name: factory() for name, factory in _BUILT_IN.items()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, point.load())
    return found


def open_backend(name: str, threads: int, isa: str | None = None) -> Backend:
    """The back end of that name; DeviceError naming those that exist.

    Installed packages are asked for names that are not built in: reading their metadata takes
    longer than loading a small model.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()(threads, isa)
    known = backends()
    if name not in known:
        raise DeviceError(
            f"no back end {name!r}; there are {', '.join(sorted(known))}. Choose one with --device."
        )
    return known[name](threads, isa)
