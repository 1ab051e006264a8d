"""Mapped files, whole writes and locks."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rebar.errors import CorruptFileError, MissingFileError, ModelFileError
from rebar.hal import Pool
from rebar.hal.files import MappedFile, drop_pages, locked, write_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "x"
    file.write_bytes(bytes(range(256)) * 40)
    return file


def test_everything_is_mapped_and_read_only(path: Path) -> None:
    with MappedFile(path) as file:
        assert file.nbytes == 10_240
        assert bytes(file.data) == path.read_bytes()
        assert bytes(file.buffer()[:3]) == b"\x00\x01\x02"
        assert file.address == file.data.ctypes.data
        assert file.address % mmap.PAGESIZE == 0
        with pytest.raises(ValueError, match="read-only"):
            file.data[0] = 1


def test_spans_stay_inside(path: Path) -> None:
    file = MappedFile(path)
    assert bytes(file.span(10, 3)) == b"\x0a\x0b\x0c"
    assert file.span(10_240, 0).nbytes == 0
    for offset, nbytes in (
        (10_240, 1),
        (0, 10_241),
        (-1, 1),
        (0, -1),
        (1 << 63, 1),
        (1, 1 << 63),
        (10_241, 0),
    ):
        with pytest.raises(CorruptFileError, match="outside the file"):
            file.span(offset, nbytes)


def test_a_view_keeps_its_mapping(path: Path) -> None:
    """Closing while a view is in use must not pull the pages away."""
    file = MappedFile(path)
    view = file.span(256, 4)
    file.close()
    file.close()
    assert file.nbytes == 0
    path.unlink()
    gc.collect()
    assert bytes(view) == b"\x00\x01\x02\x03"


def test_descriptors_are_given_back(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        MappedFile(path).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, match in (
        ("absent", "No such file"),
        ("", "a folder"),
        ("empty", "is empty"),
        ("pipe", "regular"),
    ):
        with pytest.raises(MissingFileError, match=match):
            MappedFile(tmp_path / name)
    with pytest.raises(MissingFileError, match="null"):
        MappedFile(Path("a\0b"))


def test_a_file_that_grows_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download still under way has another size a moment later."""
    fstat, calls = os.fstat, 0

    def growing(descriptor: int) -> os.stat_result:
        nonlocal calls
        calls += 1
        if calls == 3:
            with path.open("ab") as sink:
                sink.write(b"more")
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", growing)
    with pytest.raises(ModelFileError, match="changed while it was in use"):
        MappedFile(path)


def test_a_file_that_changes_later_is_noticed(path: Path) -> None:
    file = MappedFile(path)
    file.check_unchanged()
    replacement = path.with_name("y")
    replacement.write_bytes(path.read_bytes())
    replacement.replace(path)
    with pytest.raises(CorruptFileError, match="changed"):
        file.check_unchanged()
    path.unlink()
    with pytest.raises(MissingFileError, match="is gone"):
        file.check_unchanged()
    assert bytes(file.span(0, 2)) == b"\x00\x01"


def test_advice_is_bounded_too(path: Path) -> None:
    file = MappedFile(path)
    for advice in ("sequential", "random", "willneed", "dontneed"):
        file.advise(advice, 5000, 100)
        file.advise(advice)
    with pytest.raises(CorruptFileError):
        file.advise("willneed", 10_000, 1000)
    file.close()
    file.advise("willneed")


def test_a_whole_write_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "x"
    with write_whole(target, 100) as sink:
        sink.write(b"abc")
        assert not target.exists()
    assert target.read_bytes() == b"abc" + b"\0" * 97
    assert target.stat().st_mode & 0o777 == 0o644


