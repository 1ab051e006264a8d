"""What an adapter is to be: rank, scale, targets; the names and shapes of its matrices, and where
they begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rebar.errors import InputError
from rebar.graph.lora.modules import ALL_LINEAR, Place, targeted
from rebar.graph.models.adapted import MAX_RANK, part_shape
from rebar.graph.models.config import DecoderConfig
from rebar.graph.named_random import random_of

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """An adapter of rank r on `targets`: names of modules as transformers has them ("q_proj"), or
    "all-linear". rslora: the scale is alpha / sqrt(r) (Kalajdzievski, arXiv:2312.03732), not
    alpha / r. InputError for what cannot be.
    """

    r: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    rslora: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.r <= MAX_RANK:
            raise InputError(
                f"an adapter of rank {self.r}; ranks are 1 to {MAX_RANK}. Choose one of these.",
                param="lora_r",
            )
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(
                f"an adapter with alpha {self.alpha}. Give it a number above 0.", param="lora_alpha"
            )
        if not self.targets:
            raise InputError("an adapter without a target. Name some modules.", param="targets")

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return scale_of(self.r, self.alpha, rslora=self.rslora)

    def places(self, config: DecoderConfig) -> dict[str, Place]:
        """The modules of the model that it changes, by name. InputError for a target that names
        none.
        """
        names = ALL_LINEAR if self.targets == (ALL_LINEAR,) else self.targets
        found, unknown = targeted(config, names)
        if unknown:
            raise InputError(
                f"no module of this model is called {', '.join(unknown)}. Targets are "
                "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj or all-linear.",
                param="targets",
            )
        return found


def scale_of(r: int, alpha: float, *, rslora: bool) -> float:
    """alpha / r, or alpha / sqrt(r)."""
    return alpha / math.sqrt(r) if rslora else alpha / r


def matrix_names(module: str) -> tuple[str, str]:
    """Names of a module's A and B."""
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def lora_shapes(config: DecoderConfig, spec: LoraSpec) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, shape) of every matrix: A (r, k), B (n, r)."""
    for module, place in spec.places(config).items():
        n, k = part_shape(config, place.part)
        a, b = matrix_names(module)
        yield a, (spec.r, k)
        yield b, (n, spec.r)


def initial(name: str, shape: tuple[int, int], seed: int) -> F32:
    """Where a matrix begins, as PEFT has it: A uniform within 1 / sqrt(k) (He et al.,
    arXiv:1502.01852, with a = sqrt(5)), B zero, so that the adapter adds nothing yet. The numbers
    are a function of seed and name.
    """
    if name.endswith("lora_B.weight"):
        return np.zeros(shape, np.float32)
    words = random_of(seed, name).random_raw(math.prod(shape))
    unit = (words >> np.uint64(40)).astype(np.float64) * 2.0**-24
    bound = shape[1] ** -0.5
    numbers: F32 = ((2.0 * unit - 1.0) * bound).astype(np.float32)
    return numbers.reshape(shape)
