"""A safetensors file of float32 tensors, small enough to be made in memory: adapters."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64


def safetensors_bytes(
    tensors: Mapping[str, NDArray[np.float32]], notes: Mapping[str, str]
) -> bytes:
    """The whole file. notes: its free metadata, text only as the format asks."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    raw: list[bytes] = []
    at = 0
    for name, values in tensors.items():
        raw.append(np.ascontiguousarray(values, dtype="<f4").tobytes())
        end = at + len(raw[-1])
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": (at, end)}
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *raw])
