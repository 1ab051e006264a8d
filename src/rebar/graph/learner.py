"""From a model file to a Learner: parameters, frozen weights, graph, cache, program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rebar.errors import InputError
from rebar.graph.backward import Choice, Scheduler
from rebar.graph.gradients import Trained
from rebar.graph.kv import PagedKVCache
from rebar.graph.learner_settings import settings_of
from rebar.graph.learning import Learner as Learner
from rebar.graph.learning import Loss as Loss
from rebar.graph.loader import adapter_tables, create_pools, fused_decoder, must_copy, rope_tables
from rebar.graph.lora.spec import LoraSpec
from rebar.graph.lora.trainable import begin, bind_trained, trained_room, trained_shapes
from rebar.graph.memory_plan import RunnerOptions, WeightsPlace, resolve_context
from rebar.graph.models.bind_trainable import TrainableBinder, trainable_shapes
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.decoder import build_decoder
from rebar.graph.own_nodes import NO_NODES, OwnNodes
from rebar.graph.parameters import Parameters, ParameterShape
from rebar.graph.recorded import with_loss
from rebar.graph.tensor import Tensor
from rebar.graph.training_plan import TrainingPlan, check_room, learner_entries, plan_of
from rebar.graph.weights.model_file import ModelFile, Progress
from rebar.hal import (
    BLOCK_POSITIONS,
    DeviceManager,
    Indices,
    KVFormat,
    Limits,
    Operand,
)

# Rows whose logits and their gradients are held at once: at 49k ids a row is 0.4 MB.
HEAD_ROWS = 128
HEAD_BYTES = 256 << 20

TrainingKV = Literal["f16", "f32"]


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How a model is opened for training.

    mode "lora": an adapter learns (`lora` says which, `seed` its first values), beside frozen
    weights as they lie in the file. "full": all weights learn, in float32, but those that `frozen`
    names (patterns of module names, models/bind_trainable.py). max_rows: ids in a batch;
    max_sequences, max_context: how many sequences, and of which length (None: the model's, at
    most max_rows). kv: how keys and values
    of a batch are held; f16 gives the bits of serving. recompute: what the way back computes again
    instead of keeping it: "none", "cheap" (norms and gated products), "layer" (all but the states
    between layers), or "auto", the first of these that fits; no bit depends on it. threads, memory,
    isa, device, weights: as RunnerOptions. fused False: no fusion.
    """

    mode: Literal["lora", "full"] = "full"
    lora: LoraSpec | None = None
    seed: int = 0
    frozen: tuple[str, ...] = ()
    max_rows: int = 1024
    max_sequences: int = 64
    max_context: int | None = None
    kv: TrainingKV = "f16"
    recompute: Choice = "auto"
    threads: int | None = None
    memory: int | None = None
    isa: str | None = None
    device: str = "cpu"
    weights: WeightsPlace = "auto"
    fused: bool = True

    @property
    def adapter(self) -> LoraSpec | None:
        """What learns beside frozen weights; None where all learn."""
        return (self.lora or LoraSpec()) if self.mode == "lora" else None

    @property
    def kv_format(self) -> KVFormat:
        """How keys and values are stored; InputError for a name that is none."""
        if self.kv not in get_args(TrainingKV):
            names = ", ".join(get_args(TrainingKV))
            raise InputError(f"no KV format {self.kv!r} for training; there are {names}.")
        return KVFormat[self.kv.upper()]


def open_learner(
    model: ModelFile,
    options: LearnerOptions | None = None,
    *,
    progress: Progress | None = None,
    planned: Callable[[TrainingPlan], None] | None = None,
    own: OwnNodes = NO_NODES,
) -> Learner:
    """Opens a model for training. planned: told what it will take before a weight is read. own:
    nodes written in NumPy, behind or instead of the model's.

    Errors: MemoryBudgetError before anything is loaded, ContextLengthError, ModelFileError,
    DeviceError, InputError; ShapeError for a node that does not fit.
    """
    options = options or LearnerOptions()
    device = DeviceManager(
        options.device, threads=options.threads, memory=options.memory, isa=options.isa
    )
    c, limits, spec = model.config, limits_of(model.config, options), options.adapter
    shapes = _shapes(c, options)
    copied = must_copy(model, RunnerOptions(weights=options.weights))
    entries = learner_entries(model, shapes, limits, options.kv_format, copied=copied)
    check_room(entries, device.budget, limits.rows)
    create_pools(device, entries)
    parameters = Parameters(device.pool("parameters"), shapes)
    binder = TrainableBinder(
        model, device.pool("weights"), parameters, progress, copied=copied, threads=device.threads
    )
    weights, bound = binder.decoder(), binder.operands
    gradients: dict[Tensor, Trained] = dict(binder.gradients)
    room = trained_room(c, spec) if spec is not None else None
    sizes = {"max_positions": limits.positions, "blocks": limits.blocks}
    decoder = own.in_decoder(build_decoder(c, weights, **sizes, room=room))
    if options.fused:
        decoder = fused_decoder(decoder)
    if spec is not None:
        tables = adapter_tables(decoder)
        learning = bind_trained(tables, parameters, spec.scale)
        bound.update({tensor: tables[key] for key, tensor in decoder.adapters.items()})
        gradients.update({tensor: learning[key] for key, tensor in decoder.adapters.items()})
    graph, loss, targets = with_loss(decoder.graph, decoder.logits)
    bound[targets] = asked = Indices(np.zeros(limits.logit_rows, np.int32))
    bound.update(zip(decoder.caches, _cache(device, c, options, limits), strict=True))
    ropes = rope_tables(decoder, device, limits.positions)
    bound.update({tensor: ropes[rope] for rope, tensor in decoder.ropes.items()})
    scheduler = Scheduler(graph, loss, limits, bound, gradients, decoder.head_begin)
    learner = Learner(c, device, parameters, scheduler, asked, options.recompute)
    if planned is not None:
        planned(plan_of(learner, entries))
    binder.load()
    if spec is not None:
        begin(parameters, c, spec, options.seed)
    learner.settings = {**settings_of(model, parameters, spec, options.kv), **own.settings}
    return learner


def _shapes(c: DecoderConfig, options: LearnerOptions) -> list[ParameterShape]:
    """All that learns."""
    spec = options.adapter
    shapes = trained_shapes(c, spec) if spec is not None else trainable_shapes(c, options.frozen)
    if not shapes:
        raise InputError(f"all weights are frozen by {', '.join(options.frozen)}; nothing learns.")
    return shapes


def limits_of(c: DecoderConfig, options: LearnerOptions) -> Limits:
    """What a batch may hold."""
    rows = options.max_rows
    context = resolve_context(c, options.max_context or min(c.context_length, rows))
    sequences = min(options.max_sequences, rows)
    return Limits(
        rows=rows,
        logit_rows=min(rows, HEAD_ROWS, max(1, HEAD_BYTES // (8 * c.vocab_size))),
        sequences=sequences,
        vocab=c.vocab_size,
        positions=context,
        blocks=rows // BLOCK_POSITIONS + sequences,
        adapters=1 if options.adapter is not None else 0,
    )


def _cache(
    device: DeviceManager, c: DecoderConfig, options: LearnerOptions, limits: Limits
) -> tuple[Operand, ...]:
    pool, kind = device.pool("kv"), options.kv_format
    return PagedKVCache(pool, c.layers, c.kv_heads, c.head_dim, limits.blocks, kind).storage
