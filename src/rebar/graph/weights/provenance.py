"""Where a converted model came from, in the words that go into its header."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from rebar.graph.weights.model_file import ModelFile, Progress
from rebar.graph.weights.rebar_format import ProvenanceValue

_CHUNK = 1 << 22
MERGED, BASE = "merged_adapters", "merged_base"  # what is in a model's weights, and what was before
TYPES = "matrix_types"  # that matrices were given, where they do not have those of the source


def merged_digests(model: ModelFile) -> tuple[str, ...]:
    """Digests of the adapters that are in a model's weights already."""
    return tuple(str(model.provenance.get(MERGED) or "").split())


def base_digest(model: ModelFile) -> str:
    """What names a model whatever was merged into it: the digest of what it was converted from."""
    return str(model.provenance.get(BASE) or model.provenance.get("source_sha256") or "")


def weights_digest(model: ModelFile) -> str:
    """What names the weights as they are: the source, what was merged, in which types. "" for a
    model whose source is not known, as one of our own training.
    """
    if not (base := base_digest(model)):
        return ""
    changes = (str(model.provenance.get(name) or "") for name in (MERGED, TYPES))
    return hashlib.sha256("\n".join((base, *changes)).encode()).hexdigest()


def merged_notes(model: ModelFile) -> dict[str, str]:
    """What of the provenance stays true however the weights are written, or trained on."""
    notes = ((name, model.provenance.get(name)) for name in (MERGED, BASE))
    return {name: str(value) for name, value in notes if value}


def provenance_of(
    model: ModelFile,
    tool: str,
    now: datetime | None = None,
    progress: Progress | None = None,
    sha256: str | None = None,
) -> dict[str, ProvenanceValue]:
    """Source file's name (no folder: that is the user's own), its digest, the tool that
    converted it and when (UTC).
    sha256: the digest, when it is known already.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return {
        "source": model.path.name,
        "source_format": model.format,
        "source_sha256": sha256 or source_sha256(model.path, progress),
        "license": str(model.provenance.get("license", "")),
        "tool": tool,
        "converted": moment.isoformat(timespec="seconds"),
        **merged_notes(model),
    }


def source_sha256(path: Path, progress: Progress | None = None) -> str:
    """sha256 of a file; of a folder, that of the lines `digest  name` of its model files in
    order (as sha256sum prints them).
    """
    if path.is_file():
        return _file_sha256(path, progress)
    names = sorted(
        p.name for p in path.iterdir() if p.suffix in (".safetensors", ".json", ".jinja")
    )
    lines = "".join(f"{_file_sha256(path / name, progress)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_sha256(path: Path, progress: Progress | None) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, done, total)
    return digest.hexdigest()
