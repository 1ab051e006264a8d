"""Scored tokens in OpenAI's two shapes: a list of objects for chat, parallel lists for plain
completions.
"""

from __future__ import annotations

import msgspec

from rebar.service.http.choices import ScoredToken
from rebar.service.interfaces import TextTokenizer


class TopLogprob(msgspec.Struct):
    """One alternative at a token's place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """One token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`choices[].logprobs` of chat."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`choices[].logprobs` of plain completions. The first token of an echoed prompt has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def token_text(raw: bytes) -> str:
    """A token as text; a piece of a character as `bytes:\\xf0...`, as OpenAI writes it."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: TextTokenizer, scored: list[ScoredToken]) -> ChatLogprobs:
    """Scored tokens as chat reports them."""
    return ChatLogprobs([_chat_logprob(tokenizer, token) for token in scored])


def _chat_logprob(tokenizer: TextTokenizer, scored: ScoredToken) -> ChatLogprob:
    raw = tokenizer.token_bytes(scored.id)
    top = []
    for token, logprob in scored.top:
        other = tokenizer.token_bytes(token)
        top.append(TopLogprob(token_text(other), logprob, list(other)))
    return ChatLogprob(token_text(raw), scored.logprob or 0.0, list(raw), top)


class CompletionScores:
    """Scored tokens of one choice as plain completions report them; keeps count of the offsets.

    text_offset is where a token's text begins, in characters; a token that begins inside a
    character has the offset of the next one.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def take(self, scored: list[ScoredToken]) -> CompletionLogprobs:
        """The next tokens."""
        out = CompletionLogprobs([], [], [], [])
        for token in scored:
            raw = self._tokenizer.token_bytes(token.id)
            out.tokens.append(token_text(raw))
            out.token_logprobs.append(token.logprob)
            out.top_logprobs.append(self._top(token))
            out.text_offset.append(self._offset)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in raw)
        return out

    def _top(self, scored: ScoredToken) -> dict[str, float] | None:
        """The alternatives, and the token itself, which may not be among them."""
        if scored.logprob is None:
            return None
        top = (
            [*scored.top]
            if scored.id in dict(scored.top)
            else [*scored.top, (scored.id, scored.logprob)]
        )
        return {token_text(self._tokenizer.token_bytes(token)): logprob for token, logprob in top}
