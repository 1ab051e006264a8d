"""Data files: mapped, told by name where they are no text, and cut by others without harm."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rebar.errors import CorruptFileError, DataError, ModelFileError
from rebar.hal.files import MappedFile

BOM = b"\xef\xbb\xbf"
PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"\xfd7zXZ\0": ("xz", "unxz -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4 -k"),
    b"PK\x03\x04": ("zip", "unzip"),
}
BZIP2, BZIP2_BLOCK = b"BZh", b"1AY&SY"  # a digit between them
PARQUET = b"PAR1"  # at both ends


def map_data(path: Path) -> MappedFile | None:
    """The file; None for an empty one, which nothing can map. Raises DataError saying what stands
    there instead.
    """
    try:
        if path.is_file() and os.stat(path).st_size == 0:
            return None
        file = MappedFile(path)
    except (ModelFileError, OSError) as error:
        raise DataError(f"{path} cannot be read: {_why(path)}") from error
    file.survive_cuts()
    return file


def _why(path: Path) -> str:
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return "there is no such file. Check its name."
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}. Give the path of another file."
    if stat.S_ISDIR(kind):
        return "it is a folder. Name a file in it."
    if not stat.S_ISREG(kind):
        return "it is a pipe or a device, and only a file has places. Save what comes to a file."
    return "the system does not give it. Look at its mode, and at the disk."


def check_whole(file: MappedFile | None) -> None:
    """Raises DataError when the file was cut since it was opened: what would be read is gone."""
    if file is not None:
        try:
            file.check_whole()
        except CorruptFileError as error:
            raise DataError(
                f"{file.path} was cut short while it is read. Put it back, then start again; to "
                "change it, write another file and rename that."
            ) from error


def check_text(data: NDArray[np.uint8], path: Path) -> None:
    """DataError for a file that is packed, a table, or in UTF-16 or UTF-32, which show in the first
    two bytes: their mark, or a NUL beside the character.
    """
    first = bytes(data[:16])
    for beginning, (name, command) in PACKED.items():
        if first.startswith(beginning):
            raise DataError(f"{path} is packed by {name}. Unpack it first: {command}.")
    if first.startswith(BZIP2) and first[4:10] == BZIP2_BLOCK:
        raise DataError(f"{path} is packed by bzip2. Unpack it first: bunzip2 -k.")
    if first.startswith(PARQUET) and bytes(data[-4:]) == PARQUET:
        raise DataError(f"{path} is a Parquet table. Write its rows as JSON lines first.")
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(first) > 1 and first[:2].count(0) == 1):
        raise DataError(
            f"{path}, line 1: the file is in UTF-16 or UTF-32, not in UTF-8. "
            "Convert it: iconv -f UTF-16 -t UTF-8."
        )
