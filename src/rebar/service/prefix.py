"""By what name a KV block is known: a chain of digests over whole blocks of ids.

The digest of a block covers the one before it and its own ids, and the first covers the model, the
adapter and the tenant: equal digests mean equal keys and values, and no tenant can tell from the
time of an answer what another has asked. Blake2b with 32 bytes: nobody finds two texts with one
digest.
"""

from __future__ import annotations

from hashlib import blake2b

from rebar.graph.sequence import Sequence

DIGEST_BYTES = 32


def root_of(model: bytes, tenant: str, adapter: str = "") -> bytes:
    """Where the chains of one tenant of one model, computed with one adapter, begin. adapter: its
    digest in hex, "" for none.
    """
    computed_by = blake2b(model + bytes.fromhex(adapter), digest_size=32).digest()
    return blake2b(tenant.encode(), key=computed_by, digest_size=32).digest()


class PrefixChain:
    """Digests of a sequence's whole blocks, computed once each as they are asked for."""

    __slots__ = ("_digests", "_last", "_sequence", "_size")

    def __init__(self, sequence: Sequence, root: bytes, block_size: int) -> None:
        self._sequence = sequence
        self._size = block_size
        self._digests: list[bytes] = []
        self._last = root

    def digests(self, first: int, end: int) -> list[bytes]:
        """Of blocks first .. end - 1, which the ids so far must fill."""
        while len(self._digests) < end:
            at = len(self._digests) * self._size
            ids = self._sequence.tokens[at : at + self._size].tobytes()
            self._last = blake2b(self._last + ids, digest_size=DIGEST_BYTES).digest()
            self._digests.append(self._last)
        return self._digests[first:end]
