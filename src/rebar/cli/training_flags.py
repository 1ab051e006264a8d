"""Flags of the verbs that train."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rebar.cli.options import Size
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.dataflow.data import DataOptions
    from rebar.graph.learner import LearnerOptions
    from rebar.graph.lora import LoraSpec
    from rebar.graph.optimizer import Rule
    from rebar.graph.schedules import Schedule
    from rebar.graph.trainer import TrainerOptions

OnError = Literal["raise", "skip"]
# What is short on the command line, by what transformers calls the module.
SHORT = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
SHORT |= {"gate": "gate_proj", "up": "up_proj", "down": "down_proj", "all": "all-linear"}
# Least value of a flag, and what it has to be below.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ["batch", "batch_tokens", "steps", "epochs", "keep", "patience"], (1, math.inf)
    ),
    **dict.fromkeys(["warmup", "eval_every", "checkpoint_every"], (0, math.inf)),
    **dict.fromkeys(["weight_decay", "clip"], (0, math.inf)),
    "eval_split": (0, 1),
}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """How a model is trained. A step learns from --batch sequences; those that do not fit into
    --batch-tokens together are computed one after another and their gradients added.
    """

    steps: Annotated[int | None, Parameter(help="Steps in all; default: --epochs.")] = None
    epochs: Annotated[int | None, Parameter(help="Passes over the data; default 1.")] = None
    batch: Annotated[int, Parameter(help="Sequences a step learns from.")] = 8
    batch_tokens: Annotated[
        int, Parameter(help="Positions computed at a time: memory follows it.")
    ] = 1024
    rate: Annotated[float | None, Parameter(help="Highest learning rate.")] = None
    schedule: Annotated[
        Literal["constant", "linear", "cosine"], Parameter(help="How the rate goes down.")
    ] = "cosine"
    warmup: Annotated[int, Parameter(help="Steps in which the rate climbs.")] = 0
    optimizer: Annotated[Literal["adamw", "sgd"], Parameter(help="Rule of a step.")] = "adamw"
    weight_decay: Annotated[float, Parameter(help="Pull of matrices towards 0.")] = 0.0
    clip: Annotated[float, Parameter(help="Largest norm of all gradients; 0: any.")] = 1.0
    seed: Annotated[int, Parameter(help="Of order, split and first values.")] = 0
    eval_split: Annotated[float | None, Parameter(help="Share of the data held out.")] = None
    eval_every: Annotated[int, Parameter(help="Steps between evaluations; 0: at the end.")] = 0
    patience: Annotated[
        int | None, Parameter(help="End with the best after so many evaluations without a better.")
    ] = None
    checkpoint_every: Annotated[int, Parameter(help="Steps between checkpoints.")] = 100
    keep: Annotated[int, Parameter(help="Checkpoints that stay.")] = 2
    resume: Annotated[bool, Parameter(help="Go on from the newest checkpoint in --out.")] = False
    recompute: Annotated[
        Literal["auto", "none", "cheap", "layer"],
        Parameter(
            help="What the way back computes again: less memory, more time, the same bits; auto: "
            "as little as fits."
        ),
    ] = "auto"
    threads: Annotated[int | None, Parameter(help="Threads; default: one per core.")] = None
    memory: Annotated[Size | None, Parameter(help="Budget for all of it, like 4GB.")] = None
    rank_timeout: Annotated[
        float, Parameter(help="Seconds that processes which train together wait for each other.")
    ] = 300.0

    def __post_init__(self) -> None:
        """Before anything is read: InputError naming the flag that is out of range."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value < most:
                words = f"{least:g} or more" if most == math.inf else f"from {least:g} to below 1"
                raise InputError(f"{_flag(name)} {value} is not {words}. Mend it.", param=name)
        for name in ("rate", "rank_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{_flag(name)} {value:g} is not above 0. Mend it.", param=name)
        if self.patience is not None and not self.eval_every:
            raise InputError(
                "--patience counts evaluations, and there are none before the end. Give "
                "--eval-every too.",
                param="patience",
            )

    def check_held_out(self, tokens: int, data: Path, eval_data: Path | None) -> None:
        """InputError when evaluations were asked for and there is nothing to evaluate on: they
        would be left out without a word.
        """
        if not tokens and eval_data is not None:
            raise InputError(
                f"nothing of {eval_data} would be learned, so it says nothing. Look at it with "
                "--data and --show-batch.",
                param="eval_data",
            )
        if not tokens and (self.eval_split or self.eval_every):
            raise InputError(
                f"nothing of {data} is held out, so nothing can be evaluated. Give --eval-data, "
                "a larger --eval-split (it is rounded to whole samples), or no --eval-every.",
                param="eval_split",
            )

    @property
    def units(self) -> str:
        """What is counted."""
        return "tokens"

    @property
    def own_threads(self) -> int | None:
        """Of this process: those asked for, or its share of the cores among torchrun's ranks here.
        No bit depends on it.
        """
        from rebar.hal.machine import read_machine

        here = os.environ.get("LOCAL_WORLD_SIZE", "1")
        if self.threads is not None or not here.isdigit() or int(here) < 2:
            return self.threads
        return max(1, read_machine().cores // int(here))

    @property
    def passes(self) -> int:
        """Epochs the source offers: with --steps alone, as many as it takes."""
        if self.epochs is not None:
            return self.epochs
        return 1 if self.steps is None else 1_000_000

    def data_options(
        self, context: int, on_error: OnError = "raise", *, held_out: float = 0.0
    ) -> DataOptions:
        """The same for the data layer. context: longest sequence. held_out: share, unless one was
        asked for.
        """
        from rebar.cli.settings import places
        from rebar.dataflow.data import DataOptions

        return DataOptions(
            rows=context,
            batch_rows=self.batch_tokens,
            sequences=min(self.batch_tokens, max(self.batch, 32)),
            samples=self.batch,
            epochs=self.passes,
            seed=self.seed,
            held_out=held_out if self.eval_split is None else self.eval_split,
            on_error=on_error,
            cache=places().cache,
        )

    def rule(self) -> Rule:
        """The optimizer's."""
        from rebar.graph.optimizer import AdamW, Sgd

        if self.optimizer == "sgd":
            return Sgd(momentum=0.9, decay=self.weight_decay)
        return AdamW(decay=self.weight_decay)

    def rates(self, last: int | None, usual: float) -> Schedule:
        """The schedule to the last step. usual: the rate when none was asked for."""
        from rebar.graph.schedules import Schedule

        rate = usual if self.rate is None else self.rate
        return Schedule(self.schedule, rate, last, min(self.warmup, last or self.warmup))

    def rate_words(self, schedule: Schedule) -> str:
        """How the rate goes, for the log."""
        if schedule.warmup < self.warmup:
            return (
                f"{schedule.rate:g} at the last step, {schedule.steps}: the run is shorter than "
                f"{self.warmup:,} steps of warm-up"
            )
        up = f" after {schedule.warmup:,} steps of warm-up" if schedule.warmup else ""
        down = "then constant"
        if self.schedule != "constant" and schedule.steps is not None:
            down = f"then down ({self.schedule}) to 0 after step {schedule.steps:,}"
        return f"{schedule.rate:g}{up}, {down}"

    def learner_options(self, data: DataOptions) -> LearnerOptions:
        """How a language model is opened for such data, all of its weights to learn."""
        from rebar.cli.settings import places
        from rebar.graph.learner import LearnerOptions

        return LearnerOptions(
            seed=self.seed,
            max_rows=max(data.batch_rows, data.rows),
            max_sequences=data.sequences,
            max_context=data.rows,
            recompute=self.recompute,
            threads=self.own_threads,
            memory=self.memory,
            isa=places().isa,
        )

    def trainer_options(self, last: int | None) -> TrainerOptions:
        """The same for the graph layer."""
        from rebar.graph.trainer import TrainerOptions

        return TrainerOptions(
            steps=last,
            evaluate_every=self.eval_every,
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
            seed=self.seed,
        )

    def last_step(self, windows: int | None) -> int | None:
        """The last step there will be."""
        known = [n for n in (self.steps, windows) if n is not None]
        return min(known, default=None)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFlags(TrainingFlags):
    """As for text; --batch and --batch-tokens count images."""

    epochs: Annotated[int | None, Parameter(help="Passes over the data.")] = 20
    batch: Annotated[int, Parameter(help="Images a step learns from.")] = 64
    batch_tokens: Annotated[int, Parameter(help="Images computed at a time.")] = 64
    warmup: Annotated[int, Parameter(help="Steps in which the rate climbs.")] = 10
    weight_decay: Annotated[float, Parameter(help="Pull of matrices towards 0.")] = 0.01
    eval_split: Annotated[float | None, Parameter(help="Share of the images held out.")] = 0.2

    @property
    def units(self) -> str:
        """What is counted."""
        return "images"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFlags:
    """What learns: an adapter of low rank, or with --full all weights."""

    lora_r: Annotated[int, Parameter(help="Rank of the adapter.")] = 8
    lora_alpha: Annotated[float, Parameter(help="Its weight: scale = alpha / r.")] = 16.0
    lora_targets: Annotated[
        str, Parameter(help="Modules that get one: q, k, v, o, gate, up, down or all.")
    ] = "q,v"
    rslora: Annotated[bool, Parameter(help="scale = alpha / sqrt(r).")] = False
    full: Annotated[bool, Parameter(help="Train all weights instead, in float32.")] = False

    def __post_init__(self) -> None:
        """InputError for an adapter that cannot be, before anything is read."""
        self.spec()

    def spec(self) -> LoraSpec:
        """The adapter to be."""
        from rebar.graph.lora import LoraSpec

        words = [word.strip() for word in self.lora_targets.split(",") if word.strip()]
        targets = tuple(SHORT.get(word, word) for word in words)
        return LoraSpec(self.lora_r, self.lora_alpha, targets, rslora=self.rslora)

    def facts(self) -> dict[str, Any]:
        """What the log says of it, for programs."""
        return asdict(self) | {"lora_scale": None if self.full else self.spec().scale}

    def words(self) -> str:
        """What the log says of it, for people."""
        if self.full:
            return "all weights, in float32"
        spec = self.spec()
        by = f"alpha / sqrt(r) = {spec.alpha:g} / sqrt({spec.r})"
        if not self.rslora:
            by = f"alpha / r = {spec.alpha:g} / {spec.r}"
        return f"LoRA on {', '.join(spec.targets)}: r {spec.r}, scale = {by} = {spec.scale:g}"
