"""The .rebar file: what is written is what is opened, its layout is the documented one, damage
is told by name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace as changed
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar import _native
from rebar.errors import CorruptFileError, ModelFileError, ShapeError, UnsupportedModelError
from rebar.graph.weights import (
    ModelFile,
    open_model,
    pack,
    packed_nbytes,
    provenance_of,
    rebar_writer,
    verify_digests,
    write_rebar,
)
from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.rebar_format import (
    BLOB_ALIGNMENT,
    PREFIX,
    TENSOR_ALIGNMENT,
    Header,
    data_start,
    decode,
    encode,
)
from rebar.graph.weights.types import FORMATS
from tests.graph.weights.hostile import refused
from tests.graph.weights.reference import values_of
from tests.tiny import tiny_gguf, tiny_hf

TABLES = b"tokenizer tables" * 100
LAYOUT = _native.LAYOUT_VERSION


def converted(source: Path, target: Path) -> ModelFile:
    write_rebar(open_model(source), target, vocabulary=TABLES, provenance={"source": "a test"})
    return open_model(target)


def header_of(path: Path) -> tuple[Header, int]:
    return decode(memoryview(path.read_bytes()), LAYOUT, "x", Header)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_what_is_written_is_opened(tmp_path: Path, family: str) -> None:
    source = open_model(tiny_gguf(tmp_path, family, {"q": "Q8_0", "gate": "F16"}))
    model = converted(source.path, tmp_path / "model.rebar")
    assert model.format == "rebar"
    assert (model.config, model.name) == (source.config, source.name)
    assert model.chat_template == source.chat_template
    assert model.vocabulary is not None
    assert bytes(model.vocabulary) == TABLES
    assert model.tokenizer is None
    assert model.provenance == {"source": "a test"}
    assert set(model.tensors) == set(source.tensors)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_values_of_each_type_survive_packing(tmp_path: Path, kind: WeightType) -> None:
    """Unpacked again, every weight has the bits that the reference library gives it, q and k
    in rope order.
    """
    source = open_model(tiny_gguf(tmp_path, "llama", kind, width=256))
    model = converted(source.path, tmp_path / "model.rebar")
    for name, tensor in model.tensors.items():
        expected = values_of(source.tensors[name])
        assert tensor.packed == (len(tensor.shape) == 2)
        if tensor.packed:
            found = _native.unpack(FORMATS[kind].native, np.array(tensor.data), *tensor.shape)
        else:
            found = tensor.data.view("<f4")
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_folder_and_its_gguf_twin_pack_into_the_same_bytes(tmp_path: Path) -> None:
    ours = converted(tiny_hf(tmp_path, "llama"), tmp_path / "a.rebar")
    twin = converted(tiny_gguf(tmp_path, "llama"), tmp_path / "b.rebar")
    for name, tensor in ours.tensors.items():
        np.testing.assert_array_equal(tensor.data, twin.tensors[name].data, err_msg=name)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """Blobs at pages, tensors at 64, in the order of use; q, k, v and gate, up without a gap."""
    path = tmp_path / "model.rebar"
    converted(tiny_gguf(tmp_path, "qwen2", "Q8_0"), path)
    header, start = header_of(path)
    assert start % BLOB_ALIGNMENT == 0
    assert path.stat().st_size % BLOB_ALIGNMENT == 0
    spans = {entry.name: entry.span for entry in header.tensors}
    offsets = [entry.span.offset for entry in header.tensors]
    assert offsets == sorted(offsets)
    assert all(offset % TENSOR_ALIGNMENT == 0 for offset in offsets)
    layers = [f"layers.{i}.attention_norm.weight" for i in range(2)]
    for first in ("embed.weight", *layers, "final_norm.weight"):
        assert spans[first].offset % BLOB_ALIGNMENT == 0
    for layer in range(2):
        for left, right in (("q", "k"), ("k", "v"), ("gate", "up")):
            before = spans[f"layers.{layer}.{left}.weight"]
            assert spans[f"layers.{layer}.{right}.weight"].offset == before.offset + before.nbytes


def test_opening_copies_nothing(tmp_path: Path) -> None:
    model = converted(tiny_gguf(tmp_path), tmp_path / "model.rebar")
    for tensor in model.tensors.values():
        assert not tensor.data.flags.owndata
        assert not tensor.data.flags.writeable
        assert tensor.data.ctypes.data % TENSOR_ALIGNMENT == 0


def test_large_matrices_are_packed_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of whole tiles give the bytes of the whole matrix."""
    whole = converted(tiny_gguf(tmp_path, "qwen2", "Q5_0"), tmp_path / "a.rebar")
    monkeypatch.setattr(sys.modules["rebar.graph.weights.pack"], "CHUNK_BYTES", 4096)
    pieces = converted(tiny_gguf(tmp_path, "qwen2", "Q5_0"), tmp_path / "b.rebar")
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(tensor.data, pieces.tensors[name].data, err_msg=name)


