"""Trainer: windows in, steps of the optimizer out, and everything that makes a run one that can be
stopped, followed and trusted.

The law of a window: scale = 1 / (its supervised tokens, over all micro-batches and all ranks), so
that a token weighs the same however the window was cut; the reported loss is the mean over the same
tokens. A window without any changes nothing and is no step. When no window had any, or too many in
a row have none, the run is an error. What is saved is the state between two steps: a run that goes
on from it computes the same bits, and evaluates at the same steps, as one that was never stopped.

Ranks: each takes windows of its own; a step ends when all have given their gradients. A rank whose
data is at its end adds nothing and keeps stepping until that of all is. They must be one run: at
the start and at each checkpoint they compare settings and the digests of their parameters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from rebar.errors import GradientExplosionError, InputError, TrainingError
from rebar.graph import training_state
from rebar.graph.checkpoint import CheckpointStore, Kind
from rebar.graph.checkpoint_file import Saved
from rebar.graph.explosion import Quiet
from rebar.graph.optimizer import Optimizer
from rebar.graph.ranks import Brought, brought, check_one_run, told
from rebar.graph.schedules import Schedule
from rebar.graph.training_state import Progress
from rebar.graph.window import BatchSource, Learns, Searches, Window
from rebar.hal import processes
from rebar.hal.collective import Alone, Collective

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """steps: most of them, None to the end of the data. evaluate_every, checkpoint_every: steps
    between two, 0 for the end alone. patience: evaluations in a row that may bring nothing better
    before the run ends with the best; None for any number. seed: part of what is saved.
    empty_windows: those in a row without a supervised token after which the run gives up: a source
    may have no end.
    """

    steps: int | None = None
    evaluate_every: int = 0
    patience: int | None = None
    checkpoint_every: int = 0
    seed: int = 0
    empty_windows: int = 10_000

    def __post_init__(self) -> None:
        counts = [1 if self.steps is None else self.steps, self.empty_windows]
        if min(counts) < 1 or min(self.evaluate_every, self.checkpoint_every) < 0:
            raise InputError(
                f"{self.steps} steps, an evaluation every {self.evaluate_every} and a checkpoint "
                f"every {self.checkpoint_every}: a run has 1 step or more; 0 between two means at "
                "the end alone.",
                param="steps",
            )
        if self.patience is not None and not (self.patience > 0 and self.evaluate_every > 0):
            raise InputError(
                f"a patience of {self.patience} with an evaluation every {self.evaluate_every} "
                "steps. Give both --patience and --eval-every 1 or more.",
                param="patience",
            )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. loss: nats a supervised token, before the step's change. tokens: supervised, of all
    ranks. gradient_norm: before clipping. seconds: of the step, without evaluation.
    tokens_per_second: all positions computed. evaluation: loss on held-out data after it, when it
    was due. left: seconds to the last step at the pace so far, None when unknown. skipped: samples
    without a supervised token, since the run began. samples: this rank's. Memory in bytes.
    silent: parameters that got no gradient.
    """

    step: int
    loss: float
    tokens: int
    rate: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    left: float | None
    skipped: int
    peak_rss: int
    pools: int
    samples: tuple[int, ...]
    evaluation: float | None = None
    silent: tuple[str, ...] = ()


