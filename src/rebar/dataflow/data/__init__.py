"""Data for training: records of mapped files through stages to batches, in an order that seed and
epoch alone decide.
"""

from rebar.dataflow.data.batches import Survey, TrainingBatches
from rebar.dataflow.data.dataset import Dataset, MMapDataset
from rebar.dataflow.data.decode import Decode
from rebar.dataflow.data.mask import Example, Mask
from rebar.dataflow.data.order import generator, samples_at
from rebar.dataflow.data.pack import BatchStage, Pack
from rebar.dataflow.data.pipeline import BatchSizer, DataPipeline
from rebar.dataflow.data.stage import Item, Stage, Tally
from rebar.dataflow.data.tokenize import Marked, Tokenize

__all__ = [
    "BatchSizer",
    "BatchStage",
    "DataPipeline",
    "Dataset",
    "Decode",
    "Example",
    "Item",
    "MMapDataset",
    "Marked",
    "Mask",
    "Pack",
    "Stage",
    "Survey",
    "Tally",
    "Tokenize",
    "TrainingBatches",
    "generator",
    "samples_at",
]
