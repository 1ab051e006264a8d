"""TrainingBatches: windows for a trainer (graph/window.py), by position, any of them again.

A window is `samples` consecutive usable sequences of an epoch's order; an epoch's last window has
what is left. Each window is packed by itself, so that where it begins is all there is to know: a
run that goes on from a position gets the micro-batches it would have had.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from rebar.dataflow.data.mask import Example
from rebar.dataflow.data.pack import BatchStage, Pack
from rebar.dataflow.data.pipeline import DataPipeline
from rebar.dataflow.data.stage import Item, Tally
from rebar.errors import DataError
from rebar.graph.batch import Batch
from rebar.graph.window import Position, Window


@dataclass(frozen=True, slots=True)
class Survey:
    """One epoch, counted. sequences: usable ones. asked: targets. rows: positions. skipped: samples
    that gave none. tallies: what each stage counted, by its name. remarks: the same in words, for
    whoever should know that their data are not used as they stand.
    """

    sequences: int
    asked: int
    rows: int
    longest: int
    skipped: int
    tallies: Mapping[str, Mapping[str, int]]
    remarks: tuple[str, ...]


WORDS = {
    "invalid": "records that are no samples, passed over",
    "cut": "conversations longer than the context, which lose their end",
    "too_long": "conversations longer than the context, passed over",
    "nothing_asked": "samples with nothing to be learned, passed over",
    "turns_without_end": "turns without an end token, after which a model will not learn to stop",
}


def _remarks(tally: Tally) -> Iterator[str]:
    for name, count in tally.counts.items():
        if name in WORDS:
            first = f"; the first: {tally.first(name)[0]}" if tally.first(name) else ""
            yield f"{WORDS[name]}: {count:,}{first}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next sequence is looked for."""

    epoch: int = 0
    place: int = 0
    piece: int = 0


class TrainingBatches:
    """A BatchSource over a pipeline whose last stage makes Examples."""

    def __init__(
        self, pipeline: DataPipeline, pack: Pack, *, samples: int, epochs: int = 1
    ) -> None:
        """samples: sequences of a window. Raises DataError for an empty data set."""
        if samples < 1 or epochs < 1:
            raise DataError("a window needs 1 sequence, a run 1 epoch. Give more.")
        if not len(pipeline.dataset):
            raise DataError("the data set holds no records. Look at the file.")
        self.pipeline, self._pack, self._batch = pipeline, pack, BatchStage()
        self._samples, self._epochs = samples, epochs
        self._at = Place()
        self._stream: Generator[Item[Example]] | None = None
        self._head: Item[Example] | None = None  # read already, of the next window
        self._survey: Survey | None = None

    @property
    def digest(self) -> str:
        """Of the data, the order and every setting that decides what a window holds."""
        return self.pipeline.digest(self._samples, self._pack)

    @property
    def windows(self) -> int | None:
        """Known after survey()."""
        if self._survey is None:
            return None
        return self._epochs * max(1, -(-self._survey.sequences // self._samples))

    @property
    def position(self) -> Position:
        """Where the next window begins."""
        return {"epoch": self._at.epoch, "place": self._at.place, "piece": self._at.piece}

    def restore(self, position: Position) -> None:
        """Goes there. Raises DataError for what is no position."""
        try:
            numbers = [int(position[key]) for key in ("epoch", "place", "piece")]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{dict(position)} is no position in a data set. Take one that was told."
            ) from error
        if min(numbers) < 0 or numbers[1] > len(self.pipeline.dataset):
            raise DataError(
                f"{dict(position)} lies outside of the data set. Take the one of this run."
            )
        self.close()
        self._at = Place(*numbers)

    def close(self) -> None:
        """Stops what is being read ahead; the next window begins it again."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._head = None, None

    def next_window(self) -> Window[Batch] | None:
        """The next one; None after the last epoch."""
        begin = self._at
        if begin.epoch >= self._epochs:
            return None
        try:
            items = self._take()
        except BaseException:
            self.close()  # what was read ahead has ended; asked again, the same window is tried
            raise
        end = self._at.place if self._at.epoch == begin.epoch else len(self.pipeline.dataset)
        met = {item.place for item in items if item.place < end}
        batches = self._batch.process_batch(self._pack.process_batch(items))
        return Window(
            tuple(item.value for item in batches),
            supervised=sum(item.value.asked for item in items),
            samples=tuple(item.sample for item in items),
            skipped=end - begin.place - len(met),
            tokens=sum(len(item.value.ids) for item in items),
        )

    def survey(self) -> Survey:
        """Reads one epoch to its end and counts; the position stays. DataError where nothing of it
        would be learned: whoever asks for steps would wait for the first one for ever.
        """
        n = asked = rows = longest = 0
        places = set()
        with closing(self._sequences(Place())) as stream:
            for item in stream:
                length = len(item.value.ids)
                n, asked, rows = n + 1, asked + item.value.asked, rows + length
                longest = max(longest, length)
                places.add(item.place)
        tallies = {stage.name: dict(stage.tally.counts) for stage in self.pipeline.stages}
        remarks = tuple(line for stage in self.pipeline.stages for line in _remarks(stage.tally))
        for stage in self.pipeline.stages:
            stage.tally.clear()
        skipped = len(self.pipeline.dataset) - len(places)
        if not asked:
            raise DataError(
                f"no token of the data is learned: none of its {skipped} samples holds any. Look "
                "at them with --show-batch: answers may be cut off by the context, or no message "
                "is the assistant's."
            )
        self._survey = Survey(n, asked, rows, longest, skipped, tallies, remarks)
        return self._survey

    def _take(self) -> list[Item[Example]]:
        """The sequences of the next window; moves the position behind them."""
        if self._stream is None:
            self._stream = self._sequences(self._at)
            self._head = next(self._stream, None)
        items: list[Item[Example]] = []
        while self._head is not None and len(items) < self._samples:
            items.append(self._head)
            self._head = next(self._stream, None)
        if self._head is None:
            self.close()
            self._at = Place(self._at.epoch + 1)
        elif self._head.place == items[-1].place:
            self._at = Place(self._at.epoch, self._head.place, self._head.piece)
        else:
            self._at = Place(self._at.epoch, items[-1].place + 1)
        return items

    def _sequences(self, at: Place) -> Generator[Item[Example]]:
        """From there to the end of the epoch."""
        with closing(self.pipeline.run(at.epoch, at.place)) as items:
            for item in items:
                if (item.place, item.piece) >= (at.place, at.piece):
                    yield item
