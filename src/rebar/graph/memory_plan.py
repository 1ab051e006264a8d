"""What a model will take before anything of it is loaded: a plan to print, to check against the
budget, and to load by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rebar import _native
from rebar.errors import ContextLengthError, InputError, MemoryBudgetError
from rebar.graph.kept import ENTRY_BYTES, HEADER_BYTES
from rebar.graph.kv import block_bytes
from rebar.graph.models import bind
from rebar.graph.models.adapted import MAX_RANK, AdapterRoom, slot_bytes
from rebar.graph.models.config import DecoderConfig
from rebar.graph.weights.model_file import ModelFile
from rebar.hal import BLOCK_POSITIONS, KVFormat, Limits, aligned

DEFAULT_CONTEXT = 8192  # positions, when the model allows more and nobody asks
# Without --kv-tokens or --memory: four contexts of the default length, but not more than this.
DEFAULT_KV_BYTES = 512 << 20
MAX_SEQUENCES = 256  # block tables of a step
MAX_ADAPTERS = 1024
MAX_LOGIT_ROWS = 64  # rows whose logits are held at once: at 262k ids a row is 1 MB
# Rounding of single blocks up to the alignment, beyond the rounding that a plan counts.
SLACK = 64 << 10

WeightsPlace = Literal["auto", "mapped", "copied"]
KVName = Literal["f16", "int8"]


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a model is loaded.

    threads: None for all usable cores. memory: budget in bytes, None for 80 % of what is available.
    max_context: longest sequence, None for the model's, at most 8192. kv_tokens: positions the
    cache holds, None to decide. max_rows: rows of a step. isa: None for the best instruction set.
    device: a back end's name. weights: where a .rebar file's weights are read: "mapped" (shared by
    the processes that map it), "copied" into memory of this process, or "auto": mapped where the
    system gives a file huge pages, else copied where it gives them to other memory. kv: how keys
    and values are stored; int8 takes 53 % of the bytes of f16. max_adapters: slots for adapters,
    max_rank: of the largest.
    """

    threads: int | None = None
    memory: int | None = None
    max_context: int | None = None
    kv_tokens: int | None = None
    max_rows: int = 512
    isa: str | None = None
    device: str = "cpu"
    weights: WeightsPlace = "auto"
    kv: KVName = "f16"
    max_adapters: int = 0
    max_rank: int = 16

    @property
    def room(self) -> AdapterRoom | None:
        """For adapters; InputError for a number that is none."""
        if self.max_adapters == 0:
            return None
        if not (1 <= self.max_adapters <= MAX_ADAPTERS and 1 <= self.max_rank <= MAX_RANK):
            raise InputError(
                f"--max-adapters {self.max_adapters} of rank {self.max_rank}; possible are up to "
                f"{MAX_ADAPTERS}, ranks 1 to {MAX_RANK}. Choose one of these.",
                param="max_adapters",
            )
        return AdapterRoom(self.max_adapters, self.max_rank)

    @property
    def kv_format(self) -> KVFormat:
        """How keys and values are stored; InputError for a name that is none."""
        if self.kv not in get_args(KVName):
            names = ", ".join(get_args(KVName))
            raise InputError(f"no KV format {self.kv!r}; --kv is one of {names}.", param="kv")
        return KVFormat[self.kv.upper()]


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One pool: bytes, and what they are for."""

    pool: str
    nbytes: int
    what: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All pools of a model, its context and cache, in bytes and positions; slots of adapters."""

    entries: tuple[MemoryEntry, ...]
    max_context: int
    blocks: int
    budget: int
    adapters: int = 0

    @property
    def total(self) -> int:
        """Bytes of all pools."""
        return sum(e.nbytes for e in self.entries)

    def of(self, pool: str) -> int:
        """Bytes of one pool."""
        return sum(e.nbytes for e in self.entries if e.pool == pool)

    def lines(self) -> list[str]:
        """The plan as a table to print."""
        return plan_lines(self.entries, self.budget)


def plan_lines(entries: Sequence[MemoryEntry], budget: int) -> list[str]:
    """Pools as a table to print, and their sum."""
    rows = [f"{e.pool:<10}{e.nbytes / 1e6:>10,.1f} MB  {e.what}" for e in entries]
    total = sum(e.nbytes for e in entries)
    return [*rows, f"{'total':<10}{total / 1e6:>10,.1f} MB  of {budget / 1e6:,.1f} MB"]


def resolve_context(config: DecoderConfig, asked: int | None) -> int:
    """The longest sequence to serve; ContextLengthError when more is asked than the model has
    learned.
    """
    if asked is None:
        return min(config.context_length, DEFAULT_CONTEXT)
    if not 1 <= asked <= config.context_length:
        raise ContextLengthError(
            f"a context of {asked:,} positions; the model was made for 1 to "
            f"{config.context_length:,}. Give --max-context a "
            "number in that range.",
            param="max_context",
        )
    return asked


