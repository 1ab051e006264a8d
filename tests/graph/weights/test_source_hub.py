"""Models from a hub: a local HTTP server that speaks as the real one does, and one that does
not.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rebar.errors import CorruptFileError, DownloadError, ModelNameError, UnsupportedModelError
from rebar.graph.weights import open_model
from rebar.graph.weights.source import resolve
from tests.tiny import tiny_hf


class Hub(ThreadingHTTPServer):
    """Files by name under org/name; knobs for what goes wrong."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.listed: list[str] | None = None
        self.digests: dict[str, str] = {}
        self.status = 0  # answer everything with this
        self.cut_after: int | None = None  # break the first transfer off after so many bytes
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub = self.server
        hub.requests.append((self.path, self.headers.get("Range")))
        if hub.status:
            self.send_error(hub.status)
        elif self.path == "/api/models/org/name":
            names = hub.listed if hub.listed is not None else list(hub.files)
            self.answer(
                json.dumps(
                    {"sha": "abc123", "siblings": [{"rfilename": n} for n in names]}
                ).encode()
            )
        elif self.path.startswith("/org/name/resolve/"):
            self.redirect()
        elif self.path.startswith("/cdn/") and self.path[5:] in hub.files:
            self.file(self.path[5:])
        else:
            self.send_error(404)

    def redirect(self) -> None:
        """Large files live elsewhere; the digest is named here only."""
        name = self.path.split("/", 5)[5]
        if name not in self.server.files:
            self.send_error(404)
            return
        self.send_response(302)
        self.send_header("Location", f"/cdn/{name}")
        if name in self.server.digests:
            self.send_header("X-Linked-ETag", f'"{self.server.digests[name]}"')
        self.end_headers()

    def file(self, name: str) -> None:
        data, begin = self.server.files[name], 0
        if wanted := self.headers.get("Range"):
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if begin >= len(data) > 0:
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", '"some-tag"')
        self.end_headers()
        end = len(data)
        if self.server.cut_after is not None:
            end, self.server.cut_after = self.server.cut_after, None
            self.close_connection = True
        self.wfile.write(data[begin:end])

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_one_file(hub: Hub, cache: Path) -> None:
    data = b"GGUF" + bytes(range(256)) * 100
    hub.files["sub/m.gguf"], hub.digests["sub/m.gguf"] = data, sha(data)
    calls: list[tuple[str, int, int]] = []
    path = resolve(
        "hf:org/name:sub/m.gguf", cache, hub=hub.address, progress=lambda *c: calls.append(c)
    )
    assert path == cache / "hub" / "org--name" / "sub" / "m.gguf"
    assert path.read_bytes() == data
    assert calls[-1] == ("sub/m.gguf", len(data), len(data))
    seen = len(hub.requests)
    assert resolve("hf:org/name:sub/m.gguf", cache, hub=hub.address) == path
    assert len(hub.requests) == seen
    assert [p.name for p in path.parent.iterdir()] == ["m.gguf"]


