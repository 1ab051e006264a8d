"""What all launches share: which rows they cover, activations, how sizes are compared."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from rebar.errors import ShapeError


class Counted(Protocol):
    """A step, or the limits of one."""

    @property
    def rows(self) -> int:
        """All rows."""

    @property
    def logit_rows(self) -> int:
        """Those whose logits are needed."""


class Domain(IntEnum):
    """rb_domain of native/rebar.h."""

    ROWS = 0
    LOGIT_ROWS = 1

    def rows(self, of: Counted) -> int:
        """How many rows it means, of a step or at most."""
        return of.rows if self is Domain.ROWS else of.logit_rows


class Activation(IntEnum):
    """Activations of a gated MLP."""

    SILU = 0
    GELU_TANH = 1


def same(launch: str, name: str, *sizes: int | None) -> int:
    """The one value of all given sizes; ShapeError naming the launch and the size otherwise."""
    given = [size for size in sizes if size is not None]
    if any(size != given[0] for size in given):
        raise ShapeError(f"{launch}: {name} differs: {', '.join(map(str, given))}")
    return given[0]
