"""Token shards: ids of a whole text in one mapped file, cut into sequences where they lie.

The file: HEADER, then little-endian ids, of two bytes each where the vocabulary allows. It belongs
to one vocabulary, by its fingerprint. Sample i is ids i n .. i n + n: neighbours have one id in
common, so that each id but the first is asked for once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.files import check_whole, map_data
from rebar.dataflow.data.footprint import array_bytes, items_bytes, view_bytes
from rebar.dataflow.data.mask import EXAMPLE, Example
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import DataError
from rebar.hal.files import write_whole

# magic, version, bytes of an id; ids; fingerprint of the vocabulary; SHA-256 of the ids
HEADER = struct.Struct("<8sII Q 16s 32s")
MAGIC = b"RBTOKENS"
VERSION = 1
PIECE = 1 << 20  # characters that are encoded together
Ids = NDArray[np.uint16] | NDArray[np.int32]


def write_tokens(path: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> int:
    """Encodes documents into a shard at `path`, whole or not at all; returns how many ids. Each
    document has the ids around it that the model is used to. Raises InputError for text that is no
    Unicode.
    """
    before = tokenizer.bos_id if tokenizer.add_bos else None
    arrays = (
        array
        for some in _together(texts)
        for array in tokenizer.encode_arrays(some, before=before, after=tokenizer.eos_id)
    )
    return _write(path, tokenizer, arrays)


def write_document(path: Path, tokenizer: Tokenizer, pieces: Iterable[str]) -> int:
    """The same for one document that comes in pieces, cut where no token reaches across."""

    def arrays() -> Iterator[NDArray[np.int32]]:
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            yield np.array([tokenizer.bos_id], np.int32)
        # A space is put before the text, and would be before each piece.
        for piece in ["".join(pieces)] if tokenizer.add_space_prefix else pieces:
            yield from tokenizer.encode_arrays([piece])
        if tokenizer.eos_id is not None:
            yield np.array([tokenizer.eos_id], np.int32)

    return _write(path, tokenizer, arrays())


def _write(path: Path, tokenizer: Tokenizer, arrays: Iterable[NDArray[np.int32]]) -> int:
    kind: type[np.uint16 | np.int32] = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    count, digest = 0, hashlib.sha256()
    with write_whole(path) as file:
        file.write(bytes(HEADER.size))
        for ids in arrays:
            data = ids.astype(kind).tobytes()
            file.write(data)
            digest.update(data)
            count += len(ids)
        file.seek(0)
        fingerprint, width = tokenizer.fingerprint.encode(), np.dtype(kind).itemsize
        file.write(HEADER.pack(MAGIC, VERSION, width, count, fingerprint, digest.digest()))
    return count


def _together(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts of a PIECE and more at a time."""
    some: list[str] = []
    length = 0
    for text in texts:
        some.append(text)
        length += len(text)
        if length >= PIECE:
            yield some
            some, length = [], 0
    yield some


class TokenDataset:
    """Sequences of `rows` positions out of a shard."""

    def __init__(self, path: str | Path, rows: int, *, fingerprint: str | None = None) -> None:
        """fingerprint: of the vocabulary that the ids must be of. Raises DataError: no shard,
        damaged, or of another vocabulary.
        """
        self.path, self._rows = Path(path), rows
        file = map_data(self.path)
        if file is None or file.nbytes < HEADER.size:
            raise DataError(f"{path} is no token shard. Make it again.")
        self._file, found = file, HEADER.unpack_from(file.buffer())
        magic, version, width, count, self.fingerprint, digest = found
        if magic != MAGIC or version != VERSION or width not in (2, 4):
            raise DataError(f"{path} is no token shard of this version. Make it again.")
        if file.nbytes != HEADER.size + width * count:
            raise DataError(f"{path} is damaged: {count} ids do not fill it. Make it again.")
        if fingerprint is not None and fingerprint.encode() != self.fingerprint:
            raise DataError(f"{path} holds ids of another vocabulary. Make it with this model.")
        kind = "<u2" if width == 2 else "<i4"
        self.ids: Ids = file.data[HEADER.size :].view(kind)
        self.digest = f"{digest.hex()}/{rows}"

    def __len__(self) -> int:
        return max(0, -(-(len(self.ids) - 1) // self._rows))

    def raws(self, samples: NDArray[np.int64]) -> list[Ids]:
        """Views of the ids: rows + 1, fewer at the end. Raises DataError for a cut file."""
        check_whole(self._file)
        return [self.ids[i : i + self._rows + 1] for i in (samples * self._rows).tolist()]

    def where(self, sample: int) -> str:
        """File and number of the first id."""
        return f"{self.path}, id {sample * self._rows}"

    def verify(self) -> None:
        """Reads the whole file. Raises DataError when the ids are not those that were written."""
        if hashlib.sha256(self.ids.data).hexdigest() != self.digest.split("/")[0]:
            raise DataError(f"{self.path} is damaged. Make it again.")

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        """The ids of a sample, its own copy. Raises IndexError."""
        count = len(self)
        if not -count <= sample < count:
            raise IndexError(f"{self.path} has {count} sequences, {sample} is none of them")
        return self.raws(np.array([sample % count]))[0].astype(np.int32)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "rows": self._rows, "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TokenDataset.__init__(self, state["path"], state["rows"])
        if self.digest != state["digest"]:
            raise DataError(f"{self.path} changed on the way to another process. Start again.")


class Shift(Stage[Ids, Example]):
    """Ids of a shard to a sequence in which every id is asked for."""

    def process_batch(self, batch: Sequence[Item[Ids]]) -> list[Item[Example]]:
        """One item each: ids and targets look into one array."""
        done = []
        for item in batch:
            ids = item.value.astype(np.int32)
            done.append(item.having(Example(ids[:-1], ids[1:], len(ids) - 1)))
        return done

    def get_memory_footprint(self, batch: Sequence[Item[Ids]]) -> int:
        """The arrays, and two views of each."""
        each = EXAMPLE + 2 * view_bytes(1)
        arrays = sum(array_bytes(len(item.value), np.int32) for item in batch)
        return items_bytes(len(batch)) + len(batch) * each + arrays
