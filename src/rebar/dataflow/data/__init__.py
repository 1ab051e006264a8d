"""Data for training: records of mapped files through stages to batches, in an order that seed and
epoch alone decide.
"""

from rebar.dataflow.data.order import generator, samples_at
from rebar.dataflow.data.stage import Item, Stage, Tally

__all__ = ["Item", "Stage", "Tally", "generator", "samples_at"]
