"""Keys and values that outlive the engine that computed them: a table beside the blocks says what
each of them holds.

The law: an entry stands only while its block holds what the entry says. It is written after the
step that filled the block, and taken away before anything else is written there; both happen in
the program order of one thread, and a process that is killed has executed all of its instructions
up to some point and none beyond, so whoever maps the memory after it ended sees one moment of it.
A moment may lie inside the writing of an entry: a check over digest and block number tells those.
Whether what a process left can be trusted at all, its end says (service/engine_process.py).

The memory: a header of 256 bytes, an entry of 64 bytes a block, then the blocks (kv.py). The header
says for what the blocks are good. Where it is not the one that is due, to the last bit, all of them
are empty.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from os import stat

import numpy as np
from numpy.typing import NDArray

from rebar import _native
from rebar.hal import SharedMemory

MAGIC = b"rebar kv"
LAYOUT_VERSION = 1
HEADER_BYTES = 256
ENTRY_BYTES = 64
DIGEST_BYTES = 32
CHECK_BYTES = 16
# magic, layout version, KV format, layers, block bytes, blocks, digest of model and program
_FIELDS = struct.Struct("<8sIIQQQ32s")
_NUMBER = struct.Struct("<I")
_BLANK = bytes(DIGEST_BYTES + CHECK_BYTES)
_STAMP = 6  # of the eight 64-bit words of an entry, behind digest and check


@dataclass(frozen=True, slots=True)
class KeptMemory:
    """Where blocks are kept from one engine to the next. model: a digest of what decides keys and
    values besides ids.
    """

    memory: SharedMemory
    model: bytes


@dataclass(frozen=True, slots=True)
class KeptLayout:
    """What a header says. kind: a KVFormat. good_for: model and program (the function below)."""

    kind: int
    layers: int
    block_bytes: int
    blocks: int
    good_for: bytes

    @property
    def table_bytes(self) -> int:
        """Header and entries."""
        return HEADER_BYTES + self.blocks * ENTRY_BYTES

    def pack(self) -> bytes:
        """As it lies in memory, its check behind it."""
        fields = _FIELDS.pack(
            MAGIC, LAYOUT_VERSION, self.kind, self.layers, self.block_bytes, self.blocks,
            self.good_for,
        )  # fmt: skip
        return (fields + _check(fields)).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def read(cls, memory: SharedMemory) -> KeptLayout | None:
        """What is kept there; None for nothing, or for what this program did not write whole."""
        raw = memory.read(HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            return None
        magic, version, *fields = _FIELDS.unpack_from(raw)
        found = cls(*fields)
        return found if (magic, version, found.pack()) == (MAGIC, LAYOUT_VERSION, raw) else None


def good_for(model: bytes) -> bytes:
    """A digest of the model's and of this program's native part: another build may compute other
    bits.
    """
    built = stat(_native.__file__)
    program = f"{_native.ABI_VERSION} {built.st_size} {built.st_mtime_ns}".encode()
    return blake2b(program, key=blake2b(model).digest(), digest_size=DIGEST_BYTES).digest()


class BlockTable:
    """The entries, in `memory` (KeptLayout.table_bytes of it): what stands there now, and how it
    changes. Entries of another layout are gone once this is made.
    """

    def __init__(self, memory: NDArray[np.uint8], layout: KeptLayout) -> None:
        header = layout.pack()
        if memory[:HEADER_BYTES].tobytes() != header:
            memory[:] = 0  # also where the entries of a third layout may lie
            memory[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
        entries = memory[HEADER_BYTES:]
        self._rows = entries.reshape(layout.blocks, ENTRY_BYTES)
        self._bytes = entries.data
        self._stamps = entries.view(np.uint64).reshape(layout.blocks, -1)[:, _STAMP]
        self._stamp = int(self._stamps.max(initial=0))

    def standing(self) -> list[tuple[int, bytes]]:
        """(block, digest) of every whole entry, those used longest ago first."""
        written = np.flatnonzero(self._rows[:, : len(_BLANK)].any(axis=1))
        by_age = written[np.argsort(self._stamps[written], kind="stable")]
        found = []
        for block in map(int, by_age):
            digest = self._rows[block, :DIGEST_BYTES].tobytes()
            if self._rows[block, DIGEST_BYTES : len(_BLANK)].tobytes() == _check_of(block, digest):
                found.append((block, digest))
        return found

    def write(self, block: int, digest: bytes) -> None:
        """From now on the block holds what has this digest."""
        at = block * ENTRY_BYTES
        self._bytes[at : at + len(_BLANK)] = digest + _check_of(block, digest)
        self.use([block])

    def clear(self, block: int) -> None:
        """From now on the block may hold anything."""
        at = block * ENTRY_BYTES
        self._bytes[at : at + len(_BLANK)] = _BLANK

    def use(self, blocks: Sequence[int]) -> None:
        """They were used now, in this order: it decides which are given up first."""
        self._stamps[blocks] = np.arange(self._stamp + 1, self._stamp + 1 + len(blocks))
        self._stamp += len(blocks)


def _check_of(block: int, digest: bytes) -> bytes:
    return _check(digest + _NUMBER.pack(block))


def _check(data: bytes) -> bytes:
    return blake2b(data, digest_size=CHECK_BYTES).digest()
