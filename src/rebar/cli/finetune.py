"""rebar finetune"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rebar.cli.models import open_named
from rebar.cli.options import Json, Model, Offline
from rebar.cli.output import emit, note, progress
from rebar.cli.settings import places
from rebar.cli.training_flags import LoraFlags, TrainingFlags
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.dataflow.data import TrainingBatches
    from rebar.dataflow.data.text_batches import TextReading
    from rebar.graph.batch import Batch
    from rebar.graph.learner import Learner
    from rebar.graph.weights import ModelFile

OnError = Literal["raise", "skip"]
KV = Literal["f16", "f32"]
LORA_RATE, FULL_RATE = 2e-4, 2e-5


def finetune(
    model: Model,
    *,
    data: Annotated[Path, Parameter(help="JSONL of conversations, pairs or documents.")],
    out: Annotated[Path, Parameter(help="Folder for the adapter, log and checkpoints.")],
    eval_data: Annotated[Path | None, Parameter(help="JSONL to evaluate on.")] = None,
    max_context: Annotated[
        int | None, Parameter(help="Longest sequence; default: --batch-tokens.")
    ] = None,
    on_error: Annotated[
        OnError, Parameter(help="What to do about a record that is no sample.")
    ] = "raise",
    kv: Annotated[KV, Parameter(help="Keys and values: f16 as in serving, or f32.")] = "f16",
    lora: LoraFlags | None = None,
    flags: TrainingFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> int:
    """Teach a model by examples: an adapter (LoRA), or with --full all of its weights.

    DATA has a JSON object a line: {"messages": [...]} in the shape of the chat API (the assistant's
    turns are learned), {"prompt": ..., "completion": ...} or {"text": ...}. OUT gets the adapter in
    PEFT's layout, log.jsonl, loss.svg and checkpoints. Ctrl-C saves; --resume goes on from there
    with the bits of a run that was never stopped.
    """
    from rebar.cli.training_run import Run

    lora, flags = lora or LoraFlags(), flags or TrainingFlags()
    run = Run.open(out, flags)
    file = open_named(model, offline=offline)
    reading = _reading(file, max_context or flags.batch_tokens, flags.batch_tokens, on_error)
    source, held_out = _sources(reading, data, eval_data, flags)
    run.note(f"model      {model}: {lora.words()}")
    learner = _learner(file, reading, lora, flags, kv)
    facts = {"model": model, "data": str(data), **asdict(lora), **asdict(flags)}
    usual = FULL_RATE if lora.full else LORA_RATE
    done = run.train(learner, source, held_out, usual, facts, f"{model} on {data.name}")
    if run.speaks:
        done |= _write(out, file, model, learner, lora)
        emit(done, json=json)
    return run.exit_code


def _reading(file: ModelFile, context: int, rows: int, on_error: OnError) -> TextReading:
    from rebar.dataflow.data.text_batches import TextReading
    from rebar.dataflow.text import ChatTemplate, Tokenizer

    tokenizer = Tokenizer.of(file)
    template = ChatTemplate(file.chat_template, tokenizer) if file.chat_template else None
    context = min(context, rows, file.config.context_length)
    return TextReading(tokenizer, template, context, rows, on_error)


def _sources(
    reading: TextReading, data: Path, eval_data: Path | None, flags: TrainingFlags
) -> tuple[TrainingBatches, list[Batch]]:
    """What is trained on, surveyed, and what is held out."""
    from rebar.dataflow.data import Dataset, MMapDataset
    from rebar.dataflow.data.subset import split

    if eval_data is not None and flags.eval_split is not None:
        raise InputError("--eval-data and --eval-split: give one of them.", param="eval_data")
    train: Dataset = MMapDataset(data, cache=places().cache)
    held: Dataset | None = None
    if eval_data is not None:
        held = MMapDataset(eval_data, cache=places().cache)
    elif flags.eval_split is not None:
        train, held = split(train, flags.eval_split, flags.seed)
    source = reading.batches(train, samples=flags.batch, epochs=flags.passes, seed=flags.seed)
    survey = source.survey()
    held_out = [] if held is None else reading.all_of(held)
    note(
        f"data       {survey.sequences:,} sequences, {survey.rows:,} tokens, of which "
        f"{survey.asked:,} are learned; {survey.skipped:,} samples hold none"
    )
    if held is not None:
        note(f"held out   {len(held):,} samples, {sum(b.tokens for b in held_out):,} tokens asked")
    return source, held_out


def _learner(
    file: ModelFile, reading: TextReading, lora: LoraFlags, flags: TrainingFlags, kv: KV
) -> Learner:
    from rebar.graph.learner import LearnerOptions, open_learner

    options = LearnerOptions(
        mode="full" if lora.full else "lora",
        lora=None if lora.full else lora.spec(),
        max_rows=reading.rows,
        max_sequences=min(reading.rows, max(flags.batch, 64)),
        max_context=reading.context,
        kv=kv,
        recompute=flags.recompute,
        threads=flags.threads,
        memory=flags.memory,
        isa=places().isa,
        seed=flags.seed,
    )
    with progress() as shown:
        return open_learner(file, options, progress=shown)


def _write(
    out: Path, file: ModelFile, model: str, learner: Learner, lora: LoraFlags
) -> dict[str, Any]:
    """The adapter, or the whole model."""
    from rebar.graph.lora import write_adapter
    from rebar.graph.parameters import dense

    if lora.full:
        raise NotImplementedError
    matrices = {p.name: dense(p.value) for p in learner.parameters}
    write_adapter(out, lora.spec(), matrices, base=model)
    return {"adapter": str(out)}
