"""A training run at the terminal: folder, ranks, progress, log, picture, and an end by Ctrl-C that
loses nothing.

The first Ctrl-C (or SIGTERM) ends the run before its next change of the parameters and saves; the
second leaves at once, with the last checkpoint.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from rebar.cli.options import format_size
from rebar.cli.output import note
from rebar.cli.run_log import RunLog, draw
from rebar.cli.training_display import Display
from rebar.errors import InputError, TrainingError

if TYPE_CHECKING:
    from rebar.cli.training_flags import TrainingFlags
    from rebar.dataflow.data import Survey, TrainingBatches
    from rebar.graph.batch import Batch
    from rebar.graph.checkpoint import CheckpointStore
    from rebar.graph.optimizer import Optimizer
    from rebar.graph.trainer import StepRecord, Trainer
    from rebar.graph.training_plan import TrainingPlan
    from rebar.graph.window import BatchSource, Trainee
    from rebar.hal.collective import Collective

B = TypeVar("B")
CHECKPOINTS = "checkpoints"
STOPPED = 130  # as a shell says it of Ctrl-C
MUCH = 100_000_000  # bytes of a checkpoint that are worth a line


@dataclass(slots=True)
class Run:
    """One run in one folder. Only the first of several ranks speaks and writes."""

    folder: Path
    flags: TrainingFlags
    ranks: Collective
    store: CheckpointStore
    log: RunLog | None = None
    plan: TrainingPlan | None = None
    exit_code: int = 0

    @classmethod
    def open(cls, folder: Path, flags: TrainingFlags) -> Run:
        """InputError for a folder that nothing can be written to, in which a run is at work, or
        that holds a run already and is not to be gone on with.
        """
        from rebar.graph.checkpoint import CheckpointStore

        ranks, trouble = joined(flags.rank_timeout), ""
        run = cls(folder, flags, ranks, CheckpointStore(folder / CHECKPOINTS, flags.keep, note))
        if ranks.rank == 0:
            try:
                run.log = RunLog(folder)
                trouble = run.refused()
            except InputError as error:
                trouble = str(error)
        # All ranks hear of it before any of them writes there.
        if told := ranks.gather_text(trouble)[0]:
            run.close()
            raise InputError(told, param="out")
        return run

    def refused(self) -> str:
        """Why the folder is not the right one; empty when it is."""
        held = self.log is not None and self.log.begun
        if held and not self.flags.resume:
            return (
                f"{self.folder} holds a run already. Give --resume to go on with it, or another "
                "--out."
            )
        if self.flags.resume and not held and not self.store.paths():
            return (
                f"{self.folder} holds no run to go on with. Look at --out, or leave out --resume."
            )
        return ""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            place = error.filename or self.folder
            raise TrainingError(
                f"{place}: {error.strerror or error}. The run ended, the last checkpoint in "
                f"{self.store.folder} is as it was. Make room or mend the folder, then go on with "
                "--resume."
            ) from error

    def close(self) -> None:
        """Also after an error: threads of an open group would abort the process."""
        if self.log is not None:
            self.log.close()
        self.ranks.close()

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
        none = f"; {survey.skipped:,} samples hold none" if survey.skipped else ""
        self.note(
            f"data       {survey.sequences:,} sequences, {survey.rows:,} tokens, "
            f"{survey.asked:,} of them learned{none}"
        )
        for remark in survey.remarks:
            self.note(f"           {remark}")
        if held_out:
            self.note(f"held out   {sum(b.tokens for b in held_out):,} tokens to be guessed")

    def note_plan(self, plan: TrainingPlan) -> None:
        """What it will take."""
        self.plan = plan
        *pools, choice = plan.lines()
        for line in (*(f"  {line}" for line in pools), choice):
            self.note(line)

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
        if self.plan is not None:
            pools = {entry.pool: entry.nbytes for entry in self.plan.entries}
            facts = dict(facts) | {"recompute": self.plan.recompute, "planned_bytes": pools}
        shown = Display(self.speaks, self.flags.units)
        trainer = self._trainer(learner, source, held_out, usual_rate, facts, shown)
        begun, first = time.perf_counter(), trainer.progress.step
        self._write("start", {"step": first} | dict(facts) | {"rate": trainer.schedule.rate})
        last: StepRecord | None = None
        with _stopping(trainer, shown), shown.until(trainer.last):
            before = self._evaluated(shown, first, trainer.begin())
            for last in trainer.run():
                self._write("step", _facts(last))
                shown.step(last)
                self._evaluated(shown, last.step, last.evaluation)
        before = None if first else before
        done = _summary(trainer, before, last, self.flags.units)
        done |= _times(time.perf_counter() - begun, trainer.progress.step - first)
        self._write("end", done)
        if self.speaks and last is not None:
            done["plot"] = str(draw(self.folder, title))
        step, best = trainer.progress.best_step, trainer.progress.best
        if self.flags.patience is not None and best is not None and not trainer.stopped:
            self.note(f"best       step {step}, held-out loss {best:.4f}: what is written")
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
        shown: Display,
    ) -> Trainer[B]:
        from rebar.graph.optimizer import Optimizer
        from rebar.graph.trainer import Trainer
        from rebar.graph.window import Share

        flags, ranks = self.flags, self.ranks
        if ranks.size > 1:
            source = Share(source, ranks.rank, ranks.size)
        last = flags.last_step(source.windows)
        optimizer = Optimizer(learner.device, learner.parameters, flags.rule(), flags.clip or None)
        schedule = flags.rates(last, usual_rate)
        self.note(f"rate       {flags.rate_words(schedule)}")
        trainer = Trainer(
            learner,
            optimizer,
            schedule,
            source,
            flags.trainer_options(last),
            held_out=held_out,
            store=self.store,
            ranks=ranks,
            provenance=dict(facts) | _versions(),
            evaluating=shown.evaluating,
        )
        self._note_checkpoints(optimizer)
        if flags.resume:
            self._resume(trainer)
        return trainer

    def _note_checkpoints(self, optimizer: Optimizer) -> None:
        """What checkpoints take on the disk, where that is much or more than there is."""
        from rebar.graph.training_state import arrays_of

        each = sum(array.nbytes for array in arrays_of(optimizer).values())
        free = shutil.disk_usage(self.folder).free if self.speaks else each
        most = each * (self.flags.keep + 1)  # a new one is whole before the oldest goes
        said = f"{format_size(each)} each, {self.flags.keep} stay; the disk has {format_size(free)}"
        if most > free:
            self.note(f"checkpoint {said}: make room for {format_size(most)}, or give --keep 1")
        elif each > MUCH:
            self.note(f"checkpoint {said}")

    def _resume(self, trainer: Trainer[Any]) -> None:
        if not self.store.paths():
            self.note("resume     from the beginning: no checkpoint was written yet")
            return
        saved = self.store.newest()
        if saved is None:
            raise InputError(
                f"{self.store.folder} holds no checkpoint that could be gone on from. Start "
                "without --resume in another --out.",
                param="resume",
            )
        trainer.resume(saved)
        self.note(f"resume     step {trainer.progress.step}, from {saved.path.name}")

    def _write(self, event: str, facts: Mapping[str, Any]) -> None:
        if self.log is not None:
            self.log.write(event, facts)

    def _evaluated(self, shown: Display, step: int, loss: float | None) -> float | None:
        """A loss on held-out data, when there is one, into the log and before the eyes."""
        if loss is not None:
            self._write("evaluation", {"step": step, "loss": loss})
            shown.evaluation(step, loss)
        return loss


def all_batches(source: TrainingBatches | None) -> list[Batch]:
    """Every micro-batch of a source to its end, for evaluation; none without one."""
    found: list[Batch] = []
    while source is not None and (window := source.next_window()) is not None:
        found += window.batches
    return found


def again(argv: Sequence[str], ranks: int = 1) -> str:
    """The command that goes on with this run, for the shell it was called from."""
    many = ["torchrun", "--nproc-per-node", str(ranks), "-m", "rebar"]
    words = [*(many if ranks > 1 else _called(argv[0])), *argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _called(program: str) -> list[str]:
    """`rebar` where the shell finds this one by that name, else the way to it."""
    if Path(program).name != "rebar":
        return [sys.executable, "-m", "rebar"]
    found = shutil.which("rebar")
    return ["rebar" if found and Path(found).resolve() == Path(program).resolve() else program]


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


def _facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(record)
    del facts["evaluation"]
    return facts


def _summary(
    trainer: Trainer[Any],
    before: float | None,
    last: StepRecord | None,
    units: str,
) -> dict[str, Any]:
    progress = trainer.progress
    facts: dict[str, Any] = {"steps": progress.step}
    if before is not None:
        facts["held_out_loss_before"] = round(before, 4)
    if progress.best is not None:
        facts |= {"held_out_loss_best": round(progress.best, 4), "best_step": progress.best_step}
    if last is not None:
        facts |= {"loss": round(last.loss, 4), "peak_rss": format_size(last.peak_rss)}
    return facts | {f"learned_{units}": progress.tokens, "skipped_samples": progress.skipped}


def _times(seconds: float, steps: int) -> dict[str, float]:
    each = {"seconds_a_step": round(seconds / steps, 3)} if steps else {}
    return {"seconds": round(seconds, 2)} | each


@contextmanager
def _stopping(trainer: Trainer[Any], shown: Display) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the trainer to end; the second of them is what it always was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        trainer.stop()
        shown.stopping()

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
