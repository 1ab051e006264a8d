"""Memory that outlives the processes that map it, and nobody else: by descriptor only, exact to the
page, gone with its maker.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.service.live import wait_for

from rebar.hal import DeviceManager, Pool, SharedMemory, shared_memory
from rebar.hal.huge_pages import HUGE, LEAST

NAME = f"rebar-test-{os.getpid()}"


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory.create(NAME)
    yield made
    made.close()


def holders(name: str = NAME) -> list[int]:
    """Processes that have it open or mapped."""
    found = []
    for folder in Path("/proc").iterdir():
        said = ""
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it ended, or is another user's
                said = (folder / "maps").read_text()
                for link in (folder / "fd").iterdir():
                    with contextlib.suppress(OSError):  # the one that reads this folder
                        said += os.readlink(link) + "\n"
        if re.search(rf"memfd:{name}\b(?!-)", said):
            found.append(int(folder.name))
    return sorted(found)


def child(memory: SharedMemory, script: str) -> subprocess.Popen[bytes]:
    """A process that is given the descriptor and maps 1 MB as `view`."""
    begin = (
        "import os, signal, time\nfrom rebar.hal import SharedMemory\n"
        f"view = SharedMemory({memory.descriptor}).map(1 << 20).bytes()\n"
    )
    command = [sys.executable, "-c", begin + script]
    return subprocess.Popen(command, pass_fds=(memory.descriptor,), stdout=subprocess.PIPE)


def test_what_a_killed_process_wrote_is_there_for_the_next(memory: SharedMemory) -> None:
    """To the byte before the kill."""
    script = "view[7] = 42\nview[(1 << 20) - 1] = 43\nos.kill(os.getpid(), signal.SIGKILL)"
    with child(memory, script) as process:
        assert process.wait(20) == -signal.SIGKILL
    view = memory.map(1 << 20).bytes()
    assert (view[7], view[-1], int(view.sum())) == (42, 43, 85)
    assert memory.read(9) == bytes([0] * 7 + [42, 0])


def test_it_has_no_name_and_only_heirs_have_it(memory: SharedMemory) -> None:
    """A child that is not passed the descriptor cannot hold memory past the end of its parent."""
    assert not list(Path("/dev/shm").glob(f"*{NAME}*"))
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, close_fds=False) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        assert holders() == [os.getpid()]
        stranger.kill()
    with child(memory, "print(flush=True)\ntime.sleep(60)") as heir:
        assert heir.stdout is not None
        heir.stdout.readline()
        assert holders() == sorted([os.getpid(), heir.pid])
        heir.kill()
    wait_for(lambda: holders() == [os.getpid()])


def test_it_is_gone_with_the_last_that_has_it() -> None:
    """Views keep a mapping, a mapping keeps the memory, and closing lets go of the descriptor."""
    name = NAME + "-gone"
    memory = SharedMemory.create(name)
    view = memory.map(1 << 20).bytes()[100:200]
    view[:] = 1
    memory.close()
    assert holders(name) == [os.getpid()]
    assert view.sum() == 100
    del view
    assert holders(name) == []


def test_memory_stands_behind_what_was_touched_to_the_page(memory: SharedMemory) -> None:
    assert (memory.nbytes, memory.resident_bytes, memory.read(10)) == (0, 0, b"")
    view = memory.map(3 << 20).bytes()
    assert (memory.nbytes, memory.resident_bytes) == (3 << 20, 0)
    view[5 * mmap.PAGESIZE] = 1
    view[9 * mmap.PAGESIZE + 1] = 1
    assert memory.resident_bytes == 2 * mmap.PAGESIZE


def test_it_grows_and_never_shrinks(memory: SharedMemory) -> None:
    """A mapping past the end of a file that somebody cut is a SIGBUS at the next touch."""
    first = memory.map(1 << 20).bytes()
    first[:] = 7
    second = memory.map(2 << 20).bytes()
    assert (second[: 1 << 20] == 7).all()
    assert not second[1 << 20 :].any()
    first[3] = 9
    assert second[3] == 9
    assert memory.map(4096).nbytes == 4096
    assert memory.nbytes == 2 << 20
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 100)


def test_what_the_system_does_not_give_is_an_error(memory: SharedMemory) -> None:
    with pytest.raises(OSError, match="bytes of shared memory"):
        shared_memory.SharedMapping(memory.descriptor, 1 << 60)
    with pytest.raises(OSError, match="Bad file descriptor"):
        shared_memory.SharedMapping(-1, 4096)


def huge_bytes(address: int) -> int:
    """Of the mapping at this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low <= address < high
        elif inside and head == "ShmemPmdMapped:":
            return int(line.split()[1]) * 1024
    return 0