def test_bytes_then_name_then_folder_are_made_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut could undo is undone in no order but this one. A folder that is new has to
    last in the one above it: there, once, nobody asked for it.
    """
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        done.append(f"sync {'the file' if name.startswith('.x.') else name}")

    def renamed(source: str, target: Path) -> None:
        replace(source, target)
        done.append(f"name {target.name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with write_whole(tmp_path / "new" / "newer" / "x") as sink:
        sink.write(b"abc")
    assert done == [
        f"sync {tmp_path.name}", "sync new", "sync the file", "name x", "sync newer"
    ]  # fmt: skip


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    def interrupted() -> None:
        with write_whole(path) as sink:
            sink.write(b"half")
            raise KeyboardInterrupt

    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x"]


def test_room_is_taken_first(tmp_path: Path) -> None:
    """More than any disk has: found before a byte is written."""
    with pytest.raises(OSError, match=r".") as caught, write_whole(tmp_path / "x", 1 << 60):
        pytest.fail("the block must not run")
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert list(tmp_path.iterdir()) == []


def test_file_systems_without_reservation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_descriptor: int, _offset: int, _nbytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    with write_whole(tmp_path / "x", 10) as sink:
        sink.write(b"abc")
    assert (tmp_path / "x").stat().st_size == 10


def _hold(path: Path, held: object, seconds: float) -> None:
    with locked(path):
        held.set()  # type: ignore[attr-defined]
        time.sleep(seconds)


def test_a_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", held, 0.3))
    process.start()
    assert held.wait(30)
    begin = time.monotonic()
    with locked(tmp_path / "lock"):
        waited = time.monotonic() - begin
    process.join()
    assert waited > 0.1


def test_processes_share_the_pages(tmp_path: Path) -> None:
    """The mapping is of kind MAP_SHARED: /proc says so."""
    big = tmp_path / "big"
    big.write_bytes(b"\0" * (1 << 20))
    file = MappedFile(big)
    maps = Path("/proc/self/maps").read_text("utf-8")
    line = next(line for line in maps.splitlines() if line.endswith(str(big)))
    assert line.split()[1] == "r--s"
    assert int(line.split("-")[0], 16) == file.address
    assert np.all(file.data == 0)


def resident(address: int, nbytes: int) -> int:
    """Bytes of the mapping at an address that are in the resident set (proc_pid_smaps(5))."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            inside = begin < address + nbytes and address < end
        elif inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def test_pages_dropped_leave_the_resident_set_and_come_back(tmp_path: Path) -> None:
    """Converting a model of 491 MB once took 1.1 GB: the file read stayed beside what it became."""
    path = tmp_path / "file"
    content = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    with MappedFile(path) as mapped:
        assert (mapped.data == content).all()
        assert resident(mapped.address, mapped.nbytes) == 1 << 20
        drop_pages(mapped.span(5000, 500_000))
        assert resident(mapped.address, mapped.nbytes) < (1 << 20) - 480_000
        assert (mapped.data == content).all()


def test_memory_that_is_no_file_is_never_dropped() -> None:
    pool = Pool("test", 1 << 20)
    block = pool.allocate(1 << 19, "x").bytes()
    block[:] = 7
    drop_pages(block)
    own = np.full(1 << 19, 9, dtype=np.uint8)
    drop_pages(own[10:])
    assert (block == 7).all()
    assert (own == 9).all()


READER = """
import os, sys
from pathlib import Path
from rebar.hal.files import MappedFile
file = MappedFile(Path(sys.argv[1]))
if "survive" in sys.argv:
    file.survive_cuts()
os.truncate(file.path, 5000)
print(int(file.data[5000:].sum()), int(file.data[:5000].sum()), flush=True)
file.check_whole()
"""


@pytest.mark.parametrize("words", [(), ("survive",)])
def test_a_file_cut_by_others_ends_only_who_did_not_expect_it(
    path: Path, words: tuple[str, ...]
) -> None:
    """A data set that was written anew in place ended the run that read it by a signal, without a
    word. Zeros in weights would be worse than that end, so it is for those who ask.
    """
    sums = f"0 {sum(path.read_bytes()[:5000])}\n"
    command = [sys.executable, "-c", READER, str(path), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if words:
        assert (done.returncode, done.stdout) == (1, sums)
        assert "changed while it was in use" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_cut_is_told_before_and_after_it_is_read(path: Path) -> None:
    file = MappedFile(path)
    file.survive_cuts()
    file.survive_cuts()  # twice is no more
    file.check_whole()
    content = path.read_bytes()
    os.truncate(path, 100)
    with pytest.raises(CorruptFileError, match="changed"):
        file.check_whole()
    assert not file.data[mmap.PAGESIZE :].any()
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="changed"):  # zeros stay where they were read
        file.check_whole()
    assert not file.data[mmap.PAGESIZE :].any()
    file.close()
    file.check_whole()
    again = MappedFile(path)
    again.survive_cuts()
    again.check_whole()
    assert bytes(again.data) == content


def test_guards_go_with_their_mappings(path: Path) -> None:
    """There are 4,096 at a time."""
    for _ in range(5000):
        file = MappedFile(path)
        file.survive_cuts()
        assert file._guard is not None


def test_whether_the_mapped_file_was_written_to(path: Path) -> None:
    file = MappedFile(path)
    assert not file.rewritten()
    other = path.with_name("y")
    other.write_bytes(b"else")
    os.utime(path, ns=(0, 7))
    assert file.rewritten()
    other.rename(path)
    assert not file.rewritten(), "another file under its name: the mapped one has nobody else"
    path.unlink()
    assert not file.rewritten()
