"""Rotation tables: cosines and sines of every position, computed once in float64 and rounded to
float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rebar.graph.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig) -> NDArray[np.float64]:
    """theta ** (-2 i / dim) for i < dim/2, scaled as the config says; radians per position."""
    frequency = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.scaling == "linear":
        return frequency / rope.factor
    if rope.scaling == "llama3":
        return _llama3(frequency, rope)
    return frequency


def _llama3(frequency: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Wavelengths under original_context / high_factor stay, over original_context / low_factor are
    divided by factor, and between the two are blended linearly in original_context / wavelength
    (Llama 3.1 reference code).
    """
    turns = rope.original_context * frequency / (2 * np.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 - keep) * frequency / rope.factor + keep * frequency


def rope_table(rope: RopeConfig, positions: int) -> NDArray[np.float32]:
    """(positions, dim): [cos of dim/2 angles | sin of dim/2 angles]."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * inverse_frequencies(rope)[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
