"""adapter_config.json, as PEFT writes it: what is understood, what has no meaning for an answer,
and what is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.lora.modules import ALL_LINEAR, MAX_PATTERN, MAX_PATTERNS, Place, names, targeted
from rebar.graph.lora.spec import scale_of
from rebar.graph.models.adapted import MAX_RANK
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.hf_config import ADAPTER_CONFIG
from rebar.hal.files import read_bounded

CONFIG = ADAPTER_CONFIG
MAX_CONFIG_BYTES = 1 << 20
MAX_REPEATS, MAX_REPEATS_IN_ALL = 5, 20
V = TypeVar("V", int, float)
# Ways of starting that change the weights of the model itself: without these the adapter is wrong.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# `..._config` of these ways of starting says how the first values were found, and nothing else; any
# other, also one that is not heard of yet, is a method of its own.
_STARTS = ("eva_config", "corda_config", "loftq_config", "lora_ga_config")
# What makes it another method, or brings more than matrices beside linear layers.
_REFUSED = {
    "fan_in_fan_out": "transposed weights",
    "lora_bias": "biases of its own",
    "modules_to_save": "whole modules beside the adapter",
    "layer_replication": "repeated layers",
    "trainable_token_indices": "rows of the embedding",
    "target_parameters": "parameters outside linear layers",
    "alora_invocation_tokens": "tokens that switch it on",
}


class _File(msgspec.Struct, frozen=True):
    """The fields that are read with a type; `_REFUSED` are looked at as they come."""

    peft_type: str
    r: int
    lora_alpha: float
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: Any = True
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    base_model_name_or_path: str | None = None
    task_type: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """An adapter's description. ranks, alphas: of modules that differ, by patterns."""

    r: int
    alpha: float
    targets: str | tuple[str, ...]
    rslora: bool = False
    exclude: str | tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    base: str = ""

    @property
    def largest_rank(self) -> int:
        """The largest rank that a module may have."""
        return max(self.r, *self.ranks.values(), 1)

    def rank_of(self, module: str) -> int:
        """Rank of a module's matrices."""
        return _patterned(self.ranks, module, self.r)

    def scale_of(self, module: str) -> float:
        """The factor of a module's B A."""
        alpha = _patterned(self.alphas, module, self.alpha)
        return scale_of(self.rank_of(module), alpha, rslora=self.rslora)

    def places(self, config: DecoderConfig, where: str) -> dict[str, Place]:
        """The modules that it changes. UnsupportedModelError for targets that name none."""
        found, unknown = targeted(config, self.targets, self.exclude, self.layers)
        if unknown or not found:
            what = f"its target {', '.join(map(repr, unknown))}" if unknown else "its targets"
            raise UnsupportedModelError(
                f"{where}: {what} name{'s' if len(unknown) == 1 else ''} no linear layer of this "
                "decoder. Embedding and head cannot have adapters here; otherwise use one that was "
                "made for this model."
            )
        return found


def _patterned(patterns: dict[str, V], module: str, default: V) -> V:
    """The value of the first pattern that ends the module's name."""
    for pattern, value in patterns.items():
        if names(rf"(.*\.)?({pattern})", module):
            return value
    return default


