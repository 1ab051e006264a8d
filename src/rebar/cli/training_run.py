"""A training run at the terminal: folder, ranks, progress, log, picture, and an end by Ctrl-C that
loses nothing.

The first Ctrl-C (or SIGTERM) ends the run before its next change of the parameters and saves; the
second leaves at once, with the last checkpoint.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from rebar.cli.options import format_size
from rebar.cli.output import note, progress
from rebar.cli.run_log import LOG, RunLog, draw
from rebar.cli.training_display import Display
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.cli.training_flags import TrainingFlags
    from rebar.dataflow.data import Survey, TrainingBatches
    from rebar.graph.batch import Batch
    from rebar.graph.checkpoint import CheckpointStore
    from rebar.graph.learner import Learner
    from rebar.graph.trainer import StepRecord, Trainer
    from rebar.graph.weights import ModelFile
    from rebar.graph.window import BatchSource, Trainee
    from rebar.hal.collective import Collective

B = TypeVar("B")
CHECKPOINTS = "checkpoints"
STOPPED = 130  # as a shell says it of Ctrl-C


@dataclass(slots=True)
class Run:
    """One run in one folder. Only the first of several ranks speaks and writes."""

    folder: Path
    flags: TrainingFlags
    ranks: Collective
    store: CheckpointStore
    held: ExitStack
    exit_code: int = 0

    @classmethod
    def open(cls, folder: Path, flags: TrainingFlags) -> Run:
        """InputError for a folder that holds a run already, unless it is to be gone on with, and
        for one in which another process trains now.
        """
        from rebar.graph.checkpoint import CheckpointStore

        ranks, held = joined(flags.rank_timeout), ExitStack()
        held.callback(ranks.close)  # or threads of an open group would abort the process
        try:
            trouble = _taken(folder, flags, held) if ranks.rank == 0 else ""
            # All ranks hear of it before any of them writes there.
            if told := ranks.gather_text(trouble)[0]:
                raise InputError(told, param="out")
        except BaseException:
            held.close()
            raise
        store = CheckpointStore(folder / CHECKPOINTS, flags.keep, note)
        return cls(folder, flags, ranks, store, held)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    @property
    def speaks(self) -> bool:
        """Whether this is the rank that does."""
        return self.ranks.rank == 0

    def note(self, line: str) -> None:
        """A line, said once."""
        if self.speaks:
            note(line)

    def note_data(self, survey: Survey, held_out: Sequence[Batch]) -> None:
        """What there is to learn from."""
        self.note(
            f"data       {survey.sequences:,} sequences, {survey.rows:,} tokens, "
            f"{survey.asked:,} of them learned; {survey.skipped:,} samples hold none"
        )
        for remark in survey.remarks:
            self.note(f"           {remark}")
        if held_out:
            self.note(f"held out   {sum(b.tokens for b in held_out):,} tokens to be guessed")

    def train(
        self,
        learner: Trainee[B],
        source: BatchSource[B],
        held_out: Sequence[B],
        usual_rate: float,
        facts: Mapping[str, Any],
        title: str,
    ) -> dict[str, Any]:
        """Trains to the end, or until somebody stops it; the facts of the run."""
        pools = learner.device.stats().pools
        self.note(f"memory     {', '.join(f'{p.name} {format_size(p.budget)}' for p in pools)}")
        trainer = self._trainer(learner, source, held_out, usual_rate, facts)
        log = RunLog(self.folder) if self.speaks else None
        begun, first = time.perf_counter(), trainer.progress.step
        last: StepRecord | None = None
        try:
            with _stopping(trainer), Display(trainer.last, self.speaks) as shown:
                _write(log, "start", {"step": first} | dict(facts))
                before = trainer.evaluate() if held_out and not first else None
                shown.evaluation(0, _evaluated(log, 0, before))
                for last in trainer.run():
                    _write(log, "step", _facts(last))
                    shown.step(last)
                    shown.evaluation(last.step, _evaluated(log, last.step, last.evaluation))
            done = _summary(trainer, first, before, last, time.perf_counter() - begun)
            _write(log, "end", done)
        finally:
            if log is not None:
                log.close()
        if self.speaks and last is not None:
            done["plot"] = str(draw(self.folder, title))
        if trainer.stopped:
            self.exit_code = STOPPED
            step = trainer.progress.step
            command = again(sys.argv, self.ranks.size)
            self.note(f"stopped    at step {step}, saved. Go on with:\n  {command}")
        return done

    def _trainer(
        self,
        learner: Trainee[B],
        source: BatchSource[B],
        held_out: Sequence[B],
        usual_rate: float,
        facts: Mapping[str, Any],
    ) -> Trainer[B]:
        from rebar.graph.optimizer import Optimizer
        from rebar.graph.trainer import Trainer
        from rebar.graph.window import Share

        flags, ranks = self.flags, self.ranks
        if ranks.size > 1:
            source = Share(source, ranks.rank, ranks.size)
        last = flags.last_step(source.windows)
        optimizer = Optimizer(learner.device, learner.parameters, flags.rule(), flags.clip or None)
        trainer = Trainer(
            learner,
            optimizer,
            flags.rates(last, usual_rate),
            source,
            flags.trainer_options(last),
            held_out=held_out,
            store=self.store,
            ranks=ranks,
            provenance=dict(facts) | _versions(),
        )
        if flags.resume:
            self._resume(trainer)
        return trainer

    def _resume(self, trainer: Trainer[Any]) -> None:
        saved = self.store.newest()
        if saved is None:
            raise InputError(
                f"{self.store.folder} holds no checkpoint that could be gone on from. Start "
                "without --resume in another --out.",
                param="resume",
            )
        trainer.resume(saved)
        self.note(f"resume     step {trainer.progress.step}, from {saved.path.name}")


def all_batches(source: TrainingBatches | None) -> list[Batch]:
    """Every micro-batch of a source to its end, for evaluation; none without one."""
    found: list[Batch] = []
    while source is not None and (window := source.next_window()) is not None:
        found += window.batches
    return found


def write_model(folder: Path, file: ModelFile, learner: Learner) -> dict[str, str]:
    """Writes the trained model to FOLDER/model.rebar, ready to be opened."""
    from rebar.graph.weights import write_rebar
    from rebar.graph.weights.fresh import trained_model

    path, origin = folder / "model.rebar", {"tool": "rebar", "source": file.name}
    assert file.vocabulary is not None, "a converted model has its tables"
    with progress() as shown:
        whole = trained_model(file, learner.parameters)
        tables = bytes(file.vocabulary)
        write_rebar(whole, path, vocabulary=tables, provenance=origin, progress=shown)
    return {"model": str(path), "size": format_size(path.stat().st_size)}


def _taken(folder: Path, flags: TrainingFlags, held: ExitStack) -> str:
    """Takes the folder for this run, until `held` is closed; what is against it."""
    from rebar.hal.files import locked

    if (folder / LOG).exists() and not flags.resume:
        return f"{folder} holds a run already. Give --resume to go on with it, or another --out."
    try:
        held.enter_context(locked(folder / CHECKPOINTS / ".run.lock", wait=False))
    except BlockingIOError:
        return f"another process trains in {folder} now. Wait for its end, or give another --out."
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror}. Give --out another folder."
    return ""


def again(argv: Sequence[str], ranks: int = 1) -> str:
    """The command that goes on with this run."""
    words = ["rebar", *argv[1:]]
    if ranks > 1:
        words = ["torchrun", "--nproc-per-node", str(ranks), "-m", *words]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def joined(timeout: float) -> Collective:
    """The group of processes that torchrun's variables describe; alone without them."""
    from rebar.hal.collective import Place, join

    env = os.environ
    env.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # errors come as ours, not as its stack frames
    try:
        rank, size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        port = int(env.get("MASTER_PORT", "29500"))
    except ValueError as error:
        raise InputError(
            f"RANK, WORLD_SIZE or MASTER_PORT is no number ({error}). Set them as torchrun does, "
            "or none of them."
        ) from error
    return join(Place(rank, size, env.get("MASTER_ADDR", "127.0.0.1"), port), timeout)


