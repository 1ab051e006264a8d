"""The order of an epoch and the draws of a sample: functions of seed and epoch, no state.

The order is a keyed permutation that needs no memory: a Feistel network over pairs (a, b), where
a * b is the least such grid that holds all samples, made by alternately adding to one half a hash
of the other (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, method 3 with
modular addition); a place that lands outside goes through again (method 2, cycle walking). Any
place of any epoch is known at once, so to resume is to start at a number. Halves of two or three
values mix badly, as a test showed: a small order is the samples sorted by a hash each.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

SMALL = 1024  # up to here orders are sorted; both halves above have 32 values or more
ROUNDS = 8  # additions of a hash; four give Luby and Rackoff's guarantee, small halves want more
U64 = np.uint64
UInt64 = NDArray[np.uint64]
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def samples_at(places: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Which samples stand at `places` (0 .. count-1) of this epoch's order of `count` samples.

    For any seed and epoch the places 0 .. count-1 give each sample once.
    """
    if count <= SMALL:
        numbers = np.arange(count, dtype=U64)
        hashes = _mixed(_mixed(numbers) ^ U64(_mixed_int(seed, epoch)))
        return np.argsort(hashes, kind="stable")[places].astype(np.int64)
    left = isqrt(count - 1) + 1
    right = -(-count // left)
    keys = _keys(seed, epoch)
    values = places.astype(U64)
    todo = np.arange(len(values))
    while todo.size:
        walked = _rounds(values[todo], left, right, keys)
        values[todo] = walked
        todo = todo[walked >= count]
    return values.astype(np.int64)


def generator(seed: int, epoch: int, sample: int, purpose: str = "") -> np.random.Generator:
    """Random numbers of one sample in one epoch. purpose: a word for each stage that draws, so that
    two do not get the same. Philox (Salmon et al., 2011): its key is the address.
    """
    low = _mixed_int(seed, epoch, zlib.crc32(purpose.encode()))
    high = _mixed_int(sample, seed, epoch)
    return np.random.Generator(np.random.Philox(key=low | high << 64))


def _rounds(values: UInt64, left: int, right: int, keys: tuple[np.uint64, ...]) -> UInt64:
    """The network once: v = a * right + b, both halves changed in turns."""
    a, b = values // U64(right), values % U64(right)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            a = (a + _mixed(b ^ key) % U64(left)) % U64(left)
        else:
            b = (b + _mixed(a ^ key) % U64(right)) % U64(right)
    return a * U64(right) + b


def _mixed(x: UInt64) -> UInt64:
    """SplitMix64's finalizer (Steele, Lea, Flood, 2014), after its increment."""
    x = x + U64(_GOLDEN)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


@lru_cache(16)
def _keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    """One for each round."""
    return tuple(U64(_mixed_int(seed, epoch, number)) for number in range(ROUNDS))


def _mixed_int(*words: int) -> int:
    """One number of 64 bits out of several of any size: _mixed, one after another."""
    state = 0
    for word in words:
        state = (state ^ word) + _GOLDEN & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
