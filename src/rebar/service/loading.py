"""From a mapped model file to a model that answers: tokenizer, template, runner, engine."""

from __future__ import annotations

import time
from functools import partial

from rebar.dataflow.text import TextStream, Tokenizer
from rebar.errors import CorruptFileError
from rebar.graph import ModelFile, RunnerOptions, load_runner
from rebar.graph.sequence import Row, SamplingParams, Sequence
from rebar.graph.weights.model_file import Progress
from rebar.service.engine import DEFAULT_MAX_RUNNING, InferenceEngine
from rebar.service.interfaces import ChatRenderer, StepRunner
from rebar.service.messages import EngineLimits
from rebar.service.model import LoadedModel, ServedModel

DEFAULT_MAX_WAITING = 256
"""Choices that may wait for their turn before callers are told to come back later."""


def load_model(
    file: ModelFile,
    options: RunnerOptions,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    max_running: int = DEFAULT_MAX_RUNNING,
    max_waiting: int = DEFAULT_MAX_WAITING,
    chat: bool = True,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads what `open_converted` opened. name: what callers call it. chat False: without the
    chat template, for callers who only continue texts.

    Raises MemoryBudgetError before anything is loaded, ContextLengthError, ModelFileError,
    DeviceError.
    """
    tokenizer = Tokenizer.of(file)
    if tokenizer.vocab_size > file.config.vocab_size:
        raise CorruptFileError(
            f"{file.path}: {tokenizer.vocab_size} tokens for an embedding of "
            f"{file.config.vocab_size} rows. Convert the model again from its source."
        )
    template = _template(file.chat_template, tokenizer) if chat and file.chat_template else None
    # Rows that only pad the embedding have no text: they are never sampled.
    runner = load_runner(file, options, vocab_size=tokenizer.vocab_size, progress=progress)
    max_running = min(max_running, runner.max_sequences)
    engine = InferenceEngine(
        runner,
        partial(TextStream, tokenizer),
        vocab_size=tokenizer.vocab_size,
        max_running=max_running,
    )
    limits = EngineLimits(
        max_context=runner.max_context,
        kv_tokens=runner.kv.total_blocks * runner.kv.block_size,
        vocab_size=tokenizer.vocab_size,
        max_open=max_running + max_waiting,
    )
    served = ServedModel(name, tokenizer, template, limits, int(time.time()), aliases)
    return LoadedModel(served, engine)


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