def _versions() -> dict[str, str]:
    """What computed, for the checkpoint."""
    return {
        "rebar": metadata.version("rebar-llm"),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "command": shlex.join(["rebar", *sys.argv[1:]]),
    }


def _write(log: RunLog | None, event: str, facts: Mapping[str, Any]) -> None:
    if log is not None:
        log.write(event, facts)


def _evaluated(log: RunLog | None, step: int, loss: float | None) -> float | None:
    if loss is not None:
        _write(log, "evaluation", {"step": step, "loss": loss})
    return loss


def _facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(record)
    del facts["evaluation"]
    return facts


def _summary(
    trainer: Trainer[Any],
    first: int,
    before: float | None,
    last: StepRecord | None,
    seconds: float,
) -> dict[str, Any]:
    progress = trainer.progress
    made = progress.step - first
    facts: dict[str, Any] = {"steps": progress.step}
    if before is not None:
        facts["held_out_loss_before"] = round(before, 4)
    if progress.best is not None:
        facts |= {"held_out_loss_best": round(progress.best, 4), "best_step": progress.best_step}
    if last is not None:
        facts |= {"loss": round(last.loss, 4), "peak_rss": format_size(last.peak_rss)}
    facts |= {"learned_tokens": progress.tokens, "skipped_samples": progress.skipped}
    facts |= {"seconds": round(seconds, 2)}
    if made:
        facts["seconds_a_step"] = round(seconds / made, 3)
    return facts


@contextmanager
def _stopping(trainer: Trainer[Any]) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the trainer to end; the second of them is what it always was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        trainer.stop()
        note("stopping: saves a checkpoint first (once more: leaves at once)")

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
