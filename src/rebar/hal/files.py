"""Files as memory: mapped read-only, written whole or not at all, locked between processes.

The law: nothing is mapped or read past the end that was measured at opening; a view keeps its
mapping alive, so it can never dangle; a file under its final name is complete (temporary name,
fsync, rename).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.errors import CorruptFileError, MissingFileError, ModelFileError

HASHED_BYTES = 1 << 24
Advice = Literal["sequential", "random", "willneed", "dontneed"]

_ADVICE: dict[Advice, int] = {
    "sequential": mmap.MADV_SEQUENTIAL,
    "random": mmap.MADV_RANDOM,
    "willneed": mmap.MADV_WILLNEED,
    "dontneed": mmap.MADV_DONTNEED,
}


class FileMapping(mmap.mmap):
    """A read-only mapping of a file: its pages may go, they come back from the file when read."""

    path: Path

    def drop_cache(self, nbytes: int) -> None:
        """Forgets the file's first bytes in the page cache, unless another process has them mapped;
        what is not yet written is written first. A file that was put under this name since loses
        its cache and nothing else.
        """
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            os.fdatasync(file.fileno())  # pages that are still to be written stay
            os.posix_fadvise(file.fileno(), 0, nbytes, os.POSIX_FADV_DONTNEED)


def mapping_of(view: NDArray[np.uint8]) -> tuple[FileMapping, int] | None:
    """The mapping that a view of a MappedFile looks into, and where; None for other memory."""
    root: object = view
    while isinstance(root, np.ndarray):
        root = root.base
    if isinstance(root, memoryview):
        root = root.obj
    if not isinstance(root, FileMapping):
        return None
    return root, int(view.ctypes.data) - int(np.frombuffer(root, dtype=np.uint8).ctypes.data)


def hash_mapped(digest: hashlib._Hash, view: NDArray[np.uint8]) -> None:
    """Adds the bytes of a view to a digest. Of a MappedFile no more pages stay than a piece has."""
    for begin in range(0, view.size, HASHED_BYTES):
        piece = view[begin : begin + HASHED_BYTES]
        digest.update(piece.data)
        drop_pages(piece)


def drop_pages(view: NDArray[np.uint8]) -> None:
    """Takes the whole pages of a view into a MappedFile out of the resident set; what was read once
    and is not needed again would count against the process until it ends. Other memory, which would
    lose its contents, is left alone.
    """
    found = mapping_of(view)
    if found is None:
        return
    root, offset = found
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (offset + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        with contextlib.suppress(OSError):
            root.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class MappedFile:
    """A whole file mapped read-only (MAP_SHARED: processes that map the same file share its pages).

    Attributes: path; nbytes, the size measured at opening; address of byte 0; data, a read-only
    uint8 view of everything. Raises MissingFileError (absent, a folder, a pipe, empty, no
    permission) and CorruptFileError (size changed while opening). Another process that cuts the
    file short ends this one when it reads there, but for `survive_cuts`: replace model files by
    renaming a new one over them, as `write_whole` does; the mapping then keeps the old file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        descriptor = _open_regular(self.path)
        try:
            before = os.fstat(descriptor)
            if before.st_size == 0:
                raise MissingFileError(f"{self.path} is empty. Fetch or convert the model again.")
            mapping = FileMapping(descriptor, before.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
            mapping.path = self.path
            if os.fstat(descriptor).st_size != before.st_size:
                raise _changed(self.path)
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f"{self.path} cannot be mapped: {error}. Copy it to a local disk."
            ) from error
        finally:
            os.close(descriptor)
        self._mapping: mmap.mmap | None = mapping
        self._guard: int | None = None
        self._identity = (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns)
        self.nbytes: int = before.st_size
        self.data: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)
        self.address: int = int(self.data.ctypes.data)

    def span(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """View of bytes offset .. offset+nbytes-1. Raises CorruptFileError when they are not all
        inside the file.
        """
        if offset < 0 or nbytes < 0 or offset > self.nbytes or nbytes > self.nbytes - offset:
            raise CorruptFileError(
                f"{self.path}: bytes {offset}..{offset + nbytes} lie outside the file of "
                f"{self.nbytes} bytes. "
                "The file is truncated or damaged: fetch or convert it again."
            )
        return self.data[offset : offset + nbytes]

    def buffer(self) -> memoryview:
        """The same bytes as a memoryview, for struct and the like."""
        return self.data.data

    def check_unchanged(self) -> None:
        """Raises CorruptFileError when the file at `path` is no longer the one that was mapped."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise MissingFileError(
                f"{self.path} is gone: {error.strerror}. Put it back."
            ) from error
        if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != self._identity:
            raise _changed(self.path)

    def survive_cuts(self) -> None:
        """From now on what is read past the end of a file that was cut is zeros, where it was the
        end of the process (SIGBUS). For data whose readers call `check_whole` and so learn of it;
        a model would only speak nonsense.
        """
        if self._mapping is not None and self._guard is None:
            guard = _native.guard_mapping(self.address, self.nbytes)
            if guard >= 0:
                self._guard = guard
                weakref.finalize(self._mapping, _native.give_up_guard, guard).atexit = False

    def check_whole(self) -> None:
        """Raises CorruptFileError when the file was cut since it was mapped."""
        if self._guard is not None and _native.was_cut(self._guard):
            raise _changed(self.path)
        if self._mapping is not None and self._mapping.size() < self.nbytes:
            raise _changed(self.path)

    def rewritten(self) -> bool:
        """Whether the mapped file was written to since. Another one under its name is none."""
        with contextlib.suppress(OSError):
            now = os.stat(self.path)
            return self._identity[:2] == (now.st_dev, now.st_ino) and (
                self._identity[2:] != (now.st_size, now.st_mtime_ns)
            )
        return False

    def advise(self, advice: Advice, offset: int = 0, nbytes: int | None = None) -> None:
        """Hint to the kernel for the pages that hold a span; a hint it does not know is no
        error.
        """
        if self._mapping is None:
            return
        length = self.nbytes - offset if nbytes is None else nbytes
        self.span(offset, length)
        begin = offset - offset % mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._mapping.madvise(_ADVICE[advice], begin, length + offset - begin)

    def close(self) -> None:
        """Gives the mapping up; its pages go when the last view of it does. Twice is no error."""
        self._mapping = self._guard = None
        self.data = np.empty(0, dtype=np.uint8)
        self.address = 0
        self.nbytes = 0

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _changed(path: Path) -> CorruptFileError:
    return CorruptFileError(
        f"{path} changed while it was in use. Wait until its writer is done, then load it again."
    )


def _open_regular(path: Path) -> int:
    """Descriptor of a regular file. O_NONBLOCK, so that a pipe without a writer cannot hold us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MissingFileError(
            f"{path} cannot be opened: {reason}. Check the name and the permissions."
        ) from error
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
    raise MissingFileError(f"{path} is {what}. Name the model file itself.")


def read_bounded(path: Path, most: int) -> bytes:
    """A whole small file. Raises MissingFileError (absent, no regular file) and CorruptFileError
    (more than `most` bytes).
    """
    with os.fdopen(_open_regular(path), "rb") as source:
        size = os.fstat(source.fileno()).st_size
        if size > most:
            raise CorruptFileError(f"{path} is larger than {most} bytes. Fetch it again.")
        return source.read(size)


@contextlib.contextmanager
def write_whole(target: Path, nbytes: int = 0) -> Iterator[IO[bytes]]:
    """A file that appears under `target` complete or not at all.

    Yields a binary file under a temporary name in the same folder; when the block ends without an
    error it is synced and renamed, else removed. nbytes > 0 reserves the room first, so that a
    full disk is found before any work is done (OSError ENOSPC). Raises OSError as the system
    reports it.
    """
    make_folder(target.parent)
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=".part", dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "w+b") as sink:
            if nbytes > 0:
                _reserve(sink.fileno(), nbytes)
            yield sink
            sink.flush()
            os.fchmod(sink.fileno(), 0o644)
            os.fsync(sink.fileno())
        os.replace(name, target)
        sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _reserve(descriptor: int, nbytes: int) -> None:
    """Takes the room on the disk; file systems without reservation get a plain length."""
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, nbytes)


def make_folder(folder: Path) -> None:
    """A folder and those above it; new names survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_now(descriptor: int) -> bool:
    """Takes an exclusive lock on an open file, until it is closed or its holder dies; False when
    another process has it. A file system that knows no locks keeps nobody away.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` (made when absent), waiting for other processes; freed
    when the holder dies.
    """
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
