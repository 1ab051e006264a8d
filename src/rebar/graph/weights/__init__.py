"""Weights: readers for GGUF, Hugging Face folders and .rebar, the .rebar writer, model sources."""

from rebar.graph.weights.model_file import ModelFile, StoredTensor, TokenizerData, WeightType
from rebar.graph.weights.open import open_model
from rebar.graph.weights.pack import pack, packed_nbytes
from rebar.graph.weights.provenance import provenance_of
from rebar.graph.weights.rebar_reader import verify_digests
from rebar.graph.weights.rebar_writer import write_rebar

__all__ = [
    "ModelFile",
    "StoredTensor",
    "TokenizerData",
    "WeightType",
    "open_model",
    "pack",
    "packed_nbytes",
    "provenance_of",
    "verify_digests",
    "write_rebar",
]
