"""The modules of a decoder by the names transformers gives them, and which of them a PEFT
configuration means.

Rules of matching: peft, tuners/tuners_utils.py, check_target_module_exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rebar.graph.models.adapted import PARTS
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.hf_names import INSIDE

ALL_LINEAR = "all-linear"
_WITHIN = {part: module for module, part in INSIDE.items() if part in PARTS}
# How a decoder inside a larger model is spelled (Gemma 3 with pictures, old and new).
_SPELLINGS = ("model.", "model.language_model.", "language_model.model.")
MAX_PATTERN = 1000  # characters
MAX_PATTERNS = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a layer."""

    layer: int
    part: str

    @property
    def weight(self) -> str:
        """The canonical name of its matrix."""
        return f"layers.{self.layer}.{self.part}.weight"


def module_of(layer: int, part: str) -> str:
    """The name of a module: model.layers.3.self_attn.q_proj."""
    return f"model.layers.{layer}.{_WITHIN[part]}"


def modules(config: DecoderConfig) -> dict[str, Place]:
    """Every module that can have an adapter."""
    places = [Place(layer, part) for layer in range(config.layers) for part in PARTS]
    return {module_of(place.layer, place.part): place for place in places}


def plain(name: str) -> str:
    """A module's or tensor's name as this decoder has it, however it was spelled."""
    name = name.removeprefix("base_model.model.")
    for spelling in _SPELLINGS[1:]:
        if name.startswith(spelling):
            return "model." + name.removeprefix(spelling)
    return name


def spellings(module: str) -> list[str]:
    """The names that a configuration may have meant a module by."""
    return [spelling + module.removeprefix("model.") for spelling in _SPELLINGS]


@lru_cache(MAX_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Python's own cache is smaller than a description with a rank for each module."""
    return re.compile(pattern)


def names(pattern: str | Sequence[str], module: str) -> bool:
    """Whether a pattern (a regular expression for the whole name) or a list of names or name ends
    means a module.
    """
    if isinstance(pattern, str):
        whole = _compiled(pattern).fullmatch
        return any(whole(spelled) for spelled in spellings(module))
    ends = tuple(f".{name}" for name in pattern)
    return any(
        spelled in pattern or (bool(ends) and spelled.endswith(ends))
        for spelled in spellings(module)
    )


def targeted(
    config: DecoderConfig,
    targets: str | Sequence[str],
    exclude: str | Sequence[str] = (),
    layers: Sequence[int] | None = None,
) -> tuple[dict[str, Place], list[str]]:
    """The modules that are meant, by name, and the targets that mean none. layers: only these,
    except for modules that a list names in full.
    """
    everything = modules(config)
    if targets == ALL_LINEAR:
        means = dict(everything)
    else:
        means = {name: place for name, place in everything.items() if names(targets, name)}
    if isinstance(targets, str):
        unknown = [] if means else [targets]
    else:
        unknown = [t for t in targets if not any(names([t], name) for name in everything)]
    whole = () if isinstance(targets, str) else targets
    kept = {
        name: place
        for name, place in means.items()
        if not (exclude and names(exclude, name))
        and (
            layers is None
            or place.layer in layers
            or any(spelled in whole for spelled in spellings(name))
        )
    }
    return kept, unknown
