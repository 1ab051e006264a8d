"""From a model file's lists to the mapped tables of native/text/vocabulary.h, and back."""

from __future__ import annotations

from functools import cache

import numpy as np

from rebar import _native
from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.weights.end_tokens import BYTE, CONTROL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from rebar.graph.weights.model_file import TokenizerData


def build_vocabulary(data: TokenizerData) -> bytes:
    """The tables of `data`: position-independent, versioned, checked by a checksum; a few MB.

    Unused tokens at the end (rows that only pad the embedding) are left out, so that their ids can
    be neither sampled nor decoded. For kind "spm" the merges are derived from the scores:
    user-defined runs of spaces first, by id, then every way to put a piece together from two
    pieces, best score first. Raises CorruptFileError for lists that contradict each other,
    UnsupportedModelError for a pre-tokenizer that is not known (the ids of another one would be
    wrong without anybody noticing).
    """
    _check(data)
    count = _used(data.types)
    scores = np.asarray(data.scores or [], dtype=np.float32)[:count]
    try:
        return _native.build_vocabulary(
            spm=data.kind == "spm",
            pre=data.pre,
            tokens=data.tokens[:count],
            types=bytes(data.types[:count]),
            scores=scores.tobytes(),
            merges=list(data.merges or []) if data.kind == "bpe" else [],
            bos=data.bos_id,
            eos=data.eos_id,
            unknown=data.unknown_id,
            pad=None if data.pad_id is None or data.pad_id >= count else data.pad_id,
            ends=list(data.end_ids),
            add_bos=data.add_bos,
            add_space_prefix=data.add_space_prefix,
        )
    except _native.UnknownSplitError as error:
        raise UnsupportedModelError(f"{error}. Use a model with one of these.") from error
    except _native.VocabularyError as error:
        raise CorruptFileError(f"{error}. Convert the model again from its source.") from error


def read_vocabulary(tables: bytes | memoryview) -> TokenizerData:
    """What tables were built of: `build_vocabulary` makes the same of it again. Ids keep their
    text; where a file had spelled a normal token of the byte-level kind with characters that are no
    bytes, it is spelled by its bytes here. merges are there for both kinds. Raises CorruptFileError
    for damaged tables.
    """
    try:
        table = _native.TextTokenizer(tables)
    except _native.VocabularyError as error:
        raise CorruptFileError(f"{error}. Convert the model again from its source.") from error
    types = [table.token_type(id_) for id_ in range(table.size)]
    spell = _spelled_spm if table.spm else _spelled_bytes
    tokens = [spell(table.token_bytes(id_), kind) for id_, kind in enumerate(types)]
    pairs = np.frombuffer(table.merges(), np.uint32).reshape(-1, 2).tolist()
    scores = np.frombuffer(table.scores(), np.float32).tolist()
    return TokenizerData(
        kind="spm" if table.spm else "bpe",
        pre=table.pre,
        tokens=tokens,
        types=types,
        scores=scores or None,
        merges=[f"{tokens[left]} {tokens[right]}" for left, right in pairs],
        bos_id=table.bos_id,
        eos_id=table.eos_id,
        end_ids=tuple(table.end_ids),
        unknown_id=table.unknown_id,
        pad_id=table.pad_id,
        add_bos=table.add_bos,
        add_space_prefix=table.add_space_prefix,
    )


@cache
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable character of each byte (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in plain else next(others)) for byte in range(256))


def _spelled_bytes(text: bytes, kind: int) -> str:
    if kind in (UNKNOWN, CONTROL, USER_DEFINED):
        return text.decode("utf-8", "replace")
    return "".join(byte_alphabet()[byte] for byte in text)


def _spelled_spm(text: bytes, kind: int) -> str:
    if kind == BYTE and len(text) == 1:
        return f"<0x{text[0]:02X}>"
    return text.decode("utf-8", "replace").replace(" ", SPACE)


def _check(data: TokenizerData) -> None:
    """What cannot be handed to native code at all."""
    if len(data.types) != len(data.tokens):
        raise CorruptFileError(
            f"the tokenizer has {len(data.tokens)} tokens and {len(data.types)} token types. "
            "Convert the model again from its source."
        )
    ids = (data.bos_id, data.eos_id, data.unknown_id, data.pad_id, *data.end_ids)
    if any(i is not None and not 0 <= i < len(data.tokens) for i in ids) or not all(
        0 <= kind < 256 for kind in data.types
    ):
        raise CorruptFileError(
            "the tokenizer names special ids or token types out of range. "
            "Convert the model again from its source."
        )
    try:
        "".join(data.tokens).encode()
        "".join(data.merges or ()).encode()
        data.pre.encode()
    except UnicodeEncodeError as error:
        raise CorruptFileError(
            "the tokenizer holds text that is no UTF-8. Convert the model again from its source."
        ) from error


def _used(types: list[int]) -> int:
    """How many tokens there are without the unused ones at the end."""
    count = len(types)
    while count > 1 and types[count - 1] == UNUSED:
        count -= 1
    return count