def test_a_folder_comes_whole_and_from_one_commit(hub: Hub, cache: Path, tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path, shards=2)
    hub.files = {p.name: p.read_bytes() for p in folder.iterdir()}
    hub.files |= {"README.md": b"x", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x"}
    path = resolve("hf:org/name", cache, hub=hub.address)
    assert open_model(path).config == open_model(folder).config
    brought = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert brought == {p.name for p in folder.iterdir()}
    assert all("/resolve/abc123/" in name for name, _ in hub.requests if "/resolve/" in name)
    assert resolve("hf:org/name", cache, hub=hub.address, offline=True) == path


def test_the_only_gguf_of_a_repository(hub: Hub, cache: Path) -> None:
    hub.files = {"m.gguf": b"GGUF", "README.md": b"x"}
    path = resolve("hf:org/name", cache, hub=hub.address)
    assert path.name == "m.gguf"
    assert resolve("hf:org/name", cache, hub=hub.address, offline=True) == path
    hub.files["other.gguf"] = b"GGUF"
    with pytest.raises(ModelNameError, match=r"hf:org/name:m\.gguf, hf:org/name:other\.gguf"):
        resolve("hf:org/name", cache / "fresh", hub=hub.address)


def test_a_broken_transfer_goes_on_where_it_stopped(hub: Hub, cache: Path) -> None:
    data = bytes(range(256)) * 400
    hub.files["m.gguf"], hub.digests["m.gguf"], hub.cut_after = data, sha(data), 50_000
    path = resolve("hf:org/name:m.gguf", cache, hub=hub.address)
    assert path.read_bytes() == data
    assert [r for name, r in hub.requests if name.startswith("/cdn/")] == [None, "bytes=50000-"]


def test_a_part_that_is_whole_already(hub: Hub, cache: Path) -> None:
    """Killed between the last byte and the rename: the server has nothing more to send (416)."""
    hub.files["m.gguf"], hub.digests["m.gguf"] = b"GGUF" * 9, sha(b"GGUF" * 9)
    part = cache / "hub" / "org--name" / ".m.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"GGUF" * 9)
    part.with_name(".m.gguf.part.etag").write_text('"some-tag"', "utf-8")
    assert resolve("hf:org/name:m.gguf", cache, hub=hub.address).read_bytes() == b"GGUF" * 9
    assert [r for name, r in hub.requests if name.startswith("/cdn/")] == ["bytes=36-"]


def test_a_changed_file_is_not_joined_to_an_old_beginning(hub: Hub, cache: Path) -> None:
    """A beginning without its tag may be of another version: it is fetched anew."""
    data = b"new" * 1000
    hub.files["m.gguf"] = data
    part = cache / "hub" / "org--name" / ".m.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"old" * 10)
    assert resolve("hf:org/name:m.gguf", cache, hub=hub.address).read_bytes() == data


def test_digests_are_checked(hub: Hub, cache: Path) -> None:
    hub.files["m.gguf"], hub.digests["m.gguf"] = b"GGUF", sha(b"other")
    with pytest.raises(CorruptFileError, match=sha(b"other")):
        resolve("hf:org/name:m.gguf", cache, hub=hub.address)
    assert not list(cache.rglob("*m.gguf*"))


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [
        (404, ModelNameError, "does not exist"),
        (401, DownloadError, "private, gated"),
        (403, DownloadError, "private, gated"),
        (500, DownloadError, "HTTP 500"),
    ],
)
def test_refusals(hub: Hub, cache: Path, status: int, kind: type[Exception], match: str) -> None:
    hub.status = status
    with pytest.raises(kind, match=match):
        resolve("hf:org/name", cache, hub=hub.address)


def test_listed_names_cannot_leave_the_cache(hub: Hub, cache: Path) -> None:
    hub.files = {"m.gguf": b"GGUF"}
    hub.listed = ["../../../evil.gguf", "/etc/x.gguf", "m.gguf", "a\\..\\x.gguf"]
    assert resolve("hf:org/name", cache, hub=hub.address).name == "m.gguf"
    assert all("evil" not in name for name, _ in hub.requests)


def test_pickled_repositories_are_refused(hub: Hub, cache: Path) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(UnsupportedModelError, match="pickled weights are never read"):
        resolve("hf:org/name", cache, hub=hub.address)


@pytest.mark.parametrize("listing", [b"[]", b"{", b'{"siblings": 5}', b"[" * 100_000])
def test_a_hub_that_talks_nonsense(
    hub: Hub, cache: Path, listing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "dumps", lambda _value: listing.decode())
    with pytest.raises(DownloadError, match="no repository"):
        resolve("hf:org/name", cache, hub=hub.address)


@pytest.mark.parametrize("address", ["file:///etc", "ftp://x", "nonsense"])
def test_hubs_are_http(cache: Path, address: str) -> None:
    with pytest.raises(DownloadError, match="no http"):
        resolve("hf:org/name", cache, hub=address)


def test_no_network(cache: Path, hub: Hub) -> None:
    address = hub.address
    hub.server_close()
    with pytest.raises(DownloadError, match=r"does not answer|broke off"):
        resolve("hf:org/name", cache, hub=address)
