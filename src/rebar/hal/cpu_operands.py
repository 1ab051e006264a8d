"""Operands as the native module takes them: an address, or a tuple that begins with one
(native/bind_hal.h). An operand that is left out has the address 0.
"""

from __future__ import annotations

from rebar.hal.arrays import Matrix, QuantizedRows, Rows, Vector


def address(operand: Rows | QuantizedRows | Vector | None) -> int:
    """Where it begins."""
    return 0 if operand is None else operand.address


def rows(operand: Rows | None) -> tuple[int, int]:
    """Address, stride in elements."""
    return (0, 0) if operand is None else (operand.address, operand.stride)


def matrix(w: Matrix) -> tuple[int, int, int, int]:
    """Address, format, outputs, inputs."""
    return w.address, int(w.format), w.n, w.k
