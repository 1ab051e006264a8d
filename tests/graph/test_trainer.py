"""The trainer on a line through points: what it promises of windows, masks, resuming and ending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rebar.errors import InputError, TrainingError
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.optimizer import AdamW, Optimizer, Rule, Sgd
from rebar.graph.schedules import Schedule, ScheduleName
from rebar.graph.trainer import StepRecord, Trainer, TrainerOptions
from rebar.graph.window import Share, Window
from tests.graph.harness import open_device
from tests.graph.line import Line, Points, Source, points


def trainer(
    source: Source,
    options: TrainerOptions | None = None,
    *,
    folder: Path | None = None,
    held_out: Sequence[Points] = (),
    rule: Rule | None = None,
    rate: float = 0.05,
) -> Trainer[Points]:
    line = Line()
    optimizer = Optimizer(open_device("cpu:scalar:1"), line.parameters, rule or AdamW())
    store = CheckpointStore(folder) if folder is not None else None
    kind: ScheduleName = "constant" if source.windows is None else "cosine"
    schedule = Schedule(kind, rate, steps=source.windows, warmup=3)
    return Trainer(line, optimizer, schedule, source, options, held_out=held_out, store=store)


def values(made: Trainer[Points]) -> bytes:
    p = made.optimizer.parameters
    return p.values.tobytes() + p.m.tobytes() + p.v.tobytes()


def facts(record: StepRecord) -> tuple[object, ...]:
    """What does not depend on the clock."""
    r = record
    return r.step, r.loss, r.tokens, r.rate, r.gradient_norm, r.skipped, r.samples, r.evaluation


def test_it_learns() -> None:
    made = trainer(Source(points(64), epochs=60))
    records = list(made.run())
    assert records[-1].loss < records[0].loss / 100
    assert [r.step for r in records] == list(range(1, 60 * 16 + 1))
    assert records[0].left is not None
    assert records[-1].left == 0
    assert records[0].peak_rss > 10 << 20


def test_a_parameter_that_gets_no_gradient_is_named_in_every_step() -> None:
    """Four such steps in a row are an error; of one to three nothing was said."""
    data = points(32)
    data.x[:] = 0.0
    assert {record.silent for record in trainer(Source(points(32))).run()} == {()}
    some = trainer(Source(data), TrainerOptions(steps=3))
    assert [record.silent for record in some.run()] == [("weight",)] * 3
    with pytest.raises(TrainingError, match="step 4: no gradient has reached weight"):
        list(trainer(Source(data)).run())


@pytest.mark.parametrize("micro", [8, 4, 2, 1])
def test_a_window_is_one_whatever_it_was_cut_into(micro: int) -> None:
    """A-j1: means of means, and losses multiplied by the number of micro-batches, are the classic.
    Eight samples of which some are not asked (A-j2: alone in their micro-batch, too); sums go on
    from one micro-batch to the next in the same order, so that even the bits are equal.
    """
    data = points(8, asked=[True, False, True, True, False, False, True, True])
    whole, cut = trainer(Source(data, 8, 8)), trainer(Source(data, 8, micro))
    (a,), (b,) = whole.run(), cut.run()
    assert facts(a) == facts(b)
    assert values(whole) == values(cut)
    assert a.tokens == 5
    line = Line()
    direct = line.evaluate(data)
    assert a.loss == pytest.approx(direct.total / 5, rel=1e-6)  # another order of the same points


def test_the_last_window_weighs_its_own_tokens() -> None:
    """A-j1: ten samples in windows of four: the last has two, each of weight 1/2."""
    made = trainer(Source(points(10), window=4), rule=Sgd(), rate=0.0001)
    records = list(made.run())
    assert [r.tokens for r in records] == [4, 4, 2]
    fresh = Line()
    last = points(10)
    chosen = list(records[2].samples)
    mean = fresh.evaluate(Points(last.x[chosen], last.y[chosen])).total / 2
    assert records[2].loss == pytest.approx(mean, rel=1e-2)  # the line has moved a little


def test_a_window_without_supervision_is_no_step() -> None:
    """A-j2: 0/0 poisons all weights. One such micro-batch in a window adds nothing; one such window
    changes nothing, not even by decay, and is counted.
    """
    data = points(12, asked=[False] * 4 + [True] * 8)
    made = trainer(Source(data, window=1, micro=1))
    records = list(made.run())
    assert len(records) == 8
    assert made.progress.skipped == 4
    order = [s for r in records for s in r.samples]
    assert sorted(order) == list(range(4, 12))
    asked = Points(data.x[order], data.y[order])
    alone = trainer(Source(asked, window=1, micro=1, seed=None))
    alone.schedule = made.schedule
    list(alone.run())
    assert values(alone) == values(made)


def test_data_without_any_supervision_is_an_error(tmp_path: Path) -> None:
    """A-j2: a run that learned nothing once ended as a success."""
    made = trainer(Source(points(6, asked=[False] * 6)), folder=tmp_path)
    before = values(made)
    with pytest.raises(InputError, match="all 6 samples were skipped"):
        list(made.run())
    assert values(made) == before
    assert CheckpointStore(tmp_path).newest() is None


def test_an_empty_source_is_an_error() -> None:
    with pytest.raises(InputError, match="no token of the data is supervised"):
        list(trainer(Source(points(0), epochs=0)).run())


@pytest.mark.parametrize("rule", [AdamW(), Sgd(momentum=0.9)])
@pytest.mark.parametrize("stop", [10, 16, 21])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    tmp_path: Path, stop: int, rule: Rule
) -> None:
    """A-j3: 64 samples, batches of 4, two epochs; stopped at step 10, at the seam, and at 21."""
    held = [points(7, seed=9)]
    options = TrainerOptions(evaluate_every=5, checkpoint_every=3)
    source = Source(points(64), epochs=2, micro=2)
    whole = trainer(source, options, held_out=held, rule=rule)
    expected = [facts(r) for r in whole.run()]

    def fresh() -> Trainer[Points]:
        copy = replace(source, at=[0, 0])
        return trainer(copy, options, folder=tmp_path, held_out=held, rule=rule)

    first, told = fresh(), []
    for record in first.run():
        told.append(facts(record))
        if record.step == stop:
            first.stop()
    assert len(told) == stop
    second = fresh()
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    second.resume(saved)
    told += [facts(r) for r in second.run()]
    assert told == expected
    assert values(second) == values(whole)
    each = [s for _, *_, samples, _ in expected for s in samples]  # type: ignore[attr-defined]
    assert sorted(each[:64]) == sorted(each[64:]) == list(range(64))
    assert each[:64] != each[64:]


def test_a_stop_in_the_middle_of_a_window_gives_it_back(tmp_path: Path) -> None:
    source = Source(points(64), window=8, micro=1)
    whole = trainer(replace(source, at=[0, 0]))
    list(whole.run())
    made = trainer(source, folder=tmp_path)
    line = made.learner
    assert isinstance(line, Line)
    run, calls = line.run, []

    def stopping(batch: Points, scale: float) -> object:
        calls.append(scale)
        if len(calls) == 21:  # the fifth of the third window
            made.stop()
        return run(batch, scale)

    line.run = stopping  # type: ignore[method-assign, assignment]
    assert [r.step for r in made.run()] == [1, 2]
    assert not made.optimizer.parameters.gradients.any()
    second = trainer(replace(source, at=[0, 0]), folder=tmp_path)
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    assert saved.state["positions"] == [{"epoch": 0, "place": 16}]
    second.resume(saved)
    list(second.run())
    assert values(second) == values(whole)


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    source = Source(points(8))
    list(trainer(source, folder=tmp_path).run())
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    other = trainer(Source(points(8), seed=1), rate=0.1)
    before = values(other)
    with pytest.raises(TrainingError, match=r"/1/0, is 8/4/4/1/1; schedule rate was 0.05, is 0.1"):
        other.resume(saved)
    with pytest.raises(TrainingError, match=r"optimizer\[0\] was AdamW, is Sgd"):
        trainer(Source(points(8)), rule=Sgd()).resume(saved)
    assert values(other) == before


def test_patience_ends_a_run_with_its_best(tmp_path: Path) -> None:
    """Held out: points of another line, which the fit first nears and then leaves."""
    apart = points(32, seed=3)
    held = [Points(apart.x, apart.y * np.float32(0.5))]
    options = TrainerOptions(evaluate_every=2, patience=3)
    made = trainer(Source(points(64), epochs=40), options, folder=tmp_path, held_out=held)
    records = list(made.run())
    curve = {r.step: r.evaluation for r in records if r.evaluation is not None}
    best = min(curve, key=lambda step: curve[step])
    assert records[-1].step == best + 6
    assert made.progress.best_step == best
    assert made.evaluate() == curve[best]
    after = CheckpointStore(tmp_path).newest()
    assert after is not None
    assert after.state["progress"]["step"] == best + 6  # what is gone on from is the last


def test_a_stop_cuts_an_evaluation_short_and_it_is_made_first_when_it_goes_on(
    tmp_path: Path,
) -> None:
    """A stop waited for the end of an evaluation, which may take minutes. Left out for good it
    would change when a run with patience ends: it is owed, and made before the next step.
    """
    held = [points(3, seed=seed) for seed in range(4)]
    options = TrainerOptions(evaluate_every=2, patience=3)
    whole = trainer(Source(points(64)), options, folder=tmp_path / "whole", held_out=held)
    expected = [(r.step, r.evaluation) for r in whole.run()]

    first = trainer(Source(points(64)), options, folder=tmp_path / "cut", held_out=held)
    line, asked = first.learner, []
    assert isinstance(line, Line)
    evaluate = line.evaluate

    def stopping(batch: Points) -> object:
        asked.append(batch)
        if len(asked) == 6:  # the second batch of the evaluation after step 4
            first.stop()
        return evaluate(batch)

    line.evaluate = stopping  # type: ignore[method-assign, assignment]
    told = [(r.step, r.evaluation) for r in first.run()]
    assert told == [*expected[:3], (4, None)]
    assert len(asked) == 6
    second = trainer(Source(points(64)), options, folder=tmp_path / "cut", held_out=held)
    saved = CheckpointStore(tmp_path / "cut").newest()
    assert saved is not None
    second.resume(saved)
    assert (4, second.begin()) == expected[3]
    assert second.begin() is None
    assert [(r.step, r.evaluation) for r in second.run()] == expected[4:]
    assert second.progress == whole.progress
    assert values(second) == values(whole)


def test_a_stop_before_the_first_step_is_no_evaluation(tmp_path: Path) -> None:
    made = trainer(Source(points(8)), folder=tmp_path, held_out=[points(3)])
    assert made.begin() == made.evaluate()
    made.stop()
    assert made.begin() is None
    assert list(made.run()) == []
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    assert saved.state["progress"]["step"] == 0


def test_held_out_data_without_supervision_is_no_loss_of_zero() -> None:
    made = trainer(Source(points(8)), held_out=[points(3, asked=[False] * 3)])
    with pytest.raises(InputError, match="no token of the held-out data is supervised"):
        made.begin()


@pytest.mark.parametrize("good", [0, 3])
def test_a_source_without_end_and_without_supervision_is_given_up(
    tmp_path: Path, good: int
) -> None:
    """The trainer asked for the next window for ever. What was learned before is saved."""

    class Endless(Source):
        @property
        def windows(self) -> int | None:
            return None

        def next_window(self) -> Window[Points] | None:
            self.at[1] += 1
            if self.at[1] <= good:
                return Window((points(4),), 4, (1,), tokens=4)
            return Window((), 0, skipped=2, tokens=0)

    source = Endless(points(4))
    made = trainer(source, TrainerOptions(empty_windows=50), folder=tmp_path)
    with pytest.raises(InputError, match=r"50 windows in a row .* 100 samples were skipped") as e:
        list(made.run())
    assert f"after {good} steps" in str(e.value)
    assert source.at[1] == good + 50
    assert [p.name[:19] for p in CheckpointStore(tmp_path).paths()] == (
        ["checkpoint-00000003"] if good else []
    )


def test_the_time_left_counts_evaluations(tmp_path: Path) -> None:
    """A clock that goes on by a second whenever it is asked, and by 100 in an evaluation: of 16
    steps eight evaluate, which the time left did not know of.
    """
    made = trainer(Source(points(64)), TrainerOptions(evaluate_every=2), held_out=[points(3)])
    line, now = made.learner, [0.0]
    assert isinstance(line, Line)
    evaluate = line.evaluate

    def slow(batch: Points) -> object:
        now[0] += 100
        return evaluate(batch)

    line.evaluate = slow  # type: ignore[method-assign, assignment]
    made._clock = lambda: now[0]
    left = [r.left for r in made.run()]
    assert left[:4] == [0.0, 0.0, 13 * 100 / 3, 12 * 100 / 4]
    assert left[-1] == 0


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"evaluate_every": -1}, {"empty_windows": 0}])
def test_options_that_are_no_run_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="a run has 1 step or more"):
        TrainerOptions(**wrong)


def test_patience_needs_what_it_looks_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--eval-every"):
        TrainerOptions(patience=2)
    options = TrainerOptions(patience=2, evaluate_every=1)
    with pytest.raises(InputError, match="--eval-data"):
        trainer(Source(points(4)), options, folder=tmp_path)


def test_the_last_step_is_evaluated_and_saved(tmp_path: Path) -> None:
    options = TrainerOptions(steps=7, evaluate_every=5)
    held = [points(3, seed=1)]
    made = trainer(Source(points(64)), options, folder=tmp_path, held_out=held)
    records = list(made.run())
    assert [r.step for r in records if r.evaluation is not None] == [5, 7]
    saved = CheckpointStore(tmp_path).newest()
    assert saved is not None
    assert saved.state["progress"]["step"] == 7
    assert saved.state["count"] == 7


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    made = trainer(Source(points(8)))
    made.optimizer.parameters.values[16] = np.inf
    before = values(made)
    with np.errstate(invalid="ignore"), pytest.raises(TrainingError, match="step 1: the loss is"):
        list(made.run())
    assert values(made) == before


def test_a_source_that_counts_wrongly_is_told() -> None:
    class Wrong(Source):
        def next_window(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
            window = super().next_window()
            return None if window is None else replace(window, supervised=window.supervised + 1)

    with pytest.raises(TrainingError, match="4 tokens were supervised where the source had count"):
        list(trainer(Wrong(points(8))).run())


def windows(source: Source | Share[Points]) -> list[Window[Points]]:
    found = []
    while (window := source.next_window()) is not None:
        found.append(window)
    return found


def test_ranks_share_the_windows_and_the_last_round_is_uneven() -> None:
    data = points(22)
    shares = [Share(Source(data), rank, 4) for rank in range(4)]
    mine = [windows(share) for share in shares]
    assert [share.windows for share in shares] == [2] * 4
    assert [len(found) for found in mine] == [2, 2, 1, 1]
    dealt = [mine[i % 4][i // 4].samples for i in range(6)]
    assert dealt == [window.samples for window in windows(Source(data))]


def test_a_share_goes_on_where_any_rank_stood() -> None:
    first, second = (Share(Source(points(22)), rank, 2) for rank in range(2))
    first.next_window()
    second.restore(first.position)
    expected = windows(Share(Source(points(22)), 1, 2))[1:]
    assert [w.samples for w in windows(second)] == [w.samples for w in expected]
