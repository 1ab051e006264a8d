"""rebar finetune"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rebar.cli.models import open_named
from rebar.cli.options import Json, Model, Offline
from rebar.cli.output import emit, progress
from rebar.cli.targets import As, Form
from rebar.cli.training_flags import LoraFlags, OnError, TrainingFlags
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.dataflow.data import DataOptions, TrainingBatches
    from rebar.graph.batch import Batch
    from rebar.graph.learner import Learner
    from rebar.graph.weights import ModelFile

KV = Literal["f16", "f32"]
Mode = Literal["lora", "full"]
LORA_RATE, FULL_RATE = 2e-4, 2e-5


def finetune(
    model: Model,
    *,
    data: Annotated[Path, Parameter(help="JSONL of conversations, pairs or documents.")],
    out: Annotated[
        Path | None,
        Parameter(help="Folder for the adapter, log and checkpoints; not for --show-batch."),
    ] = None,
    eval_data: Annotated[Path | None, Parameter(help="JSONL to evaluate on.")] = None,
    max_context: Annotated[
        int | None, Parameter(help="Longest sequence; default: --batch-tokens.")
    ] = None,
    on_error: Annotated[
        OnError, Parameter(help="What to do about a record that is no sample.")
    ] = "raise",
    kv: Annotated[KV, Parameter(help="Keys and values: f16 as in serving, or f32.")] = "f16",
    show_batch: Annotated[
        bool, Parameter(help="Show the first step's data, what is learned in colour, and end.")
    ] = False,
    form: Annotated[
        As, Parameter(help="With --full: a .rebar or a Hugging Face folder.")
    ] = "rebar",
    lora: LoraFlags | None = None,
    flags: TrainingFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> int:
    """Teach a model by examples: an adapter (LoRA), or with --full all of its weights.

    DATA has a JSON object a line: {"messages": [...]} in the shape of the chat API (the assistant's
    turns are learned), {"prompt": ..., "completion": ...} or {"text": ...}. OUT gets the adapter in
    PEFT's layout, or the model; log.jsonl, loss.svg and checkpoints. Ctrl-C saves; --resume goes
    on from there with the bits of a run that was never stopped.
    """
    from rebar.cli.training_run import Run
    from rebar.graph.learner import open_learner

    lora, flags = lora or LoraFlags(), flags or TrainingFlags()
    file = open_named(model, offline=offline)
    options = flags.data_options(_context(file, max_context, flags), on_error)
    source, held_out = _sources(file, data, eval_data, options)
    if show_batch:
        return _show(file, source)
    out = _place(out, form, lora)
    with Run.open(out, flags) as run:
        flags.check_held_out(sum(batch.tokens for batch in held_out), data, eval_data)
        run.note_data(source.survey(), held_out)
        run.note(f"model      {model}")
        run.note(f"learns     {lora.words()}")
        mode: Mode = "full" if lora.full else "lora"
        wanted = replace(flags.learner_options(options), mode=mode, lora=lora.spec(), kv=kv)
        with progress() as shown:
            learner = open_learner(file, wanted, progress=shown, planned=run.note_plan)
        facts = {"model": model, "data": str(data), **lora.facts(), **asdict(flags)}
        usual = FULL_RATE if lora.full else LORA_RATE
        done = run.train(learner, source, held_out, usual, facts, f"{model} on {data.name}")
        if run.speaks:
            done |= _write(out, file, model, learner, lora, form)
            emit(done, json=json)
    return run.exit_code


def _place(out: Path | None, form: Form, lora: LoraFlags) -> Path:
    """The folder of the run. InputError for what could not be written at its end."""
    from rebar.cli.trained_model import model_place

    if out is None:
        raise InputError("a run needs a folder to write to. Give --out.", param="out")
    if lora.full:
        model_place(out, form)
    elif form != "rebar":
        raise InputError(
            f"--as {form} is of whole models. Give --full too, or make one of the adapter with "
            f"`rebar merge MODEL {out} FOLDER --as {form}`.",
            param="as",
        )
    return out


def _context(file: ModelFile, asked: int | None, flags: TrainingFlags) -> int:
    """The longest sequence."""
    if asked is not None and asked < 1:
        raise InputError(f"--max-context {asked} is not 1 or more. Mend it.", param="max_context")
    return min(asked or flags.batch_tokens, file.config.context_length)


def _sources(
    file: ModelFile, data: Path, eval_data: Path | None, options: DataOptions
) -> tuple[TrainingBatches, list[Batch]]:
    """What is trained on, surveyed, and what is held out."""
    from rebar.dataflow.data import open_training
    from rebar.dataflow.text import ChatTemplate, Tokenizer

    if eval_data is not None and options.held_out:
        raise InputError("--eval-data and --eval-split: give one of them.", param="eval_data")
    tokenizer = Tokenizer.of(file)
    template = ChatTemplate(file.chat_template, tokenizer) if file.chat_template else None
    source, held = open_training(data, tokenizer, template, options)
    if eval_data is not None:
        whole = replace(options, epochs=1, shuffle=False)
        held, _ = open_training(eval_data, tokenizer, template, whole)
    from rebar.cli.training_run import all_batches

    return source, all_batches(held)


def _show(file: ModelFile, source: TrainingBatches) -> int:
    """The micro-batches of the first step, on a terminal in colour, elsewhere with marks."""
    from rich.console import Console

    from rebar.dataflow.data.show import show_batch
    from rebar.dataflow.text import Tokenizer

    window, tokenizer = source.next_window(), Tokenizer.of(file)
    console = Console(soft_wrap=True)
    for batch in window.batches if window is not None else ():
        for text in show_batch(batch, tokenizer, marks=not sys.stdout.isatty()):
            console.print(text)
    return 0


def _write(
    out: Path, file: ModelFile, model: str, learner: Learner, lora: LoraFlags, form: Form
) -> dict[str, str]:
    """The adapter, or the whole model."""
    from rebar.cli.trained_model import write_model
    from rebar.graph.lora import write_adapter
    from rebar.graph.parameters import dense
    from rebar.graph.weights.provenance import weights_digest

    if lora.full:
        return write_model(out, file, learner, form)
    matrices = {p.name: dense(p.value) for p in learner.parameters}
    write_adapter(out, lora.spec(), matrices, base=model, trained_on=weights_digest(file))
    return {"adapter": str(out)}
