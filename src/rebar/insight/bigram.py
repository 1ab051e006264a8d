"""What a text gives away by pairs of neighbours alone: the loss that a trained model must beat.

p(b | a) = (max(count(a, b) - d, 0) + d * kinds(a) * q(b)) / count(a): interpolated Kneser-Ney
(Chen & Goodman, 1999, section 2.7) with d = n1 / (n1 + 2 n2) of the pairs seen once and twice, and
q(b) the share of different ids that b follows, mixed likewise with the uniform distribution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Pairs = tuple[Ids, Ids]  # ids, and the id that follows each


def bigram_loss(train: Pairs, held_out: Pairs, vocabulary: int) -> float:
    """Mean loss, in nats, of the second ids of held_out. Ids are below `vocabulary`."""
    pairs = train[0].astype(np.int64) * vocabulary + train[1]
    kinds, counts = np.unique(pairs, return_counts=True)
    discount = _discount(counts)
    before = np.bincount(train[0], minlength=vocabulary)  # how often each id is followed
    different = np.bincount(kinds // vocabulary, minlength=vocabulary)  # by how many ids
    followed = np.bincount(kinds % vocabulary, minlength=vocabulary)  # how many ids it follows
    known = np.count_nonzero(followed)
    spread = discount * known / vocabulary
    q = (np.maximum(followed - discount, 0) + spread) / len(kinds)

    a, b = (ids.astype(np.int64) for ids in held_out)
    place = np.minimum(np.searchsorted(kinds, a * vocabulary + b), len(kinds) - 1)
    seen = np.where(kinds[place] == a * vocabulary + b, counts[place], 0)
    total = np.maximum(before[a], 1)
    mixed = (np.maximum(seen - discount, 0) + discount * different[a] * q[b]) / total
    return float(-np.log(np.where(before[a] > 0, mixed, q[b])).mean())


def _discount(counts: NDArray[np.int64]) -> float:
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return once / (once + 2 * twice) if once else 0.5
