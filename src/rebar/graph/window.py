"""What a trainer asks of its data, and of what it trains: two protocols, ids and arrays only.

A window is what one step of the optimizer learns from: some micro-batches whose gradients add up.
Each supervised token of a window weighs the same, wherever it stands: the scale of every gradient
is 1 / (all supervised tokens of the window). The last window of an epoch may hold fewer samples;
it is a window like any other, with its own count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from rebar.errors import GradientExplosionError

if TYPE_CHECKING:
    from rebar.graph.parameters import Parameters
    from rebar.hal import DeviceManager

Position = Mapping[str, str | int]  # goes into a checkpoint as it stands
Out = TypeVar("Out", covariant=True)
In = TypeVar("In", contravariant=True)


@dataclass(frozen=True, slots=True)
class Window(Generic[Out]):
    """Micro-batches of one step.

    supervised: targets in all of them. samples: numbers of the samples in order, for the log.
    skipped: samples passed over on the way here because nothing in them is supervised. tokens: all
    positions computed, for the pace.
    """

    batches: tuple[Out, ...]
    supervised: int
    samples: tuple[int, ...] = ()
    skipped: int = 0
    tokens: int = 0


class BatchSource(Protocol[Out]):
    """Windows in an order that seed and epoch alone decide."""

    @property
    def digest(self) -> str:
        """Names data, order and cut: a run goes on only with a source of the same digest."""

    @property
    def windows(self) -> int | None:
        """Windows from the first to the last; None when not known beforehand."""

    @property
    def position(self) -> Position:
        """Where the next window begins."""

    def restore(self, position: Position) -> None:
        """Goes to a position that this source, or one of the same digest, has told."""

    def next_window(self) -> Window[Out] | None:
        """The next window; None after the last. A window without supervised tokens is told too
        (with `skipped`), so that they are counted.
        """


class LossSum(Protocol):
    """Sum of losses in nats, and over how many targets."""

    @property
    def total(self) -> float:
        """Sum, in float64."""

    @property
    def tokens(self) -> int:
        """Supervised targets."""


class Learns(Protocol[In]):
    """A model that can be trained (graph/learner.py, or anybody's own)."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the bits of a step beside the parameters, in plain values: a run goes on
        only with the same.
        """

    def run(self, batch: In, scale: float) -> LossSum:
        """Adds scale * gradient of the summed loss into the parameters' gradients."""

    def evaluate(self, batch: In) -> LossSum:
        """The loss alone."""


class Trainee(Learns[In], Protocol[In]):
    """One with its parameters, and the device that they are on."""

    device: DeviceManager
    parameters: Parameters


@runtime_checkable
class Searches(Protocol):
    """A learner that can tell at which node a step went wrong."""

    def find_explosion(
        self, batches: Sequence[Any], scale: float, step: int
    ) -> GradientExplosionError:
        """Runs the micro-batches of a step again, node by node."""


class Share(Generic[Out]):
    """One rank's windows of a source: of each `size` in a row that of its own number. All ranks
    read the same source and stand at the same place; where the last round is not whole, those
    behind its end have none.
    """

    def __init__(self, source: BatchSource[Out], rank: int, size: int) -> None:
        self._source = source
        self._rank = rank
        self._size = size

    @property
    def digest(self) -> str:
        """That of all of the data."""
        return self._source.digest

    @property
    def windows(self) -> int | None:
        """Rounds."""
        whole = self._source.windows
        return None if whole is None else -(-whole // self._size)

    @property
    def position(self) -> Position:
        """Where the next round begins."""
        return self._source.position

    def restore(self, position: Position) -> None:
        """Goes to a position of the source."""
        self._source.restore(position)

    def next_window(self) -> Window[Out] | None:
        """This rank's of the next round."""
        round_ = [self._source.next_window() for _ in range(self._size)]
        return round_[self._rank]
