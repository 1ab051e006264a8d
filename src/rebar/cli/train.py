"""rebar train"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rebar.cli.options import Json, Offline
from rebar.cli.output import emit
from rebar.cli.targets import As
from rebar.cli.training_flags import TrainingFlags
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.graph import DecoderConfig
    from rebar.graph.batch import Batch
    from rebar.insight.bigram import Pairs

RATE = 3e-3


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFlags:
    """The model to be: a decoder of the llama family with a tied head."""

    layers: Annotated[int, Parameter(help="Layers.")] = 4
    width: Annotated[int, Parameter(help="Width of the states.")] = 192
    heads: Annotated[int, Parameter(help="Query heads.")] = 6
    kv_heads: Annotated[int, Parameter(help="Key and value heads.")] = 2
    mlp_width: Annotated[int, Parameter(help="Width inside the MLP.")] = 512
    context: Annotated[int, Parameter(help="Longest sequence.")] = 128

    def config(self, vocabulary: int) -> DecoderConfig:
        """The same as a description. InputError for sizes that no kernel has."""
        from rebar.graph import DecoderConfig, RopeConfig

        if self.layers < 1 or self.context < 1:
            raise InputError(
                f"--layers {self.layers} and --context {self.context} are 1 or more. Mend the one "
                "below.",
                param="layers",
            )
        head = self.width // max(self.heads, 1)
        whole = self.heads > 0 and head * self.heads == self.width and head % 16 == 0
        shared = self.kv_heads > 0 and self.heads % max(self.kv_heads, 1) == 0
        wide = all(size > 0 and size % 32 == 0 for size in (self.width, self.mlp_width))
        if not (whole and shared and wide):
            raise InputError(
                f"--width {self.width}, --heads {self.heads}, --kv-heads {self.kv_heads}, "
                f"--mlp-width {self.mlp_width}: heads are of a multiple of 16, widths multiples of "
                "32, and key heads divide query heads. Try --width 192 --heads 6 --kv-heads 2.",
                param="width",
            )
        return DecoderConfig(
            family="llama",
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=head,
            mlp_width=self.mlp_width,
            vocab_size=vocabulary,
            context_length=self.context,
            norm_eps=1e-5,
            rope=RopeConfig(theta=10_000.0, dim=head),
            tied_head=True,
        )


def train(
    text: Annotated[Path, Parameter(help="Plain text in UTF-8, or JSONL of documents.")],
    *,
    out: Annotated[Path, Parameter(help="Folder for the model, log and checkpoints.")],
    tokenizer: Annotated[
        str, Parameter(help="bytes, bpe:SIZE learned from TEXT, or a model to take it from.")
    ] = "bpe:1024",
    form: As = "rebar",
    size: SizeFlags | None = None,
    flags: TrainingFlags | None = None,
    json: Json = False,
    offline: Offline = False,
) -> int:
    """Train a small model from nothing on a text.

    OUT gets model.rebar, which generate and serve open, log.jsonl, loss.svg and checkpoints. A
    twentieth of the text is held out unless --eval-split says otherwise; its loss stands beside
    that of a bigram model, which knows pairs of neighbouring tokens and nothing else.
    """
    from rebar.cli.trained_model import model_place, write_model
    from rebar.cli.training_run import Run, all_batches
    from rebar.dataflow.data import open_training
    from rebar.dataflow.text import Tokenizer
    from rebar.graph.learner import open_learner
    from rebar.graph.weights.fresh import fresh_model
    from rebar.insight.bigram import bigram_loss

    size, flags = size or SizeFlags(), flags or TrainingFlags()
    tables = _vocabulary(text, tokenizer, offline=offline)
    words = Tokenizer(tables)
    config = size.config(words.vocab_size)
    options = flags.data_options(size.context, held_out=0.05)
    source, held = open_training(text, words, None, options)
    held_out = all_batches(held)
    once, _ = open_training(text, words, None, replace(options, epochs=1, shuffle=False))
    if not held_out:
        raise InputError(
            f"{text} is too short: a share of {options.held_out:g} is held out, and has no two "
            "tokens. Give a longer text, a larger --eval-split or a shorter --context.",
            param="eval_split",
        )
    model_place(out, form)
    with Run.open(out, flags) as run:
        run.note_data(source.survey(), held_out)
        bigram = 0.0
        if run.speaks:  # it may take a while, and one who knows is enough
            bigram = bigram_loss(_pairs(all_batches(once)), _pairs(held_out), words.vocab_size)
        run.note(f"bigram     held-out loss {bigram:.4f}: what pairs of tokens alone give away")
        file = fresh_model(config, tables, seed=flags.seed, name=out.resolve().name)
        learner = open_learner(file, flags.learner_options(options), planned=run.note_plan)
        run.note(f"model      {learner.parameters.count:,} parameters, {words.vocab_size} tokens")
        facts = {"text": str(text), "tokenizer": tokenizer, **asdict(size), **asdict(flags)}
        done = run.train(learner, source, held_out, RATE, facts, f"{text.name}, from nothing")
        if run.speaks:
            done["bigram_held_out_loss"] = round(bigram, 4)
            done |= write_model(out, file, learner, form)
            emit(done, json=json)
    return run.exit_code


def _vocabulary(text: Path, wanted: str, *, offline: bool) -> bytes:
    """The tables of the tokenizer that --tokenizer means."""
    from rebar.cli.models import open_named
    from rebar.cli.settings import places
    from rebar.dataflow.data.open import texts_in
    from rebar.dataflow.text import build_vocabulary
    from rebar.dataflow.text.learn_bpe import learn_bpe

    kind, _, size = wanted.partition(":")
    if wanted == "bytes" or (kind == "bpe" and size.isdigit()):
        try:
            words = "\n".join(texts_in(text, places().cache)) if kind == "bpe" else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{text} cannot be read as UTF-8: {error}. Check the file.") from error
        return build_vocabulary(learn_bpe(words, int(size or 257)))
    file = open_named(wanted, offline=offline)
    assert file.vocabulary is not None, "a converted model has its tables"
    return bytes(file.vocabulary)


def _pairs(batches: list[Batch]) -> Pairs:
    """Every id and the one that follows it."""
    import numpy as np

    sequences = [pair for batch in batches for pair in batch.sequences]
    return np.concatenate([a for a, _ in sequences]), np.concatenate([b for _, b in sequences])
