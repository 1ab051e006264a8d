"""Writes wheels that carry a model file, for tests."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def record_line(name: str, data: bytes) -> str:
    """RECORD's line for a member."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(
    folder: Path,
    name: str,
    members: dict[str, bytes],
    *,
    version: str = "1.0",
    record: dict[str, bytes] | None = None,
) -> Path:
    """A wheel of `name`. record: what RECORD says of members, when it is not the truth."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {f"{module}/{member}": data for member, data in members.items()}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    told = files | {f"{module}/{member}": data for member, data in (record or {}).items()}
    lines = "".join(record_line(path, data) for path, data in told.items())
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", lines + f"{info}/RECORD,,\n")
    return path
