"""Tokenizers, chat templates and streaming text."""

from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.dataflow.text.vocabulary import build_vocabulary

__all__ = ["Tokenizer", "build_vocabulary"]
