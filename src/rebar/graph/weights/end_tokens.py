"""Which token ids end a generation.

Files name one end token, chat models end a turn with another. So every id counts that the file
names, and every control token whose text is known to end a text or a turn in some model family. A
token of the same text that is not a control token does not count: Gemma's vocabulary has the HTML
tag </s> as a user-defined token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

KNOWN_END_TOKENS = frozenset({
    "<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<end_of_turn>", "<eos>", "</s>", "<EOT>", "<|eot|>",
})  # fmt: skip

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"  # how SentencePiece spells a space


def end_ids(named: Iterable[int], tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """Ids in `named` and those of control tokens with a known text, ascending."""
    known = {
        id_
        for id_, token in enumerate(tokens)
        if token in KNOWN_END_TOKENS and types[id_] == CONTROL
    }
    return tuple(sorted(known | set(named)))
