"""What the rules of the reference back end share: rows and places of a step, rotations,
activations and their slopes, in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rebar.hal.backend import Step
from rebar.hal.ref_attention import Where

F64 = NDArray[np.float64]
ROOT_2_PI = math.sqrt(2.0 / math.pi)


def place(step: Step, row: int, position: int) -> tuple[int, int]:
    """Block and slot of a position of the row's sequence."""
    return int(step.tables[step.sequences[row], position // 16]), position % 16


def seen(step: Step, row: int, window: int) -> tuple[int, Where]:
    """The positions a row looks at: the first of them, and where each is stored."""
    last = int(step.positions[row])
    first = max(0, last - window + 1) if window else 0
    return first, [place(step, row, p) for p in range(first, last + 1)]


def rotated(x: F64, angles: F64, heads: int, back: float = 1.0) -> F64:
    """x (rows, heads * head_dim) with the pairs of each head turned by angles (rows, dim) = [cos |
    sin]; back -1: turned back.
    """
    dim = angles.shape[1]
    values = x.reshape(len(x), heads, -1)
    cos, sin = angles[:, None, : dim // 2], angles[:, None, dim // 2 :] * back
    a, b = values[..., : dim // 2], values[..., dim // 2 : dim]
    y = np.concatenate([a * cos - b * sin, b * cos + a * sin, values[..., dim:]], axis=-1)
    return y.reshape(x.shape)


def silu(x: F64) -> F64:
    """x sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def silu_slope(x: F64) -> F64:
    """Its derivative."""
    s = 1.0 / (1.0 + np.exp(-x))
    return s * (1.0 + x * (1.0 - s))


def gelu_tanh(x: F64) -> F64:
    """The tanh form (Hendrycks & Gimpel, arXiv:1606.08415)."""
    return 0.5 * x * (1.0 + np.tanh(ROOT_2_PI * (x + 0.044715 * x**3)))


def gelu_tanh_slope(x: F64) -> F64:
    """Its derivative."""
    t = np.tanh(ROOT_2_PI * (x + 0.044715 * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * ROOT_2_PI * (1.0 + 3 * 0.044715 * x * x)