def test_writing_a_rebar_file_again_gives_the_same_file(tmp_path: Path) -> None:
    first = converted(tiny_gguf(tmp_path), tmp_path / "a.rebar")
    write_rebar(first, tmp_path / "b.rebar", vocabulary=TABLES, provenance=first.provenance)
    assert (tmp_path / "a.rebar").read_bytes() == (tmp_path / "b.rebar").read_bytes()


def test_progress_reaches_the_whole(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    model = open_model(tiny_gguf(tmp_path))
    target = tmp_path / "m.rebar"
    write_rebar(model, target, vocabulary=b"", provenance={}, progress=lambda *c: calls.append(c))
    assert calls[-1][1] == calls[-1][2]
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_digests(tmp_path: Path) -> None:
    path = tmp_path / "model.rebar"
    model = converted(tiny_gguf(tmp_path), path)
    assert verify_digests(path) == len(TABLES) + sum(t.data.nbytes for t in model.tensors.values())
    header, start = header_of(path)
    down = next(entry for entry in header.tensors if entry.name == "layers.1.down.weight")
    raw = bytearray(path.read_bytes())
    raw[start + down.span.offset + 5] ^= 1
    path.write_bytes(raw)
    open_model(path)  # digests are not computed at every start
    with refused(r"layers\.1\.down\.weight does not have its digest", CorruptFileError):
        verify_digests(path)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(tiny_gguf(tmp_path))
    folder = tmp_path / "out"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(_descriptor: int, _offset: int, _nbytes: int) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        with refused("needs .* MB and the disk has no room"):
            write_rebar(model, folder / "m.rebar", vocabulary=b"", provenance={})
    assert list(folder.iterdir()) == []


def test_a_failure_in_the_middle_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "m.rebar"
    converted(tiny_gguf(tmp_path), path)
    before = path.read_bytes()
    count = 0
    write = rebar_writer.write_span

    def failing(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == 5:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rebar_writer, "write_span", failing)
    with pytest.raises(ModelFileError, match="cannot be written"):
        converted(tiny_gguf(tmp_path), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["m.rebar"]


def test_sizes_that_kernels_cannot_hold_are_refused_before_writing(tmp_path: Path) -> None:
    model = open_model(tiny_gguf(tmp_path))
    odd = {
        **model.tensors,
        "layers.0.q.weight": changed(model.tensors["layers.0.q.weight"], type="Q4_K"),
    }
    with pytest.raises(ShapeError, match="whole blocks of 256"):
        write_rebar(
            changed(model, tensors=odd), tmp_path / "m.rebar", vocabulary=b"", provenance={}
        )
    assert not (tmp_path / "m.rebar").exists()


def test_pack_wants_its_buffer(tmp_path: Path) -> None:
    tensor = open_model(tiny_gguf(tmp_path)).tensors["layers.0.down.weight"]
    needed = packed_nbytes("F32", 64, 128)
    out = np.empty(needed, dtype=np.uint8)
    pack(tensor, out)
    with pytest.raises(ShapeError, match=f"{needed} bytes"):
        pack(tensor, np.empty(needed - 1, dtype=np.uint8))


# Hostile files: damage whose digest of the header is right again, as an attacker would make it.

Edit = Callable[[Header], Header]


def forged(path: Path, edit: Edit) -> None:
    """Changes the header and makes the rest fit it."""
    raw = path.read_bytes()
    header, start = decode(memoryview(raw), LAYOUT, "x", Header)
    data = raw[start:]
    path.write_bytes(padded(encode(edit(header), len(data), LAYOUT)) + data)


def padded(beginning: bytes) -> bytes:
    return beginning + b"\0" * (data_start(len(beginning) - PREFIX.size) - len(beginning))


def first_matrix(header: Header, **fields: object) -> Header:
    entry = header.tensors[0]
    span = {k: v for k, v in fields.items() if k in ("offset", "nbytes", "sha256")}
    own = {k: v for k, v in fields.items() if k not in span}
    entry = msgspec.structs.replace(entry, span=msgspec.structs.replace(entry.span, **span), **own)
    return msgspec.structs.replace(header, tensors=(entry, *header.tensors[1:]))


def with_fields(header: Header, **fields: object) -> Header:
    return msgspec.structs.replace(header, **fields)


HOSTILE: dict[str, tuple[Edit, str]] = {
    "offset past the end": (lambda h: first_matrix(h, offset=1 << 40), "outside the file"),
    "offset near 2^64": (lambda h: first_matrix(h, offset=(1 << 64) - 64), "outside the file"),
    "negative offset": (lambda h: first_matrix(h, offset=-64), "overlap|negative"),
    "odd offset": (lambda h: first_matrix(h, offset=4097), "multiple of 64|overlap"),
    "size": (lambda h: first_matrix(h, nbytes=64), "must be"),
    "negative size": (lambda h: first_matrix(h, nbytes=-1), "must be|overlap"),
    "shape": (lambda h: first_matrix(h, shape=(512, 128)), "must be"),
    "huge shape": (lambda h: first_matrix(h, shape=(1 << 60, 1 << 60)), "impossible shape"),
    "no shape": (lambda h: first_matrix(h, shape=()), "impossible shape"),
    "zero": (lambda h: first_matrix(h, shape=(0, 64)), "impossible shape"),
    "blocks": (lambda h: first_matrix(h, type="Q4_K"), "cannot be packed|must be"),
    "plain matrix": (lambda h: first_matrix(h, packed=False), "must be packed"),
    "digest": (lambda h: first_matrix(h, sha256="x"), "no sha256"),
    "name": (lambda h: first_matrix(h, name="other"), "missing"),
    "twice": (lambda h: with_fields(h, tensors=(*h.tensors, h.tensors[0])), "overlap|twice"),
    "missing": (lambda h: with_fields(h, tensors=h.tensors[1:]), "missing"),
    "layers": (lambda h: with_fields(h, config=changed(h.config, layers=4000)), "missing"),
    "more layers": (lambda h: with_fields(h, config=changed(h.config, layers=10**9)), "layers is"),
    "heads": (lambda h: with_fields(h, config=changed(h.config, kv_heads=3)), "do not divide"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_headers_are_not_trusted(tmp_path: Path, what: str) -> None:
    edit, match = HOSTILE[what]
    path = tmp_path / "model.rebar"
    converted(tiny_gguf(tmp_path), path)
    forged(path, edit)
    with refused(match, CorruptFileError):
        open_model(path)


def patched(path: Path, at: int, raw: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(raw)] = raw
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "raw", "match", "kind"),
    [
        (8, b"\x02\0\0\0", "version 2 of the format", UnsupportedModelError),
        (12, b"\x63\0\0\0", "version 99 of the layout.*Convert", UnsupportedModelError),
        (16, b"\xff" * 8, "header of", CorruptFileError),
        (24, b"\xff" * 8, "bytes long", CorruptFileError),
        (32, b"\0" * 32, "digest", CorruptFileError),
        (70, b"\xff", "digest", CorruptFileError),
        (5, b"x", "no model file", UnsupportedModelError),
    ],
)
def test_beginnings_are_checked(
    tmp_path: Path, at: int, raw: bytes, match: str, kind: type[ModelFileError]
) -> None:
    path = tmp_path / "model.rebar"
    converted(tiny_gguf(tmp_path), path)
    patched(path, at, raw)
    with refused(match, kind):
        open_model(path)


def test_truncated_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "model.rebar"
    converted(tiny_gguf(tmp_path), path)
    raw = path.read_bytes()
    for size in [*range(8, 200), *range(200, len(raw), len(raw) // 50), len(raw) - 1]:
        path.write_bytes(raw[:size])
        with pytest.raises(ModelFileError):
            open_model(path)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"a":' * 100_000, b"1e999"])
def test_headers_that_are_no_headers(tmp_path: Path, body: bytes) -> None:
    whole = data_start(len(body))
    prefix = PREFIX.pack(
        b"\x89REBAR\r\n", 1, LAYOUT, len(body), whole, hashlib.sha256(body).digest()
    )
    path = tmp_path / "model.rebar"
    path.write_bytes(padded(prefix + body))
    with refused("unreadable", CorruptFileError):
        open_model(path)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_changed_headers_give_a_model_or_a_typed_error(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.rebar"
    if not path.exists():
        converted(tiny_gguf(tmp_path, layers=1, width=32, heads=2, kv_heads=1), path)
        (tmp_path / "sound").write_bytes(path.read_bytes())
    raw = (tmp_path / "sound").read_bytes()
    _, start = decode(memoryview(raw), LAYOUT, "x", Header)
    length = int.from_bytes(raw[16:24], "little")
    body = bytearray(raw[PREFIX.size : PREFIX.size + length])
    at = data.draw(st.integers(0, length - 1))
    body[at : at + 1] = data.draw(st.binary(max_size=4))
    whole, digest = data_start(len(body)) + len(raw) - start, hashlib.sha256(body).digest()
    prefix = PREFIX.pack(b"\x89REBAR\r\n", 1, LAYOUT, len(body), whole, digest)
    path.write_bytes(padded(prefix + bytes(body)) + raw[start:])
    try:
        found = open_model(path)
    except ModelFileError:
        return
    assert sum(t.data.nbytes for t in found.tensors.values()) < len(raw)


def test_provenance(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    found = provenance_of(open_model(source), "rebar 0.1.0", datetime(2026, 1, 2, tzinfo=UTC))
    assert found["source"] == source.name
    assert found["source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert found["converted"] == "2026-01-02T00:00:00+00:00"
    folder = tiny_hf(tmp_path)
    before = provenance_of(open_model(folder), "x")["source_sha256"]
    (folder / "tokenizer_config.json").write_text("{}", "utf-8")
    assert provenance_of(open_model(folder), "x")["source_sha256"] != before
