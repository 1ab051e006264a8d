"""Tape: what nodes recorded, in order: launches in one native program, and work of Python between
them.

Operations are numbered in recorded order, launches and host calls alike. A range of launches
without a host call inside is one native call.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from time import perf_counter_ns

from rebar.graph.node import HostCall
from rebar.hal import Launch, Program, Step


class Tape:
    """A Program that also knows host calls. Call it, or `add`, to record."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._calls: list[HostCall] = []
        self._places: list[int] = []  # operation number of each host call

    @property
    def program(self) -> Program:
        """The same as cheaply as can be: the native program where there is no host call."""
        return self if self._calls else self._program

    def add(self, launch: Launch | HostCall) -> None:
        """Appends one operation."""
        if isinstance(launch, HostCall):
            self._places.append(len(self))
            self._calls.append(launch)
        else:
            self._program.add(launch)

    __call__ = add

    def __len__(self) -> int:
        return len(self._program) + len(self._calls)

    def name(self, index: int) -> str:
        """Name of an operation's kernel, or of its host call."""
        before = bisect_left(self._places, index)
        if before < len(self._places) and self._places[before] == index:
            return self._calls[before].name
        return self._program.name(index - before)

    def run(self, step: Step, begin: int = 0, end: int | None = None) -> None:
        """Runs operations begin..end-1."""
        end = len(self) if end is None else end
        call = bisect_left(self._places, begin)
        while begin < end:
            place = self._places[call] if call < len(self._places) else end
            stop = min(place, end)
            if begin < stop:
                self._program.run(step, begin - call, stop - call)
            if stop < end:
                self._calls[call].run(step)
                stop, call = stop + 1, call + 1
            begin = stop

    def run_timed(self, step: Step) -> list[int]:
        """All operations, nanoseconds of each."""
        times = [perf_counter_ns()]
        for index in range(len(self)):
            self.run(step, index, index + 1)
            times.append(perf_counter_ns())
        return [after - before for before, after in pairwise(times)]