def read_config(folder: Path) -> AdapterConfig:
    """Reads and checks the description in a folder. Raises ModelFileError naming the field."""
    path = folder / CONFIG
    raw = read_bounded(path, MAX_CONFIG_BYTES)
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
        given = msgspec.convert(fields, _File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CorruptFileError(f"{path} is no description of an adapter ({error}).") from error
    _refuse(fields, given, path)
    _check_numbers(given, path)
    if given.target_modules is None:
        raise UnsupportedModelError(f"{path}: there is no `target_modules`. Write them in.")
    patterns = [*(given.rank_pattern or {}), *(given.alpha_pattern or {})]
    if len(patterns) > MAX_PATTERNS or sum(map(_repeats, patterns)) > MAX_REPEATS_IN_ALL:
        raise UnsupportedModelError(
            f"{path}: more patterns of ranks and alphas than can be matched in time. Write the "
            "names of modules out."
        )
    layers = given.layers_to_transform
    layers = [layers] if isinstance(layers, int) else layers
    return AdapterConfig(
        given.r,
        given.lora_alpha,
        _pattern(given.target_modules, path),
        given.use_rslora,
        _pattern(given.exclude_modules or (), path),
        tuple(layers) if layers else None,  # an empty list means all of them
        {_checked(p, path): rank for p, rank in (given.rank_pattern or {}).items()},
        {_checked(p, path): alpha for p, alpha in (given.alpha_pattern or {}).items()},
        given.base_model_name_or_path or "",
    )


def _refuse(fields: dict[str, Any], given: _File, path: Path) -> None:
    def refuse(what: str) -> None:
        raise UnsupportedModelError(
            f"{path}: {what}, which this release does not know. Merge it with peft, or train one "
            "without."
        )

    if given.peft_type != "LORA":
        refuse(f"an adapter of type {given.peft_type[:40]!r}")
    if given.bias != "none":
        refuse(f"`bias` is {given.bias[:40]!r}")
    for name, what in _REFUSED.items():
        if fields.get(name):
            refuse(f"`{name}` means {what}")
    for name, value in fields.items():
        switch = name.startswith("use_") and name != "use_rslora"
        if value and (switch or (name.endswith("_config") and name not in _STARTS)):
            refuse(f"`{name}` is set: another method")
    start = given.init_lora_weights
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        refuse(f"`init_lora_weights` is {start[:40]!r}: it goes with other weights of the model")
    if isinstance(given.layers_to_transform, list) and isinstance(given.target_modules, str):
        refuse("`layers_to_transform` beside a pattern")


def _check_numbers(given: _File, path: Path) -> None:
    ranks = [given.r, *(given.rank_pattern or {}).values()]
    alphas = [given.lora_alpha, *(given.alpha_pattern or {}).values()]
    wrong = next((r for r in ranks if not 1 <= r <= MAX_RANK), None)
    if wrong is not None:
        raise CorruptFileError(
            f"{path}: a rank of {wrong}; ranks are 1 to {MAX_RANK}. Use an adapter of such a rank, "
            "or merge this one with peft."
        )
    if not all(abs(alpha) < 1e30 for alpha in alphas):
        raise CorruptFileError(f"{path}: `lora_alpha` is no sound number. Save it again.")


def _pattern(given: str | list[str] | tuple[str, ...], path: Path) -> str | tuple[str, ...]:
    if not isinstance(given, str):
        return tuple(given)
    return given if given == ALL_LINEAR else _checked(given, path)


def _checked(pattern: str, path: Path) -> str:
    """A regular expression that compiles and cannot take for ever. Python's matcher goes back and
    tries again: a repeated group makes that exponential, each `.*` one more factor of a name's
    length. It comes out of a file that somebody may have written to hold us.
    """
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CorruptFileError(
            f"{path}: the pattern {pattern[:100]!r} is none ({error})."
        ) from None
    grouped = re.search(r"\)[*+{]", _bare(pattern))
    if len(pattern) <= MAX_PATTERN and _repeats(pattern) <= MAX_REPEATS and not grouped:
        return pattern
    raise UnsupportedModelError(
        f"{path}: the pattern {pattern[:100]!r} repeats a group, repeats more than {MAX_REPEATS} "
        "times, or is too long. Write the modules as a list."
    )


def _bare(pattern: str) -> str:
    """Without what only looks like a repetition: escaped, or in a class of characters."""
    return re.sub(r"\\.|\[\^?\]?[^\]]*\]", "a", pattern, flags=re.DOTALL)


def _repeats(pattern: str) -> int:
    return len(re.findall(r"[*+{]", _bare(pattern)))