def system_collapses() -> bool:
    """Whether this system puts a page of 2 MiB under shared memory now: asked by hand, for an
    answer by what is tested could only agree with it.
    """
    descriptor = os.memfd_create(NAME + "-asked")
    os.ftruncate(descriptor, 2 * HUGE)
    with mmap.mmap(descriptor, 2 * HUGE) as there:
        os.close(descriptor)
        first = ctypes.addressof(ctypes.c_char.from_buffer(there))
        offset = -first % HUGE
        there[offset] = 1
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        given = madvise(first + offset, HUGE, 25) == 0  # MADV_COLLAPSE
        return given and huge_bytes(first) == HUGE


def test_large_pages_come_under_what_is_about_to_be_used(memory: SharedMemory) -> None:
    """Systems give shared memory 4 KiB pages; nothing but speed would show it. An extent that holds
    something keeps it, one that does not costs nothing until it is reached.
    """
    if not system_collapses():
        pytest.skip("this system puts no large pages under shared memory")
    mapping = memory.map(4 * LEAST + 4096)
    view = mapping.bytes()
    assert mapping.address % HUGE == 0
    view[: 3 * 4096] = 5
    mapping.reach(1)
    assert huge_bytes(mapping.address) == HUGE == memory.resident_bytes
    assert (view[: 3 * 4096] == 5).all()
    assert not view[3 * 4096 : HUGE].any()
    mapping.reach(HUGE)
    assert memory.resident_bytes == HUGE
    mapping.reach(2 * HUGE + 1)
    assert huge_bytes(mapping.address) == 3 * HUGE == memory.resident_bytes
    mapping.reach(mapping.nbytes)  # what is left over at the end stays small
    assert huge_bytes(mapping.address) == 4 * LEAST
    another = memory.map(4 * LEAST).bytes()
    assert another.sum() == 5 * 3 * 4096
    assert huge_bytes(int(another.ctypes.data)) >= HUGE, "who maps it later has them too"


def test_a_system_that_does_not_know_the_advice_is_asked_once(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Refusing:
        munmap = shared_memory._libc.munmap

        def madvise(self, *of: int) -> int:
            asked.append(of)
            ctypes.set_errno(errno.EINVAL)
            return -1

    mapping, small = memory.map(2 * LEAST), memory.map(LEAST - 1)
    monkeypatch.setattr(shared_memory, "_libc", Refusing())
    small.reach(LEAST - 1)
    assert not asked, "too small to gain anything"
    for end in range(0, 2 * LEAST + 1, HUGE):
        mapping.reach(end)
    assert asked == [(mapping.address, HUGE, shared_memory.MADV_COLLAPSE)]
    assert not mapping.bytes().any()


def test_a_pool_of_it_accounts_like_any_other(memory: SharedMemory) -> None:
    """Budgets do not know where bytes lie; only what the pool before wrote is still there."""
    for turn in range(2):
        devices = DeviceManager("ref", memory=100_000)
        pool = devices.create_pool("kv", 10_000, memory)
        block = pool.allocate(5000, "keys and values")
        assert (block.bytes() == (9 if turn else 0)).all()
        block.bytes()[:] = 9
        mine = Pool("mine", 10_000)
        mine.allocate(5000, "keys and values")
        stats = pool.stats()
        assert (stats.used, stats.free, stats.budget, stats.peak) == (
            mine.stats().used, mine.stats().free, mine.stats().budget, mine.stats().peak,
        )  # fmt: skip
        assert devices.stats().used == stats.used
        assert pool.memory.nbytes == pool.budget
        devices.release("kv")


def test_what_stands_already_is_no_less_to_give(memory: SharedMemory) -> None:
    """A cache of half a gigabyte from before once made the next plan smaller by 80 % of that."""
    before = DeviceManager("ref", shared=memory)
    np.asarray(memory.map(64 << 20))[:] = 1
    after = DeviceManager("ref", shared=memory)
    counted = int((after.machine.memory_available + (64 << 20)) * 0.8)
    assert after.budget == counted
    assert before.budget == int(before.machine.memory_available * 0.8)
