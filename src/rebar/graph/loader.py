"""From a model file to a Runner: plan, pools, weights, graph, program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rebar.errors import MemoryBudgetError
from rebar.graph.fuse import fuse
from rebar.graph.kept import KeptLayout, KeptMemory, good_for
from rebar.graph.kv import PagedKVCache
from rebar.graph.memory_plan import (
    SLACK,
    MemoryEntry,
    MemoryPlan,
    RunnerOptions,
    limits_of,
    plan_memory,
)
from rebar.graph.models import bind
from rebar.graph.models.adapted import PRODUCTS, AdapterRoom
from rebar.graph.models.bind import Binder
from rebar.graph.models.config import DecoderConfig, RopeConfig
from rebar.graph.models.decoder import Decoder, build_decoder
from rebar.graph.models.rope import rope_table
from rebar.graph.runner import Pass, Runner
from rebar.graph.tensor import Tensor
from rebar.graph.weights.model_file import ModelFile, Progress
from rebar.hal import (
    BLOCK_POSITIONS,
    DeviceManager,
    LoraTable,
    Operand,
    Rows,
    SharedMemory,
    huge_pages,
)

if TYPE_CHECKING:
    from rebar.graph.lora.slots import AdapterSlots, Tables


def load_runner(
    model: ModelFile,
    options: RunnerOptions | None = None,
    *,
    vocab_size: int | None = None,
    progress: Progress | None = None,
    fused: bool = True,
    kept: KeptMemory | None = None,
) -> Runner:
    """Loads a model. vocab_size: ids at or above it are never sampled. fused False: no fusion (the
    same bits, slower). kept: where keys and values lie, and may lie already; None for memory of
    this process.

    Errors: MemoryBudgetError before anything is loaded, ContextLengthError, ModelFileError,
    DeviceError.
    """
    options = options or RunnerOptions()
    shared = kept.memory if kept is not None else None
    device = DeviceManager(
        options.device,
        threads=options.threads,
        memory=options.memory,
        isa=options.isa,
        shared=shared,
    )
    plan = _plan(model, options, device.budget, kept)
    copied = must_copy(model, options)
    if copied:
        plan = _plan(model, options, device.budget, kept, copied=True)
    create_pools(device, plan.entries, shared)
    binder = Binder(model, device.pool("weights"), progress, copied=copied, threads=device.threads)
    digest = good_for(kept.model) if kept is not None else None
    return _assemble(binder, device, plan, options, vocab_size, fused, digest)


def create_pools(
    device: DeviceManager, entries: Iterable[MemoryEntry], shared: SharedMemory | None = None
) -> None:
    """A pool, or a mapping, for each entry. shared: where keys and values lie."""
    for entry in entries:
        if entry.pool == "mapped":
            device.adopt_mapping(entry.pool, entry.nbytes)
        else:
            place = shared if entry.pool == "kv" else None
            device.create_pool(entry.pool, entry.nbytes + SLACK, place)


def _plan(
    model: ModelFile,
    options: RunnerOptions,
    budget: int,
    kept: KeptMemory | None,
    *,
    copied: bool = False,
) -> MemoryPlan:
    """Keeps as many blocks as there are from before, if memory allows: what the machine has to
    spare is never twice the same, and blocks of a cache of another size would be lost.
    """
    before = KeptLayout.read(kept.memory) if kept is not None else None
    if kept is not None and before is not None and before.good_for == good_for(kept.model):
        same = replace(options, kv_tokens=before.blocks * BLOCK_POSITIONS)
        with contextlib.suppress(MemoryBudgetError):
            return plan_memory(model, same, budget, copied=copied, kept=True)
    return plan_memory(model, options, budget, copied=copied, kept=kept is not None)


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


def _assemble(
    binder: Binder,
    device: DeviceManager,
    plan: MemoryPlan,
    options: RunnerOptions,
    vocab_size: int | None,
    fused: bool,
    good_for: bytes | None,
) -> Runner:
    c = binder.model.config
    weights = binder.decoder()
    binder.load()
    kv = PagedKVCache(
        device.pool("kv"),
        c.layers,
        c.kv_heads,
        c.head_dim,
        plan.blocks,
        options.kv_format,
        good_for,
    )
    limits = limits_of(c, plan, options.max_rows)
    rooms = rooms_of(options.room)
    build = partial(build_decoder, c, weights, max_positions=plan.max_context, blocks=plan.blocks)
    decoders = [build(room=room) for room in rooms]
    if fused:
        decoders = [fused_decoder(decoder) for decoder in decoders]
    plans = [decoder.graph.plan(limits) for decoder in decoders]
    arena = device.pool("arena").allocate(max(p.nbytes for p in plans), "activations")
    tables = adapter_tables(decoders[-1])
    ropes = rope_tables(decoders[0], device, plan.max_context)
    passes = []
    for decoder, places in zip(decoders, plans, strict=True):
        bound: dict[Tensor, Operand] = dict(binder.operands)
        bound.update(zip(decoder.caches, kv.storage, strict=True))
        bound.update({tensor: ropes[rope] for rope, tensor in decoder.ropes.items()})
        bound.update({tensor: tables[key] for key, tensor in decoder.adapters.items()})
        passes.append(Pass(device, decoder, places.bind(arena, limits, bound), limits))
    slots = _slots(c, options.room, device, tables)
    return Runner(c, device, passes, kv, plan, limits, _sampled_ids(c, vocab_size), slots)


def rooms_of(room: AdapterRoom | None) -> tuple[AdapterRoom | None, ...]:
    """Of the passes of a runner, the least first: most adapters change q, k and v alone, and need
    no nodes behind the other products.
    """
    if room is None:
        return (None,)
    return None, replace(room, parts=frozenset(PRODUCTS["qkv"])), room


def _slots(
    config: DecoderConfig, room: AdapterRoom | None, device: DeviceManager, tables: Tables
) -> AdapterSlots | None:
    """Imported where there is room for adapters: most starts want none."""
    if room is None:
        return None
    from rebar.graph.lora.slots import AdapterSlots

    return AdapterSlots(config, room, device.pool("adapters"), tables)


def fused_decoder(decoder: Decoder) -> Decoder:
    """The decoder over its fused graph."""
    return replace(decoder, graph=fuse(decoder.graph))


def adapter_tables(decoder: Decoder) -> dict[tuple[int, str], LoraTable]:
    """An empty table for each product of a decoder that may have adapters."""
    tables = {}
    for key, tensor in decoder.adapters.items():
        slots, rank, k, *widths = (int(size) for size in tensor.shape)
        tables[key] = LoraTable(slots, k, tuple(widths), rank)
    return tables


def rope_tables(decoder: Decoder, device: DeviceManager, positions: int) -> dict[RopeConfig, Rows]:
    """The decoder's rotation tables, from the device's pool "tables"."""
    tables: dict[RopeConfig, Rows] = {}
    for rope, tensor in decoder.ropes.items():
        nbytes = positions * rope.dim * 4
        raw = device.pool("tables").allocate(nbytes, tensor.name).bytes()[:nbytes]
        table = Rows(raw.view(np.float32).reshape(positions, rope.dim))
        table.data[:] = rope_table(rope, positions)
        tables[rope] = table
    return tables


def _sampled_ids(config: DecoderConfig, vocab_size: int | None) -> int:
    return config.vocab_size if vocab_size is None else min(vocab_size, config.vocab_size)
