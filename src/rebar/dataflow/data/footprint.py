"""How many bytes things take, as CPython 3.11 and later allocate them; checked with tracemalloc."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from rebar.dataflow.data.stage import Item

ITEM = sys.getsizeof(Item(0, 0, 0, None))
SLOT = sys.getsizeof([None]) - sys.getsizeof([])  # a pointer
LIST = sys.getsizeof([])
SMALLEST_INT, LARGEST_INT = -5, 256  # these exist once and cost nothing
INT = sys.getsizeof(LARGEST_INT + 1)


def array_bytes(shape: int | Sequence[int], dtype: DTypeLike) -> int:
    """A NumPy array that owns its memory. shape: elements on each axis."""
    axes = (shape,) if isinstance(shape, int) else tuple(shape)
    elements = 1
    for length in axes:
        elements *= length
    return view_bytes(len(axes)) + elements * np.dtype(dtype).itemsize


def view_bytes(axes: int) -> int:
    """A NumPy array of so many axes that looks into another's memory."""
    return sys.getsizeof(np.empty((0,) * axes, dtype=np.uint8))


def items_bytes(count: int) -> int:
    """A list of `count` items, without their values."""
    return LIST + count * (SLOT + ITEM)


def size_of_tree(value: object) -> int:
    """All of a tree of lists, dicts, texts and numbers, each part counted once where it stands."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 0 if SMALLEST_INT <= value <= LARGEST_INT else sys.getsizeof(value)
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(size_of_tree, value))
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(size_of_tree, value.values()))
    return sys.getsizeof(value)
