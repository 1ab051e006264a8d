"""Jane Austen's six novels as text files, out of Debian's package r-cran-janeaustenr: 4 MB in the
public domain, to train on and to hold out. Needs apt-get and dpkg-deb; nothing of it is run.

    python -m bench.novels FOLDER
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
STRINGS, STRING = 16, 9  # SEXP types of R's serialization: a character vector, one of its elements


def fetch() -> bytes:
    """The package's data file."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=folder, check=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        return (Path(folder) / DATA).read_bytes()


def chunks(data: bytes) -> Iterator[bytes]:
    """The objects of an .rdb file: a length (big-endian, of the unpacked bytes) and zlib each."""
    at = 0
    while at < len(data):
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(data[at + 4 :])
        (nbytes,) = struct.unpack_from(">I", data, at)
        if nbytes != len(found):
            raise SystemExit(f"{DATA}: {len(found)} bytes where {nbytes} were due")
        yield found
        at = len(data) - len(unpacker.unused_data)


def lines(chunk: bytes) -> list[str]:
    """A character vector of R's binary serialization ("X\\n", big-endian)."""
    version, *_ = struct.unpack_from(">III", chunk, 2)
    at = 14
    if version == 3:  # names its encoding
        at += 4 + struct.unpack_from(">I", chunk, at)[0]
    flags, count = struct.unpack_from(">II", chunk, at)
    at += 8
    if flags & 0xFF != STRINGS:
        return []
    found = []
    for _ in range(count):
        flags, nbytes = struct.unpack_from(">Ii", chunk, at)
        assert flags & 0xFF == STRING
        found.append(chunk[at + 8 : at + 8 + max(nbytes, 0)].decode())
        at += 8 + max(nbytes, 0)
    return found


def main(folder: Path) -> None:
    """Writes a file a novel, named by its title."""
    folder.mkdir(parents=True, exist_ok=True)
    for chunk in chunks(fetch()):
        if found := lines(chunk):
            title = next(line for line in found if line.strip())
            name = "_".join(word for word in title.lower().replace(",", "").split())
            path = folder / f"{name}.txt"
            path.write_text("\n".join(found) + "\n", encoding="utf-8")
            print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
