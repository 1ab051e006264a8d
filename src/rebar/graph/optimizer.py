"""Optimizers over the flat memory of all parameters: a few launches a step, whatever their number.

The law: a step reads the gradients, changes values and states, and zeroes the gradients; nothing
else writes them. Gradients are clipped by their norm over all parameters, which is summed by
launches of fixed pieces and then in float64 in ascending order, so that its bits depend on nothing
but the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rebar.errors import GradientExplosionError, InputError, ShapeError
from rebar.hal import DeviceManager, Limits, Matrix, Step, Vector
from rebar.hal import launches_backward as lb

F32 = NDArray[np.float32]
PIECE = 65536  # values whose squares one element of SquareSums adds


class Trained(Protocol):
    """One parameter, its memory inside the flat arrays."""

    @property
    def name(self) -> str:
        """As Hugging Face names the tensor."""

    @property
    def value(self) -> Matrix | Vector:
        """Its memory among the values."""

    @property
    def decay(self) -> bool:
        """Whether weight decay pulls at it."""


class TrainedSet(Protocol):
    """All parameters over flat float32 arrays of one length (graph/parameters.py)."""

    @property
    def values(self) -> F32:
        """Parameters."""

    @property
    def gradients(self) -> F32:
        """Sums of gradients since they were last zeroed."""

    @property
    def m(self) -> F32:
        """The optimizer's first state."""

    @property
    def v(self) -> F32:
        """The optimizer's second state."""

    def __iter__(self) -> Iterator[Trained]:
        """In the order of their memory."""


@dataclass(frozen=True, slots=True)
class AdamW:
    """Loshchilov & Hutter, arXiv:1711.05101: decay works on the value, not through the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.01

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0 and self.decay >= 0):
            raise InputError(
                f"AdamW with betas {self.beta1:g}, {self.beta2:g}, eps {self.eps:g}, decay "
                f"{self.decay:g}: betas are from 0 to below 1, eps is above 0, decay 0 or more. "
                "Mend the one outside."
            )

    def hyper(self, count: int, clip: float, rate: float, decay: bool) -> list[float]:
        """What the launch reads at its `count`-th step, from 1."""
        bias1, bias2 = 1 - self.beta1**count, 1 - self.beta2**count
        pull = self.decay if decay else 0.0
        return [clip, rate, pull, self.beta1, self.beta2, self.eps, bias1, bias2]

    def launch(self, x: Vector, gradient: Vector, m: Vector, v: Vector, hyper: Vector) -> lb.AdamW:
        """One launch over a range."""
        return lb.AdamW(x, gradient, m, v, hyper)


@dataclass(frozen=True, slots=True)
class Sgd:
    """Gradient descent with momentum; decay is added to the gradient."""

    momentum: float = 0.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.momentum < 1 and self.decay >= 0):
            raise InputError(
                f"a momentum of {self.momentum:g} and a decay of {self.decay:g}: momentum is from "
                "0 to below 1, decay 0 or more. Mend the one outside."
            )

    def hyper(self, count: int, clip: float, rate: float, decay: bool) -> list[float]:
        """What the launch reads."""
        return [clip, rate, self.decay if decay else 0.0, self.momentum]

    def launch(self, x: Vector, gradient: Vector, m: Vector, v: Vector, hyper: Vector) -> lb.Sgd:
        """One launch over a range."""
        return lb.Sgd(x, gradient, m, hyper)


Rule = AdamW | Sgd


class Optimizer:
    """A rule at work on parameters. clip: the largest norm of all gradients together, None for any.
    `count` is the number of steps made; with the states in `parameters` it is all there is to save.
    """

    def __init__(
        self, device: DeviceManager, parameters: TrainedSet, rule: Rule, clip: float | None = 1.0
    ) -> None:
        if clip is not None and not clip > 0:
            raise InputError(f"a norm of {clip:g} clips all there is. Give --clip above 0, or 0.")
        self.device = device
        self.parameters = parameters
        self.rule = rule
        self.clip = clip
        self.count = 0
        self._gradients = [
            (p.name, parameters.gradients[slice(*place(parameters, p))]) for p in parameters
        ]
        pieces = -(-parameters.gradients.size // PIECE)
        self._sums = np.zeros(pieces, dtype=np.float32)
        self._step = Step(1, 1, 1, 1)
        self._step.rows = 1
        limits = Limits(rows=1)
        self._norm = device.program(limits)
        self._norm.add(lb.SquareSums(Vector(parameters.gradients), Vector(self._sums)))
        self._update = device.program(limits)
        self._hypers: list[tuple[bool, F32]] = []
        for begin, end, decay in ranges(parameters):
            hyper = np.zeros(len(rule.hyper(1, 1.0, 0.0, decay)), dtype=np.float32)
            p = parameters
            flat = [Vector(a[begin:end]) for a in (p.values, p.gradients, p.m, p.v)]
            self._update.add(rule.launch(flat[0], flat[1], flat[2], flat[3], Vector(hyper)))
            self._hypers.append((decay, hyper))

    def norm(self) -> float:
        """The norm of all gradients."""
        self._norm.run(self._step)
        return math.sqrt(math.fsum(float(s) for s in self._sums))

    def gradients(self) -> Iterator[tuple[str, F32]]:
        """The gradient of each parameter, as it lies."""
        return iter(self._gradients)

    def step(self, rate: float) -> float:
        """Changes the parameters by their gradients and zeroes these; returns their norm before
        clipping. GradientExplosionError when it is no number, with nothing changed.
        """
        norm = self.norm()
        if not math.isfinite(norm):
            raise self._exploded(norm)
        clip = 1.0 if self.clip is None or norm <= self.clip else self.clip / norm
        self.count += 1
        for decay, hyper in self._hypers:
            hyper[:] = self.rule.hyper(self.count, clip, rate, decay)
        self._update.run(self._step)
        self.parameters.gradients.fill(0)
        return norm

    def _exploded(self, norm: float) -> GradientExplosionError:
        name, largest = "", -1.0
        for trained, gradient in self.gradients():
            peak = float(np.max(np.abs(gradient), initial=0.0))
            if math.isnan(peak) or peak > largest:
                name, largest = trained, peak
            if math.isnan(peak):
                break
        return GradientExplosionError(
            f"step {self.count + 1}: the gradient of {name} reaches {largest:g}, the norm of all "
            f"is {norm:g}. Nothing was changed. Give a smaller --rate, or look for the sample that "
            "does it (--show-batch).",
            node=name,
            step=self.count + 1,
            magnitude=largest,
        )


def place(parameters: TrainedSet, parameter: Trained) -> tuple[int, int]:
    """Where a parameter lies in the flat arrays: begin and end, in values."""
    begin = (parameter.value.address - parameters.values.ctypes.data) // 4
    end = begin + parameter.value.data.nbytes // 4
    if not 0 <= begin <= end <= parameters.values.size:
        raise ShapeError(f"{parameter.name} does not lie in the memory of its parameters")
    return begin, end


def ranges(parameters: TrainedSet) -> list[tuple[int, int, bool]]:
    """(begin, end, decay) of the ranges that share a launch: neighbours with one rule of decay,
    gaps between them (whose gradients are 0) included.
    """
    found: list[tuple[int, int, bool]] = []
    for parameter in parameters:
        begin, end = place(parameters, parameter)
        if found and found[-1][2] == parameter.decay and begin >= found[-1][1]:
            begin = found.pop()[0]
        found.append((begin, end, parameter.decay))
    return found
