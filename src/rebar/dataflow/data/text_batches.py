"""From a data set of texts to windows for a trainer: the usual stages, put together."""

from __future__ import annotations

from dataclasses import dataclass

from rebar.dataflow.data.batches import TrainingBatches
from rebar.dataflow.data.dataset import Dataset
from rebar.dataflow.data.decode import Decode
from rebar.dataflow.data.faults import OnError
from rebar.dataflow.data.mask import Long, Mask
from rebar.dataflow.data.pack import Pack
from rebar.dataflow.data.pipeline import DataPipeline
from rebar.dataflow.data.tokenize import Tokenize
from rebar.dataflow.text import ChatTemplate, Tokenizer
from rebar.graph.batch import Batch


@dataclass(frozen=True, slots=True)
class TextReading:
    """How records become sequences. context: positions of the longest. rows: positions of a
    micro-batch. on_error: for records that are no samples; long: for conversations that are longer.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    context: int
    rows: int
    on_error: OnError = "raise"
    long: Long = "cut"

    def batches(
        self,
        dataset: Dataset,
        *,
        samples: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> TrainingBatches:
        """Windows of `samples` sequences in the order of seed and epoch."""
        stages = [
            Decode(dataset.where, self.on_error),
            Tokenize(self.tokenizer, self.template, dataset.where, self.on_error),
            Mask(min(self.context, self.rows), dataset.where, self.long),
        ]
        pipeline = DataPipeline(dataset, stages, seed=seed, shuffle=shuffle)
        pack = Pack(self.rows, min(samples, self.rows))
        return TrainingBatches(pipeline, pack, samples=samples, epochs=epochs)

    def all_of(self, dataset: Dataset, *, samples: int = 64) -> list[Batch]:
        """Every sequence of a data set once, in its own order: for evaluation."""
        source = self.batches(dataset, samples=samples, shuffle=False)
        found: list[Batch] = []
        while (window := source.next_window()) is not None:
            found += window.batches
        return found
