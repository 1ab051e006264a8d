"""Data for training: records of mapped files through stages to batches, in an order that seed and
epoch alone decide.
"""

from rebar.dataflow.data.batches import Survey, TrainingBatches
from rebar.dataflow.data.dataset import Dataset, MMapDataset
from rebar.dataflow.data.decode import Decode
from rebar.dataflow.data.mask import Example, Mask
from rebar.dataflow.data.open import DataOptions, open_training
from rebar.dataflow.data.order import generator, samples_at
from rebar.dataflow.data.pack import BatchStage, Pack
from rebar.dataflow.data.pipeline import BatchSizer, DataPipeline
from rebar.dataflow.data.stage import Item, Stage, Tally
from rebar.dataflow.data.tokenize import Marked, Tokenize
from rebar.dataflow.data.tokens import Shift, TokenDataset, write_tokens

__all__ = [
    "BatchSizer",
    "BatchStage",
    "DataOptions",
    "DataPipeline",
    "Dataset",
    "Decode",
    "Example",
    "Item",
    "MMapDataset",
    "Marked",
    "Mask",
    "Pack",
    "Shift",
    "Stage",
    "Survey",
    "Tally",
    "TokenDataset",
    "Tokenize",
    "TrainingBatches",
    "generator",
    "open_training",
    "samples_at",
    "write_tokens",
]
