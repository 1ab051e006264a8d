"""Tiny random models: `from tests.tiny import tiny_gguf, tiny_hf, tiny_model`."""

from tests.tiny.hf import tiny_hf
from tests.tiny.model import TinyModel, tiny_config, tiny_gguf, tiny_model

__all__ = ["TinyModel", "tiny_config", "tiny_gguf", "tiny_hf", "tiny_model"]
