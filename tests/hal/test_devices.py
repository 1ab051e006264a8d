"""DeviceManager: discovery, budgets over pools and mappings, back ends by entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebar.errors import DeviceError, MemoryBudgetError
from rebar.hal import DeviceManager, Limits, machine


def test_the_budget_covers_pools_and_mappings() -> None:
    devices = DeviceManager("ref", memory=10_000)
    devices.create_pool("kv", 4096)
    devices.adopt_mapping("file", 4000)
    with pytest.raises(MemoryBudgetError, match=r"weights needs 2,000 bytes, .* leaves 1,904"):
        devices.create_pool("weights", 2000)
    stats = devices.stats()
    assert (stats.budget, stats.used, stats.free, stats.largest_block) == (10_000, 4000, 6000, 4096)
    assert {p.name for p in stats.pools} == {"kv", "file"}
    devices.release("file")
    devices.create_pool("weights", 2000)
    with pytest.raises(DeviceError, match="exists"):
        devices.create_pool("kv", 1)
    with pytest.raises(DeviceError, match="no pool or mapping 'file'"):
        devices.release("file")
    with pytest.raises(DeviceError, match=r"no pool 'x'; there are kv, weights"):
        devices.pool("x")


def test_without_a_budget_most_of_what_is_available_is_used() -> None:
    devices = DeviceManager("ref")
    assert devices.budget == int(devices.machine.memory_available * 0.8)


def install_package(folder: Path) -> None:
    """A package as pip leaves it: a module, and metadata with an entry point."""
    metadata = folder / "shouting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[rebar.backends]\nshouting = shouting:Shouting\n")
    (folder / "shouting.py").write_text(
        "from rebar.hal.ref import RefBackend\n"
        "class Shouting(RefBackend):\n"
        "    name = 'shouting'\n"
        "    def describe(self):\n"
        "        return f'LOUD, {self.threads} threads'\n"
    )


def test_back_ends_of_other_packages_register_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package adds a device with nothing but an entry point in the group rebar.backends."""
    install_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert DeviceManager.discover() == ("cpu", "ref", "ref64", "shouting")
    devices = DeviceManager("shouting", threads=3, memory=1 << 20)
    assert devices.describe().endswith("LOUD, 3 threads")
    assert len(devices.program(Limits(rows=1))) == 0


def test_an_unknown_back_end_names_those_that_exist() -> None:
    with pytest.raises(DeviceError, match=r"no back end 'tpu'; there are cpu, ref"):
        DeviceManager("tpu")
    with pytest.raises(DeviceError, match=r"instruction set 'mmx' is not available here"):
        DeviceManager("cpu", isa="mmx")


@pytest.mark.parametrize("threads", [0, -1, 300])
def test_thread_counts_that_make_no_sense_are_refused(threads: int) -> None:
    """`--threads 0` once meant "all cores", as if nothing had been said."""
    with pytest.raises(DeviceError, match="1 to 256 threads"):
        DeviceManager("cpu", threads=threads)


def test_control_groups_bound_memory_and_cores(tmp_path: Path) -> None:
    cgroup, proc = tmp_path / "cgroup", tmp_path / "proc"
    cgroup.mkdir()
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (proc / "cpuinfo").write_text("model name : Fast One\nmodel name : Fast One\n")
    free = machine.read_machine(cgroup, proc)
    assert (free.cpu, free.memory_total, free.memory_available) == ("Fast One", 1024000, 921600)
    (cgroup / "memory.max").write_text("500000\n")
    (cgroup / "memory.current").write_text("100000\n")
    (cgroup / "cpu.max").write_text("100000 100000\n")
    bound = machine.read_machine(cgroup, proc)
    assert (bound.cores, bound.memory_total, bound.memory_available) == (1, 500000, 400000)
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert machine.read_machine(cgroup, proc) == free
