"""Tokenizers, chat templates and streaming text."""

from rebar.dataflow.text.chat import ChatTemplate
from rebar.dataflow.text.stream import TextStream
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.dataflow.text.vocabulary import build_vocabulary

__all__ = ["ChatTemplate", "TextStream", "Tokenizer", "build_vocabulary"]
