"""SharedMemory: memory without a name, known by a descriptor, that outlives each process that maps
it but the one that made it.

The law: a descriptor is the only way to it (memfd_create(2)), so nothing is left behind on a disk
or under a name: when the last process that holds it ends, by kill -9 too, the system frees it. It
only grows, by a seal: a mapping can never reach past its end. Pages cost memory when they are first
touched, and count in the control group of whoever touched them first.

Pages of 2 MiB. Most systems give shared memory none by advice
(/sys/kernel/mm/transparent_hugepage/shmem_enabled is "never"), but they put them under memory that
is there when asked with MADV_COLLAPSE (Linux 6.1), whatever that switch says. So an extent of 2 MiB
is touched and collapsed when it is first needed: 150 to 190 us, as long as its zeros take. A
process that maps it later finds it like that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from rebar.hal.huge_pages import HUGE, LEAST

MADV_COLLAPSE = 25  # Linux 6.1; the mmap module has no name for it
MAP_FIXED = 0x10
STAT_UNIT = 512  # of st_blocks, whatever the system's pages are

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class SharedMemory:
    """One piece of it, by its descriptor, which this object owns. Errors: OSError."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls, what: str) -> SharedMemory:
        """A new one, empty. what: shown in /proc/PID/maps and nowhere else. A child process has the
        descriptor only where it is passed on.
        """
        memory = cls(os.memfd_create(what, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(memory.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return memory

    @property
    def nbytes(self) -> int:
        """Its length; most of it may never have been touched."""
        return os.fstat(self.descriptor).st_size

    @property
    def resident_bytes(self) -> int:
        """Memory that stands behind it now, whoever has it mapped."""
        return os.fstat(self.descriptor).st_blocks * STAT_UNIT

    def read(self, nbytes: int) -> bytes:
        """Its first bytes, fewer where it is shorter; no mapping is needed."""
        return os.pread(self.descriptor, nbytes, 0)

    def map(self, nbytes: int) -> SharedMapping:
        """Its first nbytes, read and written; it grows to them."""
        if self.nbytes < nbytes:
            os.ftruncate(self.descriptor, nbytes)
        return SharedMapping(self.descriptor, nbytes)

    def close(self) -> None:
        """Lets go of the descriptor; what is mapped stays."""
        os.close(self.descriptor)


class SharedMapping:
    """`nbytes` mapped bytes from the beginning. Views of `bytes()` keep it; it goes with them."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self._room = (0, 0)
        self.address = self._place(descriptor)
        self._huge_end = 0
        self._collapses = self.nbytes >= LEAST
        # numpy's way to memory that is not its own: arrays made from this hold this object.
        self.__array_interface__ = {
            "data": (self.address, False),
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def _place(self, descriptor: int) -> int:
        """Maps at a border of 2 MiB, without which no page can be that large: the system looks for
        a place that is larger by that much, and the part that is needed is put into it.
        """
        whole = _mapped(None, self.nbytes + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._room = (whole, self.nbytes + HUGE)
        place = -(-whole // HUGE) * HUGE
        access = mmap.PROT_READ | mmap.PROT_WRITE
        return _mapped(place, self.nbytes, access, mmap.MAP_SHARED | MAP_FIXED, descriptor)

    def bytes(self) -> NDArray[np.uint8]:
        """All of it."""
        return np.asarray(self)

    def reach(self, end: int) -> None:
        """Puts the bytes up to `end`, which are about to be used, into pages of 2 MiB where the
        system can. Costs nothing where that was done before.
        """
        if not self._collapses or end <= self._huge_end:
            return
        begin, self._huge_end = self._huge_end, min(-(-end // HUGE) * HUGE, self.nbytes)
        whole = (self._huge_end - begin) // HUGE * HUGE
        if not whole:
            return
        _ = self.bytes()[begin : begin + whole : HUGE].sum()  # a page that is read is there
        # A system that has none left now may have some for the next extent; one that does not know
        # the advice answers so to every one.
        refused = _libc.madvise(self.address + begin, whole, MADV_COLLAPSE)
        self._collapses = not refused or ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS)

    def __del__(self) -> None:
        address, nbytes = self._room
        if nbytes:
            _libc.munmap(address, nbytes)


def _mapped(place: int | None, nbytes: int, access: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(place, nbytes, access, flags, descriptor, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {nbytes:,} bytes of shared memory")
    return int(address)
