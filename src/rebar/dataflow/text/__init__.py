"""Tokenizers, chat templates and streaming text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rebar.dataflow.text.stream import TextStream
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.dataflow.text.vocabulary import build_vocabulary

if TYPE_CHECKING:
    from rebar.dataflow.text.chat import ChatTemplate

__all__ = ["ChatTemplate", "TextStream", "Tokenizer", "build_vocabulary"]


def __getattr__(name: str) -> type[ChatTemplate]:
    """ChatTemplate brings Jinja with it: imported when asked for, plain text needs neither."""
    if name != "ChatTemplate":
        raise AttributeError(f"module 'rebar.dataflow.text' has no attribute {name!r}")
    from rebar.dataflow.text.chat import ChatTemplate

    globals()[name] = ChatTemplate
    return ChatTemplate