class Trainer(Generic[B]):
    """Trains `learner` with `optimizer` on `source`. held_out: what evaluations read. store: where
    checkpoints go. provenance: what the caller wants to find in them, plain values. evaluating:
    told (done, in all) batches of an evaluation.
    """

    def __init__(
        self,
        learner: Learns[B],
        optimizer: Optimizer,
        schedule: Schedule,
        source: BatchSource[B],
        options: TrainerOptions | None = None,
        *,
        held_out: Sequence[B] = (),
        store: CheckpointStore | None = None,
        ranks: Collective | None = None,
        provenance: Mapping[str, Any] | None = None,
        evaluating: Callable[[int, int], None] = lambda *_: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.learner = learner
        self.optimizer = optimizer
        self.schedule = schedule
        self.source = source
        self.options = options or TrainerOptions()
        self.held_out = held_out
        self.store = store
        self.ranks: Collective = ranks or Alone()
        self.provenance = dict(provenance or {})
        self.progress = Progress()
        self.stopped = False
        self._quiet = Quiet()
        self._evaluating = evaluating
        self._clock = clock
        self._begun = clock()  # when this process began to make steps
        self._made = 0
        self._saved = -1
        if self.options.patience is not None and (store is None or not held_out):
            raise InputError(
                "to end with the best there must be held-out data and a folder to keep it in. "
                "Give --eval-data or --eval-split, and --out.",
                param="patience",
            )

    def stop(self) -> None:
        """Asks the run to end before its next change of the parameters (from a signal handler)."""
        self.stopped = True

    def begin(self) -> float | None:
        """The evaluation that comes before the steps: of what nothing has changed yet, or the one
        that a stop cut short. None when none is due.
        """
        self._check_ranks()
        if self.progress.owed:
            self._saved = -1
            return self._judged()
        return self.evaluate() if self.held_out and not self.progress.step else None

    def run(self) -> Iterator[StepRecord]:
        """Makes the steps; a record each. Saves at the end, and when it was asked to stop.
        InputError when no token of the data is supervised, or none of too many windows in a row.
        """
        self._check_ranks()
        self._begun = self._clock()
        while not self._enough():
            record = self._step()
            if record is None:
                break
            yield record
            if self._due(self.options.checkpoint_every):
                self.save()
        if not self.progress.step and not self.stopped:
            raise InputError(
                f"no token of the data is supervised: all {self.progress.skipped} samples were "
                "skipped. Look at it with --show-batch: answers may be cut off by --max-context, "
                "or no message is the assistant's."
            )
        if self._saved != self.progress.step:
            self.save()
        if self.options.patience is not None and not self.stopped:
            self._take_best()

    def _check_ranks(self) -> None:
        more = {"options": asdict(self.options), "held out batches": len(self.held_out)}
        check_one_run(self.ranks, self._fixed() | more, self.progress.step, self.optimizer)

    def _enough(self) -> bool:
        patience, most = self.options.patience, self.options.steps
        waited = patience is not None and self.progress.waited >= patience
        return waited or (most is not None and self.progress.step >= most)

    def _due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def _step(self) -> StepRecord | None:
        """The next step; None at the end of the data or when asked to stop. A window that was not
        carried through is given back to the source.
        """
        for _ in range(self.options.empty_windows):
            begin, before = self._clock(), self.source.position
            window = None if self.stopped else self.source.next_window()
            share = brought(self.ranks, window, self.stopped)
            total = None
            if not share.stopped and not share.ended and share.supervised:
                total = self._gradients(window, share.supervised)
            self.stopped |= share.stopped
            if self.stopped and total is None:
                self.source.restore(before)
                return None
            if share.ended:
                return None
            self.progress.skipped += share.skipped
            if total is not None:
                return self._change(total, share, window, begin)
        if self.progress.step and self._saved != self.progress.step:
            self.save()
        raise InputError(
            f"{self.options.empty_windows:,} windows in a row hold no supervised token: "
            f"{self.progress.skipped:,} samples were skipped so far, after {self.progress.step:,} "
            "steps. Look at the data with --show-batch, or give a source that ends."
        )

    def _gradients(self, window: Window[B] | None, supervised: int) -> float | None:
        """Adds the gradients of a window, of all ranks; the sum of its losses. None when the run
        was asked to stop in the middle, with gradients zero (ranks end what they began).
        """
        total, tokens, due = 0.0, 0, window.supervised if window else 0
        for batch in window.batches if window else ():
            if self.stopped and self.ranks.size == 1:
                self.optimizer.parameters.gradients.fill(0)
                return None
            loss = self.learner.run(batch, 1.0 / supervised)
            total += loss.total
            tokens += loss.tokens
        if tokens != due:
            raise TrainingError(
                f"step {self.progress.step + 1}: {tokens} tokens were supervised where the source "
                f"had counted {due}. This is a fault of the source."
            )
        self.ranks.add(self.optimizer.parameters.gradients)
        return sum(self.ranks.gather(total))

    def _change(
        self, total: float, share: Brought, window: Window[B] | None, begin: float
    ) -> StepRecord:
        """The optimizer's part of a step, and what is to be told of it."""
        progress, samples = self.progress, window.samples if window else ()
        loss, rate = total / share.supervised, self.schedule.at(progress.step)
        if not math.isfinite(loss):
            self._search(window, share)
            raise TrainingError(
                f"step {progress.step + 1}: the loss is {loss}. Nothing was changed. Give a "
                f"smaller --rate, or look at samples {', '.join(map(str, samples[:8]))}."
            )
        silent = self._quiet.check(self.optimizer.gradients(), progress.step + 1)
        try:
            norm = self.optimizer.step(rate)
        except GradientExplosionError:
            self._search(window, share)
            raise
        progress.step += 1
        progress.tokens += share.supervised
        seconds = self._clock() - begin
        self._made += 1
        return StepRecord(
            step=progress.step,
            loss=loss,
            tokens=share.supervised,
            rate=rate,
            gradient_norm=norm,
            seconds=seconds,
            tokens_per_second=share.tokens / seconds if seconds > 0 else 0.0,
            left=self._left(),
            skipped=progress.skipped,
            peak_rss=processes.peak_resident_bytes(),
            pools=self.optimizer.device.stats().used,
            samples=samples,
            evaluation=self._judged() if self._evaluation_due() else None,
            silent=silent,
        )

    def _search(self, window: Window[B] | None, share: Brought) -> None:
        """Raises the error that names the node at which the step went wrong, where the learner can
        find it in this rank's share of the window.
        """
        if isinstance(self.learner, Searches) and window is not None:
            step, scale = self.progress.step + 1, 1.0 / share.supervised
            found = self.learner.find_explosion(window.batches, scale, step)
            if not math.isfinite(found.magnitude):
                raise found

    @property
    def last(self) -> int | None:
        """The last step there can be; None when nobody knows."""
        known = [n for n in (self.options.steps, self.source.windows) if n is not None]
        return min(known, default=None)

    def _left(self) -> float | None:
        if self.last is None:
            return None
        # By the clock, not by the steps alone: evaluations and checkpoints take time too.
        spent = self._clock() - self._begun
        return max(self.last - self.progress.step, 0) * spent / self._made

    def evaluate(self) -> float | None:
        """Mean loss on the held-out data, nats a supervised token; None when a stop was asked for
        in the middle. Ranks share the batches; losses are added in the order of batches, whoever
        computed them.
        """
        mine = self.held_out[self.ranks.rank :: self.ranks.size]
        losses: list[tuple[float, int]] = []
        for batch in mine:
            if self.stopped:
                break
            loss = self.learner.evaluate(batch)
            losses.append((loss.total, loss.tokens))
            self._evaluating(len(losses), len(mine))
        every = told(self.ranks, (losses, len(losses) < len(mine)))
        if any(cut for _, cut in every):
            self.stopped = True
            return None
        count = self.ranks.size
        ordered = [every[i % count][0][i // count] for i in range(len(self.held_out))]
        if not (tokens := sum(number for _, number in ordered)):
            raise InputError(
                "no token of the held-out data is supervised. Hold out more, or name other "
                "--eval-data.",
                param="eval_data",
            )
        return sum(total for total, _ in ordered) / tokens

    def _evaluation_due(self) -> bool:
        last = self.progress.step == self.last
        return bool(self.held_out) and (last or self._due(self.options.evaluate_every))

    def _judged(self) -> float | None:
        """The loss on held-out data, and what follows from it. Cut short, it is owed."""
        loss, progress = self.evaluate(), self.progress
        progress.owed = loss is None
        if loss is None:
            return None
        if math.isfinite(loss) and (progress.best is None or loss < progress.best):
            progress.best, progress.best_step, progress.waited = loss, progress.step, 0
            if self.options.patience is not None:
                self.save("best")
        else:
            progress.waited += 1
        return loss

    def save(self, kind: Kind = "checkpoint") -> None:
        """Writes a checkpoint (`best`: the parameters alone). Rank 0 writes, all wait for it."""
        if self.store is None:
            return
        self._check_ranks()
        positions = told(self.ranks, dict(self.source.position))
        trouble = ""
        if self.ranks.rank == 0:
            state = training_state.state_of(
                self._fixed(), self.progress, self.optimizer, positions, self.provenance
            )
            arrays = training_state.arrays_of(self.optimizer, states=kind == "checkpoint")
            try:
                self.store.save(self.progress.step, state, arrays, kind)
            except TrainingError as error:
                trouble = str(error)
        if said := next((text for text in self.ranks.gather_text(trouble) if text), ""):
            raise TrainingError(said)
        if kind == "checkpoint":
            self._saved = self.progress.step

    def resume(self, saved: Saved) -> None:
        """Goes on where a checkpoint was saved. TrainingError when it is of another run."""
        fixed = self._fixed()
        self.progress = training_state.restore(saved, fixed, self.optimizer)
        self.source.restore(saved.state["positions"][self.ranks.rank])
        self._saved = self.progress.step

    def _fixed(self) -> dict[str, Any]:
        return training_state.fixed_of(
            self.learner.settings,
            self.optimizer,
            self.schedule,
            self.source.digest,
            self.ranks.size,
            self.options.seed,
        )

    def _take_best(self) -> None:
        """The parameters of the best evaluation; where its file is gone, those of the last step."""
        assert self.store is not None, "patience asks for a store"
        best = self.store.newest("best")
        if best is not None and best.state["progress"]["step"] == self.progress.best_step:
            training_state.put_arrays(best, {"values": self.optimizer.parameters.values})
        elif self.progress.best is not None:
            self.store.warn(
                f"the parameters of step {self.progress.best_step}, the best, are not in "
                f"{self.store.folder} any more: those of the last step are kept."
            )
