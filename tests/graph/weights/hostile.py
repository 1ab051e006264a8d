"""What every hostile file must meet: a typed error, little memory, and a file descriptor count
that does not grow.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rebar.errors import ModelFileError

MEMORY_BYTES = 20 << 20


@contextmanager
def refused(match: str, kind: type[ModelFileError] = ModelFileError) -> Iterator[None]:
    """The block must raise `kind` with a message that names `match` and ends with a next step."""
    descriptors = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=match) as caught:
            yield
        assert str(caught.value).rstrip().endswith("."), "a message ends with the next step"
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
    del caught  # its traceback holds the reader's frames, and those the mapping
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
