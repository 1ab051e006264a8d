"""From a model file's lists to the mapped tables of native/text/vocabulary.h."""

from __future__ import annotations

import numpy as np

from rebar import _native
from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.weights.model_file import TokenizerData

UNUSED = 5  # GGUF's token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte


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
