"""From a mapped model file to a model that answers: tokenizer, template, runner, engine."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rebar.dataflow.text import TextStream, Tokenizer
from rebar.errors import CorruptFileError
from rebar.graph import ModelFile, Runner, RunnerOptions, load_runner
from rebar.graph.kept import KeptMemory
from rebar.graph.sequence import MAX_GUESSES, Row, SamplingParams, Sequence
from rebar.graph.weights.model_file import Progress
from rebar.hal import SharedMemory
from rebar.service.adapters import EngineAdapters
from rebar.service.admission import KV_FILLINGS
from rebar.service.engine import DEFAULT_MAX_RUNNING, InferenceEngine
from rebar.service.grammar import Grammars
from rebar.service.interfaces import ChatRenderer, StepRunner
from rebar.service.messages import EngineLimits, EngineSpec
from rebar.service.model import LoadedModel, ServedModel

DEFAULT_MAX_WAITING = 256
"""Choices that may wait for their turn before callers are told to come back later."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine that is not started, and what it can hold."""

    engine: InferenceEngine
    limits: EngineLimits


def load_model(
    file: ModelFile,
    options: RunnerOptions,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    max_running: int = DEFAULT_MAX_RUNNING,
    max_waiting: int = DEFAULT_MAX_WAITING,
    chat: bool = True,
    speculation: int = MAX_GUESSES,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads what `open_converted` opened. name: what callers call it. chat False: without the
    chat template, for callers who only continue texts. speculation: ids guessed at a time.

    Raises MemoryBudgetError before anything is loaded, ContextLengthError, ModelFileError,
    DeviceError.
    """
    loaded = load_engine(file, options, max_running, max_waiting, progress, speculation=speculation)
    served = open_served(file, loaded.limits, name=name, aliases=aliases, chat=chat)
    return LoadedModel(served, loaded.engine)


def open_served(
    file: ModelFile,
    limits: EngineLimits,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    source: str = "",
    chat: bool = True,
) -> ServedModel:
    """What the front needs of a model: its text side; no weight is read. source: as of
    ServedModel.
    """
    tokenizer = _tokenizer(file)
    template = _template(file.chat_template, tokenizer) if chat and file.chat_template else None
    return ServedModel(name, tokenizer, template, limits, int(time.time()), aliases, source)


def load_engine(
    file: ModelFile,
    options: RunnerOptions,
    max_running: int = DEFAULT_MAX_RUNNING,
    max_waiting: int = DEFAULT_MAX_WAITING,
    progress: Progress | None = None,
    *,
    sharing: bool = True,
    speculation: int = MAX_GUESSES,
    kept: SharedMemory | None = None,
) -> LoadedEngine:
    """What computes. sharing: as of Scheduler; speculation: ids guessed at a time. kept: where keys
    and values lie, those among them that an engine before computed. Raises as load_model does.
    """
    tokenizer = _tokenizer(file)
    model = identity_of(file, options)
    # Rows that only pad the embedding have no text: they are never sampled.
    runner = load_runner(
        file,
        options,
        vocab_size=tokenizer.vocab_size,
        progress=progress,
        kept=None if kept is None else KeptMemory(kept, model),
    )
    max_running = min(max_running, runner.max_sequences)
    engine = InferenceEngine(
        runner,
        partial(TextStream, tokenizer),
        vocab_size=tokenizer.vocab_size,
        max_running=max_running,
        grammars=Grammars(tokenizer),
        model=model,
        sharing=sharing,
        speculation=speculation,
        adapters=_adapters(file, runner),
    )
    limits = EngineLimits(
        max_context=runner.max_context,
        kv_tokens=runner.kv.total_blocks * runner.kv.block_size,
        vocab_size=tokenizer.vocab_size,
        max_open=max_running + max_waiting,
        max_open_tokens=KV_FILLINGS * runner.kv.total_blocks * runner.kv.block_size,
        width=runner.width,
    )
    return LoadedEngine(engine, limits)


def _adapters(file: ModelFile, runner: Runner) -> EngineAdapters:
    """Where there is room; what reads adapters is imported then."""
    if runner.adapters is None:
        return EngineAdapters(None)
    from rebar.graph.lora import Adapter, read_adapter

    def read(folder: Path, digest: str) -> Adapter:
        return read_adapter(folder, file.config, digest)

    return EngineAdapters(runner.adapters, read)


def spec_of(
    file: ModelFile,
    options: RunnerOptions,
    max_running: int = DEFAULT_MAX_RUNNING,
    max_waiting: int = DEFAULT_MAX_WAITING,
    speculation: int = MAX_GUESSES,
) -> EngineSpec:
    """What an engine process is told to load; the file must be a .rebar one, as load_model's."""
    return EngineSpec(str(file.path), options, max_running, max_waiting, speculation)


def identity_of(file: ModelFile, options: RunnerOptions) -> bytes:
    """A digest of what decides keys and values besides ids: the description, where the weights came
    from (their digest, if converted), their shapes and types, and how the cache stores.
    """
    said = hashlib.sha256(repr((file.config, options.kv)).encode())
    said.update(repr(sorted(file.provenance.items(), key=lambda item: item[0])).encode())
    for name, tensor in sorted(file.tensors.items()):
        said.update(f"{name} {tensor.shape} {tensor.type}".encode())
    return said.digest()


def _tokenizer(file: ModelFile) -> Tokenizer:
    tokenizer = Tokenizer.of(file)
    if tokenizer.vocab_size > file.config.vocab_size:
        raise CorruptFileError(
            f"{file.path}: {tokenizer.vocab_size} tokens for an embedding of "
            f"{file.config.vocab_size} rows. Convert the model again from its source."
        )
    return tokenizer


def _template(source: str, tokenizer: Tokenizer) -> ChatRenderer:
    from rebar.dataflow.text import ChatTemplate

    return ChatTemplate(source, tokenizer)


def warm_up(runner: StepRunner) -> None:
    """Computes a few positions of nothing, so that the first caller does not wait for the weights
    to come in from disk, and a model that cannot run says so before anybody calls.
    """
    sequence = Sequence.of([0] * runner.kv.block_size, runner.kv.block_size, SamplingParams())
    sequence.blocks = runner.kv.allocate(1)
    try:
        last = sequence.total - 1
        runner.step([Row(sequence, first=0, count=sequence.total, wants=range(last, last + 1))])
    finally:
        runner.kv.release(sequence.blocks)
