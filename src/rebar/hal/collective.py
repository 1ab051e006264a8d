"""Several processes that add numbers together: what data-parallel training stands on.

The law: a sum runs over ranks in ascending order, element by element, and every rank computes it
from the same bytes, so that all ranks hold the same bits and a run can be repeated. The collective
library torch.distributed, with gloo, carries the bytes (`pip install torch`); nothing else of torch
is used, and only a group of several ranks imports it.

A rank that ends or says nothing for the time-out ends the call of every other one with
CollectiveError. No rank waits for ever, and one that waits hears Ctrl-C: the library's calls are
made by a thread of their own, because inside of them no signal is seen, and a stranger who holds
the port and says nothing would keep the library beyond every time-out.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CollectiveError, InputError

PIECE = 1 << 20
"""Floats that are exchanged at a time: each rank holds a copy of everybody's, 4 MiB a rank."""
DEFAULT_TIMEOUT = 60.0
GRACE = 5.0
"""Seconds beyond the time-out after which the library is no longer waited for."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which process of how many, and where the first one listens."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 29500

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InputError(
                f"rank {self.rank} of {self.size} does not exist. Set RANK and WORLD_SIZE as "
                "torchrun does: 0 to WORLD_SIZE - 1."
            )


class Collective(Protocol):
    """What ranks do together. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which one this is."""

    @property
    def size(self) -> int:
        """How many there are."""

    def add(self, values: NDArray[np.float32]) -> None:
        """Replaces values (n,) by their sum over all ranks."""

    def gather(self, value: float) -> list[float]:
        """The number of every rank, in their order. Whole numbers up to 2^53 arrive as they are."""

    def gather_text(self, text: str) -> list[str]:
        """The text of every rank, in their order."""

    def close(self) -> None:
        """Leaves the group."""


class Alone:
    """A group of one."""

    rank, size = 0, 1

    def add(self, values: NDArray[np.float32]) -> None:
        """One rank's sum is its own."""

    def gather(self, value: float) -> list[float]:
        """One number."""
        return [value]

    def gather_text(self, text: str) -> list[str]:
        """One text."""
        return [text]

    def close(self) -> None:
        """Nothing is open."""


class Gloo:
    """A group of several processes, on one machine or many."""

    def __init__(self, place: Place, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.rank, self.size = place.rank, place.size
        self._timeout = timeout
        self._torch = _import()
        self._caller = _Caller()
        address = f"tcp://{place.host}:{place.port}"
        try:
            self._caller.call(lambda: self._meet(address), timeout + GRACE)
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise CollectiveError(
                f"rank {self.rank}: the {self.size} ranks did not meet at {address} within "
                f"{timeout:g} s ({_reason(error)}). {_advice(error, place)}"
            ) from error

    def _meet(self, address: str) -> None:
        self._torch.distributed.init_process_group(
            "gloo", init_method=address, rank=self.rank, world_size=self.size,
            timeout=timedelta(seconds=self._timeout),
        )  # fmt: skip

    def add(self, values: NDArray[np.float32]) -> None:
        """In pieces, each rank adding everybody's in their order."""
        flat = values.reshape(-1)
        if not np.shares_memory(flat, values):
            raise InputError("a sum over ranks is written in place: pass a contiguous array.")
        room = np.empty((self.size, min(PIECE, max(flat.size, 1))), np.float32)
        for begin in range(0, flat.size, PIECE):
            piece = flat[begin : begin + PIECE]
            parts = room[:, : piece.size]
            self._all(parts, piece)
            piece[:] = parts[0]
            for part in parts[1:]:
                piece += part

    def gather(self, value: float) -> list[float]:
        """By the same exchange."""
        found = np.empty((self.size, 1), np.float64)
        self._all(found, np.array([value], np.float64))
        return [float(number) for number in found[:, 0]]

    def gather_text(self, text: str) -> list[str]:
        """Their lengths, then all of them as bytes of the longest."""
        mine = np.frombuffer(text.encode(), np.uint8)
        lengths = [int(number) for number in self.gather(mine.size)]
        found = np.zeros((self.size, max(*lengths, 1)), np.uint8)
        padded = np.zeros(found.shape[1], np.uint8)
        padded[: mine.size] = mine
        self._all(found, padded)
        pairs = zip(found, lengths, strict=True)
        return [row[:length].tobytes().decode() for row, length in pairs]

    def _all(self, parts: NDArray[np.generic], mine: NDArray[np.generic]) -> None:
        """parts[r] becomes what rank r brought."""
        torch = self._torch
        into = [torch.from_numpy(part) for part in parts]
        brought = torch.from_numpy(mine)
        try:
            self._caller.call(
                lambda: torch.distributed.all_gather(into, brought), self._timeout + GRACE
            )
        except (RuntimeError, TimeoutError) as error:
            self.close()  # threads of a group that is left open abort the process when it ends
            raise CollectiveError(
                f"rank {self.rank}: another of the {self.size} ranks ended, or said nothing for "
                f"{self._timeout:g} s ({_reason(error)}). See what its log says, and start all "
                "of them again with --resume."
            ) from error

    def close(self) -> None:
        """Leaves the group; what others still wait for fails there."""
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()


def join(place: Place, timeout: float = DEFAULT_TIMEOUT) -> Collective:
    """The group of `place`; nothing is imported for a group of one."""
    return Alone() if place.size == 1 else Gloo(place, timeout)


def _import() -> ModuleType:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise CollectiveError(
            "more than one rank needs torch.distributed. Install it: pip install torch, or train "
            "with one process (WORLD_SIZE 1)."
        ) from error
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise CollectiveError("this torch was built without gloo. Install the one of PyPI.")
    module: ModuleType = torch
    return module


class _Caller:
    """A thread that makes one call after another, for a caller who waits no longer than it wants
    to and hears signals meanwhile. It is left behind, with the process, by a call that never ends.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="rebar-collective", daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._asked.get()
            try:
                call()
                self._ended.put(None)
            except Exception as error:
                self._ended.put(error)

    def call(self, function: Callable[[], object], limit: float) -> None:
        """Raises what it raises, TimeoutError after `limit` seconds."""
        self._asked.put(function)
        try:
            error = self._ended.get(timeout=limit)
        except queue.Empty:
            raise TimeoutError("nobody answered") from None
        if error is not None:
            raise error


def _reason(error: Exception) -> str:
    """What the library says, without the places in its source."""
    first = str(error).strip().split("\n", 1)[0]
    return re.sub(r"^\[\S+:\d+\] ", "", first).split(". ", 1)[0][:200] or type(error).__name__


def _advice(error: Exception, place: Place) -> str:
    if "EADDRINUSE" in str(error) or isinstance(error, TimeoutError):
        return (
            f"Another program holds port {place.port}: start all ranks with another MASTER_PORT, "
            "the same for all."
        )
    return "Start them all with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE."
