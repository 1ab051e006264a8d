"""The weight types: how many inputs and bytes a block has, and the numbers files use for them.

Source of block sizes and numbers: the GGUF specification and ggml's block layouts; native numbers
are rb_weight_type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rebar.graph.weights.model_file import WeightType


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`block` inputs of a row are stored in `nbytes` bytes; `ggml` and `native` are its numbers in
    files and kernels.
    """

    block: int
    nbytes: int
    ggml: int
    native: int


FORMATS: dict[WeightType, BlockFormat] = {
    "F32": BlockFormat(1, 4, 0, 0),
    "F16": BlockFormat(1, 2, 1, 1),
    "BF16": BlockFormat(1, 2, 30, 2),
    "Q8_0": BlockFormat(32, 34, 8, 3),
    "Q4_0": BlockFormat(32, 18, 2, 4),
    "Q4_1": BlockFormat(32, 20, 3, 5),
    "Q5_0": BlockFormat(32, 22, 6, 6),
    "Q5_1": BlockFormat(32, 24, 7, 7),
    "Q4_K": BlockFormat(256, 144, 12, 8),
    "Q5_K": BlockFormat(256, 176, 13, 9),
    "Q6_K": BlockFormat(256, 210, 14, 10),
}

BY_GGML: dict[int, WeightType] = {layout.ggml: name for name, layout in FORMATS.items()}


def elements(shape: tuple[int, ...]) -> int:
    """Product of a shape in exact integers."""
    return math.prod(shape)


def stored_nbytes(kind: WeightType, shape: tuple[int, ...]) -> int | None:
    """Bytes of a row-major tensor whose rows are shape[-1] long; None when a row is not a whole
    number of blocks.
    """
    layout = FORMATS[kind]
    if not shape or shape[-1] % layout.block:
        return None
    return elements(shape) // layout.block * layout.nbytes
