"""DeviceManager: the one owner of a device's memory and programs. Free, used, largest block and
fragmentation are always known.
"""

from __future__ import annotations

from dataclasses import dataclass

from rebar.errors import DeviceError, MemoryBudgetError
from rebar.hal.backend import Limits, Program, backends, open_backend
from rebar.hal.machine import Machine, read_machine
from rebar.hal.memory import Pool, PoolStats
from rebar.hal.shared_memory import SharedMemory

# Without --memory: what is left for the interpreter, the HTTP side and the page cache of a machine
# that does other things too.
DEFAULT_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Bytes of the whole device. free: not in any pool or mapping, plus the free bytes inside
    pools.
    """

    budget: int
    used: int
    free: int
    largest_block: int
    fragmentation: float
    pools: tuple[PoolStats, ...]


class DeviceManager:
    """A device with a memory budget, cut into named pools.

    Args: device: a back end's name. threads: None for all usable cores. memory: budget in bytes,
    None for 80 % of what is available now. isa: None for the best instruction set. shared: memory
    that stands already and becomes a pool; it counts as available.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        threads: int | None = None,
        memory: int | None = None,
        isa: str | None = None,
        shared: SharedMemory | None = None,
    ) -> None:
        self.machine: Machine = read_machine()
        self.threads = self.machine.cores if threads is None else threads
        self.backend = open_backend(device, self.threads, isa)
        standing = shared.resident_bytes if shared is not None else 0
        available = self.machine.memory_available + standing
        self.budget = int(available * DEFAULT_SHARE) if memory is None else memory
        self._pools: dict[str, Pool] = {}
        self._mapped: dict[str, int] = {}

    @staticmethod
    def discover() -> tuple[str, ...]:
        """Names of the back ends at hand."""
        return tuple(sorted(backends()))

    @property
    def available_bytes(self) -> int:
        """Memory that the machine could give now, whatever was planned."""
        return read_machine().memory_available

    def create_pool(self, name: str, budget: int, shared: SharedMemory | None = None) -> Pool:
        """A new pool; MemoryBudgetError when the device's budget does not hold it. shared: whose
        first bytes it is to be.
        """
        self._claim(name, budget)
        self._pools[name] = Pool(name, budget, shared=shared)
        return self._pools[name]

    def adopt_mapping(self, name: str, nbytes: int) -> None:
        """Counts a mapped file of nbytes bytes into the budget."""
        self._claim(name, nbytes)
        self._mapped[name] = nbytes

    def release(self, name: str) -> None:
        """Gives a pool or mapping back; its blocks must not be used any more."""
        pool = self._pools.pop(name, None)
        if pool is not None:
            pool.close()
        elif self._mapped.pop(name, None) is None:
            raise DeviceError(
                f"no pool or mapping {name!r}; there are "
                f"{', '.join([*self._pools, *self._mapped]) or 'none'}."
            )

    def _claim(self, name: str, nbytes: int) -> None:
        if name in self._pools or name in self._mapped:
            raise DeviceError(f"pool {name!r} exists. Release it first or choose another name.")
        left = self.budget - self._committed()
        if nbytes > left:
            message = (
                f"{name} needs {nbytes:,} bytes, the budget of {self.budget:,} leaves "
                f"{left:,}. Give it more with --memory."
            )
            raise MemoryBudgetError(message, needed=nbytes, available=left)

    def _committed(self) -> int:
        return sum(p.budget for p in self._pools.values()) + sum(self._mapped.values())

    def pool(self, name: str) -> Pool:
        """The pool of that name."""
        if name not in self._pools:
            raise DeviceError(f"no pool {name!r}; there are {', '.join(self._pools) or 'none'}.")
        return self._pools[name]

    def stats(self) -> DeviceStats:
        """Bytes of the device and of each pool, now."""
        pools = [p.stats() for p in self._pools.values()]
        pools += [PoolStats(name, n, n, 0, 0, 0.0, n) for name, n in self._mapped.items()]
        free = self.unclaimed + sum(p.free for p in pools)
        largest = max([self.unclaimed, *(p.largest_block for p in pools)])
        used = sum(p.used for p in pools)
        return DeviceStats(
            self.budget, used, free, largest, 1.0 - largest / free if free else 0.0, tuple(pools)
        )

    @property
    def unclaimed(self) -> int:
        """Bytes of the budget that no pool and no mapping has."""
        return max(self.budget - self._committed(), 0)

    def program(self, limits: Limits) -> Program:
        """An empty program on this device."""
        return self.backend.program(limits)

    def describe(self) -> str:
        """One line: machine and back end."""
        m = self.machine
        return (
            f"{m.cpu}, {m.cores} cores, {m.memory_available / 1e9:.1f} of "
            f"{m.memory_total / 1e9:.1f} GB available; {self.backend.describe()}"
        )
