"""Text to ids and back, over mapped tables.

What comes back: with the qwen2 pre-tokenizer decode(encode(x)) is NFC(x), as the reference
normalizes; with the other byte-level ones it is x. A byte that the vocabulary has no token for is
left out, as the reference does (`missing_bytes`; SmolLM2 lacks the control characters 04 06 13 14
16 1D and bytes of unassigned planes). SentencePiece models write a space as U+2581: there
decode(encode(x)) is x with U+2581 as a space, and with `add_space_prefix` the space put before the
text is taken off again.

Decoding joins the bytes of all ids and reads them as UTF-8. Each maximal part of a broken character
becomes one U+FFFD (Unicode 16, 3.9, "substitution of maximal subparts"; what WHATWG and Python do).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.dataflow.text.vocabulary import build_vocabulary
from rebar.errors import CorruptFileError, InputError
from rebar.graph.weights.model_file import ModelFile

Buffer = bytes | memoryview | NDArray[np.uint8]
CONTROL = 3


class Tokenizer:
    """Tables opened for use. Immutable; any method may be called from any thread.

    Work on text runs without the GIL.
    """

    def __init__(self, vocabulary: Buffer) -> None:
        """Opens the tables of build_vocabulary where they lie: 8-byte aligned, not copied.

        Raises CorruptFileError when a table is damaged; each offset and id is checked here, once.
        """
        try:
            self._native = _native.TextTokenizer(vocabulary)
        except _native.VocabularyError as error:
            raise CorruptFileError(f"{error}. Convert the model again from its source.") from error
        self.vocab_size: int = self._native.size
        self.bos_id: int | None = self._native.bos_id
        self.eos_id: int | None = self._native.eos_id
        self.unknown_id: int | None = self._native.unknown_id
        self.pad_id: int | None = self._native.pad_id
        self.end_ids: frozenset[int] = frozenset(self._native.end_ids)
        self.add_bos: bool = self._native.add_bos
        self.pre: str = self._native.pre
        self.missing_bytes: frozenset[int] = frozenset(self._native.missing_bytes())
        self.fingerprint: str = f"{self._native.checksum:016x}"
        self.add_space_prefix: bool = self._native.add_space_prefix

    @classmethod
    def of(cls, model: ModelFile) -> Tokenizer:
        """The tokenizer of an opened model: its ready tables, or built from its lists."""
        if model.vocabulary is not None:
            return cls(model.vocabulary)
        if model.tokenizer is None:
            raise CorruptFileError(
                f"{model.path} holds no tokenizer. Take a file that does, or convert it again."
            )
        return cls(build_vocabulary(model.tokenizer))

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Ids of `text`.

        Without `special` no control id comes out of text, whatever it says; user-defined tokens,
        which are ordinary vocabulary, are matched whole as in the reference. With `special` control
        tokens written in the text are taken as such. bos: put the beginning-of-text id first; None:
        as the model says. Raises InputError for lone surrogates. Time grows as the text's length.
        """
        ids = self._encode(text, special)
        if (self.add_bos if bos is None else bos) and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        return ids

    def encode_on(self, text: str) -> list[int]:
        """Ids of ordinary text that goes on after other text: no id or space before it, nothing
        matched whole.
        """
        try:
            return self._native.encode_ordinary(text, False)
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from error

    def encode_batch(self, texts: Iterable[str], *, special: bool = False) -> list[list[int]]:
        """encode() of each text."""
        return [self.encode(text, special=special) for text in texts]

    def encode_arrays(
        self,
        texts: list[str],
        *,
        special: bool = False,
        before: int | None = None,
        after: int | None = None,
    ) -> list[NDArray[np.int32]]:
        """Ids of texts as read-only views into one array of them all: one call, the GIL free
        meanwhile. special: as in encode. before, after: an id around each text; no other is added.
        """
        try:
            data, ends = self._native.encode_many(texts, special, before, after)
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from error
        ids, cuts = np.frombuffer(data, np.int32), np.frombuffer(ends, np.uint64).tolist()
        return [ids[a:b] for a, b in pairwise([0, *cuts])]

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`. skip_special leaves out control and unknown tokens.

        Raises InputError for an id that is not in the vocabulary.
        """
        try:
            data = self._native.decode(list(ids), skip_special)
        except ValueError as error:
            raise InputError(f"{error}. Send ids of this model's vocabulary.") from error
        text = data.decode("utf-8", "replace")
        return text[1:] if self.add_space_prefix and text.startswith(" ") else text

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one id adds to the text."""
        try:
            return self._native.token_bytes(id)
        except ValueError as error:
            raise InputError(f"{error}. Send ids of this model's vocabulary.") from error

    def stream_bytes(self, id: int, skip_special: bool) -> bytes:
        """What `id` adds to a stream: token_bytes, or nothing for a skipped special token."""
        try:
            return self._native.stream_bytes(id, skip_special)
        except ValueError as error:
            raise InputError(f"{error}. Send ids of this model's vocabulary.") from error

    def control_texts(self) -> list[str]:
        """The spellings of all control tokens."""
        texts = (self.token_bytes(id) for id in self._native.control_ids())
        return [text.decode("utf-8", "replace") for text in texts if text]

    def is_control(self, id: int) -> bool:
        """Whether `id` is a control token, never part of what a user wrote."""
        try:
            return self._native.token_type(id) == CONTROL
        except ValueError as error:
            raise InputError(f"{error}. Send ids of this model's vocabulary.") from error

    def split(self, text: str, *, special: bool = True) -> list[str | int]:
        """`text` cut at tokens that are matched whole: ids, and ordinary text between them."""
        try:
            return self._native.split(text, special)
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from error

    def _encode(self, text: str, special: bool) -> list[int]:
        try:
            return self._native.encode(text, special)
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from error


def _lone_surrogate(error: UnicodeEncodeError) -> InputError:
    return InputError(
        f"the text holds a lone surrogate at character {error.start}, which is no Unicode text. "
        "Send well-formed UTF-8 or paired surrogates.",
        code="invalid_unicode",
    )
