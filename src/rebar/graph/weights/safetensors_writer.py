"""Writes safetensors files: the header, then each tensor's bytes in its order."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.graph.weights.model_file import WeightType
from rebar.graph.weights.types import stored_nbytes

Described = tuple[str, WeightType, tuple[int, ...]]  # name, a float type, shape
_ALIGNMENT = 64


def safetensors_header(tensors: Iterable[Described], notes: Mapping[str, str]) -> bytes:
    """What stands before the data. notes: its free metadata, text only as the format asks."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    at = 0
    for name, kind, shape in tensors:
        end = at + (stored_nbytes(kind, shape) or 0)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": (at, end)}
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def safetensors_bytes(
    tensors: Mapping[str, NDArray[np.float32]], notes: Mapping[str, str]
) -> bytes:
    """A whole file of float32 tensors, small enough to be made in memory: adapters."""
    described: list[Described] = [(name, "F32", v.shape) for name, v in tensors.items()]
    raw = (np.ascontiguousarray(values, dtype="<f4").tobytes() for values in tensors.values())
    return b"".join([safetensors_header(described, notes), *raw])
