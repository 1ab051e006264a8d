"""The smallest thing that can be trained: a line through points, with data in an order of its own.
Everything a trainer promises can be looked at on it, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rebar.graph.window import Position, Window
from rebar.hal import Vector

F32 = NDArray[np.float32]
WIDTH = 5


@dataclass(frozen=True)
class Parameter:
    name: str
    value: Vector
    decay: bool


class Flat:
    """A weight of 5 values, which decays, and a bias, which does not, 16 values further."""

    def __init__(self) -> None:
        self.values, self.gradients, self.m, self.v = np.zeros((4, 32), dtype=np.float32)
        self.weight = Vector(self.values[:WIDTH])
        self.bias = Vector(self.values[16:17])

    def __iter__(self) -> Iterator[Parameter]:
        yield Parameter("weight", self.weight, True)
        yield Parameter("bias", self.bias, False)


@dataclass(frozen=True)
class Points:
    """x (n, 5), y (n,); where y is NaN nothing is asked."""

    x: F32
    y: F32


@dataclass(frozen=True)
class Sum:
    total: float
    tokens: int


class Line:
    """loss = (w x + b - y)^2 / 2 a point, one point after another."""

    def __init__(self, **settings: object) -> None:
        self.settings = settings
        self.parameters = Flat()
        self.seen: list[float] = []

    def _error(self, x: F32, y: np.float32) -> np.float32:
        p = self.parameters
        return np.float32(np.dot(p.weight.data, x) + p.bias.data[0] - y)

    def run(self, batch: Points, scale: float) -> Sum:
        total, count, flat = 0.0, 0, self.parameters.gradients
        for x, y in zip(batch.x, batch.y, strict=True):
            if not np.isnan(y):
                error = self._error(x, y)
                flat[:WIDTH] += np.float32(scale) * error * x
                flat[16] += np.float32(scale) * error
                total += float(error) ** 2 / 2
                count += 1
                self.seen.append(float(y))
        return Sum(total, count)

    def evaluate(self, batch: Points) -> Sum:
        errors = [
            float(self._error(x, y))
            for x, y in zip(batch.x, batch.y, strict=True)
            if not np.isnan(y)
        ]
        return Sum(sum(e * e / 2 for e in errors), len(errors))


def points(count: int, seed: int = 0, asked: Sequence[bool] = ()) -> Points:
    """Points near a line; those not asked have NaN."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, WIDTH), dtype=np.float32)
    y = (x @ np.arange(WIDTH) + 3 + 0.1 * random.standard_normal(count)).astype(np.float32)
    y[: len(asked)][~np.asarray(asked, dtype=bool)] = np.nan
    return Points(x, y)


@dataclass
class Source:
    """Points in windows of `window`, cut into micro-batches of `micro`; an order an epoch."""

    data: Points
    window: int = 4
    micro: int = 4
    epochs: int = 1
    seed: int | None = 0  # None: as they stand
    at: list[int] = field(default_factory=lambda: [0, 0])  # epoch, place

    @property
    def digest(self) -> str:
        return f"{len(self.data.y)}/{self.window}/{self.micro}/{self.epochs}/{self.seed}"

    @property
    def windows(self) -> int | None:
        return self.epochs * -(-len(self.data.y) // self.window)

    @property
    def position(self) -> Position:
        return {"epoch": self.at[0], "place": self.at[1]}

    def restore(self, position: Position) -> None:
        self.at = [int(position["epoch"]), int(position["place"])]

    def next_window(self) -> Window[Points] | None:
        epoch, place = self.at
        if epoch == self.epochs:
            return None
        count = len(self.data.y)
        order = np.arange(count)
        if self.seed is not None:
            order = np.random.default_rng((self.seed, epoch)).permutation(count)
        chosen = order[place : place + self.window]
        end = place + len(chosen)
        self.at = [epoch + 1, 0] if end == count else [epoch, end]
        cut = [chosen[i : i + self.micro] for i in range(0, len(chosen), self.micro)]
        missing = int(np.isnan(self.data.y[chosen]).sum())
        return Window(
            tuple(Points(self.data.x[c], self.data.y[c]) for c in cut),
            len(chosen) - missing,
            tuple(int(i) for i in chosen),
            skipped=missing,
            tokens=len(chosen),
        )
