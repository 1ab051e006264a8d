"""What every hostile file must meet: a typed error that ends with a next step, and little
memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rebar.errors import ModelFileError

MEMORY_BYTES = 20 << 20


@contextmanager
def refused(match: str, kind: type[ModelFileError] = ModelFileError) -> Iterator[None]:
    """The block must raise `kind` with a message that matches, without taking memory on the
    file's word.
    """
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=match) as caught:
            yield
        assert str(caught.value).rstrip().endswith("."), "a message ends with the next step"
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()