def arena_bytes(
    config: DecoderConfig, max_rows: int, max_context: int, room: AdapterRoom | None = None
) -> int:
    """An upper bound of the activations: the plan places them in less. Widths of the tensors alive
    at once in a layer, and attention's work over contexts of several chunks. With adapters a
    product stands beside what they make of it.
    """
    c = config
    qkv = (c.heads + 2 * c.kv_heads) * c.head_dim
    floats = 3 * c.width + max(2 * qkv + c.heads * c.head_dim, 3 * c.mlp_width)
    if room is not None:
        floats += max(qkv, c.mlp_width) + 3 * room.rank
    quantized = 2 * max(
        c.width, c.mlp_width, c.heads * c.head_dim
    )  # 1.5 bytes an input, and its rounding
    logits = (
        min(MAX_LOGIT_ROWS, max_rows)
        * (c.vocab_size * (2 if c.logit_softcap else 1) + 4 * c.width)
        * 4
    )
    work = _native.attention_work(c.heads, c.head_dim, 0, max_context) * 4
    split = min(_native.ATTENTION_SPLIT_ROWS, max_rows)
    return max_rows * (floats * 4 + quantized) + split * work + logits + 64 * 256


def rope_bytes(config: DecoderConfig, max_context: int) -> int:
    """Bytes of the rotation tables."""
    return sum(
        aligned(max_context * r.dim * 4) for r in set(map(config.rope_of, range(config.layers)))
    )


def limits_of(config: DecoderConfig, plan: MemoryPlan, max_rows: int) -> Limits:
    """What a step of this model may hold."""
    return Limits(
        rows=max_rows,
        logit_rows=min(MAX_LOGIT_ROWS, max_rows),
        sequences=min(MAX_SEQUENCES, max_rows),
        vocab=config.vocab_size,
        positions=plan.max_context,
        blocks=plan.blocks,
        adapters=plan.adapters,
    )


def plan_memory(
    model: ModelFile,
    options: RunnerOptions,
    available: int,
    *,
    copied: bool = False,
    kept: bool = False,
) -> MemoryPlan:
    """The plan for `model` under options.memory or, without one, `available` bytes. copied: mapped
    weights are to be copied. kept: blocks are to outlive the process (kept.py).

    Errors: MemoryBudgetError with the numbers and the flags that would help; ContextLengthError.
    """
    c = model.config
    budget = options.memory if options.memory is not None else available
    context = resolve_context(c, options.max_context)
    block = block_bytes(c.layers, c.kv_heads, c.head_dim, options.kv_format)
    copied = copied or options.weights == "copied"
    mapped = 0 if copied else bind.mapped_bytes(model)
    pooled = bind.pool_bytes(model, copied=copied)
    fixed = [
        MemoryEntry("mapped", mapped, "weights, mapped from the file and shared"),
        MemoryEntry("weights", pooled + 64, "weights packed or copied at load, joined biases"),
        MemoryEntry("tables", rope_bytes(c, context), f"rotation tables of {context:,} positions"),
        MemoryEntry(
            "arena",
            arena_bytes(c, options.max_rows, context, options.room),
            f"activations and logits of {options.max_rows} rows",
        ),
        *_adapters(c, options.room),
    ]
    head, entry = (HEADER_BYTES, ENTRY_BYTES) if kept else (0, 0)
    left = budget - sum(e.nbytes for e in fixed) - head
    blocks = _blocks(options, context, block + entry, left)
    nbytes = head + blocks * (block + entry)
    kv = MemoryEntry("kv", nbytes, _kv_words(blocks, block, options))
    if nbytes - head > left:
        raise _too_much(c, options, blocks, max(left, 0), budget)
    return MemoryPlan((*fixed, kv), context, blocks, budget, options.max_adapters)


def _adapters(config: DecoderConfig, room: AdapterRoom | None) -> Iterator[MemoryEntry]:
    """Nothing where there is no room for any."""
    if room is not None:
        each = slot_bytes(config, room)
        words = f"{room.slots} adapters of rank {room.rank}, {each / 1e6:,.1f} MB each"
        yield MemoryEntry("adapters", room.slots * each, words)


def _blocks(options: RunnerOptions, context: int, block: int, left: int) -> int:
    """Blocks of the cache: what was asked, or four contexts within the default and the budget, but
    never under one.
    """
    if options.kv_tokens is not None:
        return max(1, -(-options.kv_tokens // BLOCK_POSITIONS))
    one = -(-context // BLOCK_POSITIONS)
    most = left if options.memory is not None else min(left, max(DEFAULT_KV_BYTES, one * block))
    return max(one, min(4 * one, most // block))


def _kv_words(blocks: int, block: int, options: RunnerOptions) -> str:
    positions = f"{blocks * BLOCK_POSITIONS:,} positions in {options.kv}"
    return f"keys and values of {positions}, {block // BLOCK_POSITIONS:,} bytes each"


def _too_much(
    c: DecoderConfig, options: RunnerOptions, blocks: int, left: int, budget: int
) -> MemoryBudgetError:
    block = block_bytes(c.layers, c.kv_heads, c.head_dim, options.kv_format)
    small = block_bytes(c.layers, c.kv_heads, c.head_dim, KVFormat.INT8)
    fits = left // block * BLOCK_POSITIONS
    flags = (
        f"a shorter context: --max-context {fits} --kv-tokens {fits} would fit"
        if fits
        else "a smaller model: the weights alone do not leave room for a cache"
    )
    if small < block:
        flags += f". Or keep it in int8: --kv int8 needs {blocks * small / 1e6:,.0f} MB"
    return MemoryBudgetError(
        f"the KV cache needs {blocks * block / 1e6:,.0f} MB for {blocks * BLOCK_POSITIONS:,} "
        "positions, the budget of "
        f"{budget / 1e6:,.0f} MB leaves {left / 1e6:,.0f} MB. Give it more with "
        f"--memory, or {flags}.",
        needed=blocks * block,
        available=left,
    )
