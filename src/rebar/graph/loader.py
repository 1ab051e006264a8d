"""From a model file to a Runner: plan, pools, weights, graph, program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rebar.graph.fuse import fuse
from rebar.graph.kv import PagedKVCache
from rebar.graph.memory_plan import MemoryPlan, RunnerOptions, limits_of, plan_memory
from rebar.graph.models import bind
from rebar.graph.models.bind import Binder
from rebar.graph.models.config import DecoderConfig
from rebar.graph.models.decoder import Decoder, build_decoder
from rebar.graph.models.rope import rope_table
from rebar.graph.runner import Runner
from rebar.graph.tensor import Tensor
from rebar.graph.weights.model_file import ModelFile, Progress
from rebar.hal import DeviceManager, Operand, Rows, huge_pages


def load_runner(
    model: ModelFile,
    options: RunnerOptions | None = None,
    *,
    vocab_size: int | None = None,
    progress: Progress | None = None,
    fused: bool = True,
) -> Runner:
    """Loads a model. vocab_size: ids at or above it are never sampled. fused False: no fusion (the
    same bits, slower).

    Errors: MemoryBudgetError before anything is loaded, ContextLengthError, ModelFileError,
    DeviceError.
    """
    options = options or RunnerOptions()
    device = DeviceManager(
        options.device, threads=options.threads, memory=options.memory, isa=options.isa
    )
    plan = plan_memory(model, options, device.budget)
    copied = must_copy(model, options)
    if copied:
        plan = plan_memory(model, options, device.budget, copied=True)
    for entry in plan.entries:
        if entry.pool == "mapped":
            device.adopt_mapping(entry.pool, entry.nbytes)
        else:
            device.create_pool(entry.pool, entry.nbytes + SLACK)
    binder = Binder(model, device.pool("weights"), progress, copied=copied, threads=device.threads)
    return _assemble(binder, device, plan, options, vocab_size, fused)


def must_copy(model: ModelFile, options: RunnerOptions) -> bool:
    """Whether mapped weights are to be copied (RunnerOptions.weights). Otherwise they are read into
    memory now, so that no step waits for a disk.
    """
    packed = next((t.data for t in model.tensors.values() if t.packed), None)
    if packed is None or options.weights == "copied":
        return packed is not None
    in_huge_pages = huge_pages.hold_mapped(packed)
    worth = bind.mapped_bytes(model) >= huge_pages.LEAST and huge_pages.system_has_huge_pages()
    return options.weights == "auto" and worth and not in_huge_pages


# Rounding of single blocks up to the alignment, beyond the rounding that the plan counts.
SLACK = 64 << 10


def _assemble(
    binder: Binder,
    device: DeviceManager,
    plan: MemoryPlan,
    options: RunnerOptions,
    vocab_size: int | None,
    fused: bool,
) -> Runner:
    c = binder.model.config
    weights = binder.decoder()
    decoder = build_decoder(c, weights, max_positions=plan.max_context, blocks=plan.blocks)
    if fused:
        decoder = fused_decoder(decoder)
    kv = PagedKVCache(
        device.pool("kv"), c.layers, c.kv_heads, c.head_dim, plan.blocks, options.kv_format
    )
    bound: dict[Tensor, Operand] = dict(binder.operands)
    bound.update(zip(decoder.caches, kv.storage, strict=True))
    bound.update(rope_tables(decoder, device, plan.max_context))
    limits = limits_of(c, plan, options.max_rows)
    values = decoder.graph.plan(limits).allocate(device.pool("arena"), limits, bound, "activations")
    return Runner(c, device, decoder, values, kv, plan, limits, _sampled_ids(c, vocab_size))


def fused_decoder(decoder: Decoder) -> Decoder:
    """The decoder over its fused graph."""
    return replace(decoder, graph=fuse(decoder.graph))


def rope_tables(decoder: Decoder, device: DeviceManager, positions: int) -> dict[Tensor, Operand]:
    """The decoder's rotation tables, from the device's pool "tables"."""
    bound: dict[Tensor, Operand] = {}
    for rope, tensor in decoder.ropes.items():
        nbytes = positions * rope.dim * 4
        raw = device.pool("tables").allocate(nbytes, tensor.name).bytes()[:nbytes]
        table = Rows(raw.view(np.float32).reshape(positions, rope.dim))
        table.data[:] = rope_table(rope, positions)
        bound[tensor] = table
    return bound


def _sampled_ids(config: DecoderConfig, vocab_size: int | None) -> int:
    return config.vocab_size if vocab_size is None else min(vocab_size, config.vocab_size)
