"""Weights: readers for GGUF, Hugging Face folders and .rebar, the .rebar writer, model sources."""

from rebar.graph.weights.model_file import ModelFile, StoredTensor, TokenizerData, WeightType
from rebar.graph.weights.open import open_model
from rebar.graph.weights.rebar_writer import write_rebar

__all__ = ["ModelFile", "StoredTensor", "TokenizerData", "WeightType", "open_model", "write_rebar"]
