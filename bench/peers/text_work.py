"""What tokenizers are measured with: a long text, a short prompt, and inputs made to be slow.

Used by our side and, in environments without Rebar, by peers.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

SHORT = "Write a haiku about the sea, then explain each line of it in one sentence."
# One character over and over leaves a merge at every place; spaces, digits and letters that join
# across code points are where pre-tokenizers look far.
PATTERNS = {
    "a": "a",
    "ab": "ab",
    "space": " ",
    "newline": "\n",
    "space and newline": " \n",
    "digit": "7",
    "mark": "!",
    "apostrophe": "'",
    "accent": "e\u0301",
    "han": "\u6f22",
    "family": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "word": "antidisestablishmentarianism",
}
SMALL, LARGE = 20_000, 640_000  # characters
PASS_S = 0.05

Encode = Callable[[str], list[int]]
Facts = dict[str, Any]


def seconds(encode: Encode, text: str, passes: int = 7) -> float:
    """The median time of a call; short ones are repeated within a pass."""
    begin = time.perf_counter()
    encode(text)
    count = max(1, int(PASS_S / max(time.perf_counter() - begin, 1e-7)))
    found = []
    for _ in range(passes if count > 1 else 3):
        begin = time.perf_counter()
        for _ in range(count):
            encode(text)
        found.append((time.perf_counter() - begin) / count)
    return statistics.median(found)


def measure(encode: Encode, long: str) -> Facts:
    """long_mb_s (10^6 bytes), short_us, digest (of both texts' ids), growth: by pattern the time of
    a text over that of one 1/32 as long, over 32: 1 is linear, 32 quadratic."""
    ids = [encode(long), encode(SHORT)]
    return {
        "long_mb_s": len(long.encode()) / seconds(encode, long) / 1e6,
        "short_us": seconds(encode, SHORT) * 1e6,
        "digest": hashlib.sha256(repr(ids).encode()).hexdigest()[:16],
        "growth": growth(encode, PATTERNS),
    }


def growth(encode: Encode, patterns: Mapping[str, str]) -> dict[str, float]:
    """How much faster than the length the time of each pattern grows."""
    found = {}
    for name, unit in patterns.items():
        small, large = (unit * (size // len(unit)) for size in (SMALL, LARGE))
        times = [seconds(encode, text, 5) for text in (small, large)]
        found[name] = times[1] / times[0] * len(small) / len(large)
    return found
