"""Times in little memory: counts by size, as in an HdrHistogram (Gil Tene).

The law: a value is counted in a bucket no wider than a 1024th of it, so that any percentile is
within 0.1 % of the one of the sorted list, however many values there were. Values are seconds,
kept in whole microseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

SUB_BITS = 10
"""A bucket covers 2**-10 of its value: 0.1 %."""
POINTS = (50, 90, 95, 99)


class Latencies:
    """Counts of seconds. Mergeable; the sum, the least and the greatest are exact to the
    microsecond.
    """

    __slots__ = ("_buckets", "count", "greatest", "least", "total")

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.greatest = 0.0
        for value in seconds:
            self.add(value)

    def add(self, seconds: float) -> None:
        """Counts a value; one below 0 counts as 0."""
        seconds = max(seconds, 0.0)
        self._buckets[bucket_of(round(seconds * 1e6))] += 1
        self.count += 1
        self.total += seconds
        self.least = min(self.least, seconds)
        self.greatest = max(self.greatest, seconds)

    def merge(self, other: Latencies) -> None:
        """Counts all of `other`."""
        self._buckets.update(other._buckets)
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)

    @property
    def mean(self) -> float:
        """Seconds; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Seconds that `percent` of the values do not exceed (nearest rank); 0 of nothing."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(self.count * percent / 100))
        if rank == self.count:
            return self.greatest
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(max(upper_bound(bucket) / 1e6, self.least), self.greatest)
        raise AssertionError("counts do not add up")

    def facts(self) -> dict[str, float]:
        """Milliseconds: p50, p90, p95, p99, max and mean."""
        points = {f"p{point}": self.percentile(point) for point in POINTS}
        points |= {"max": self.greatest, "mean": self.mean}
        return {name: round(seconds * 1e3, 3) for name, seconds in points.items()}


def bucket_of(value: int) -> int:
    """The bucket of a count of microseconds: exact up to 2**11, then by the first 11 bits."""
    shift = max(0, value.bit_length() - SUB_BITS - 1)
    return (shift << SUB_BITS) + (value >> shift)


def upper_bound(bucket: int) -> int:
    """The greatest value of a bucket."""
    shift = max(0, (bucket >> SUB_BITS) - 1)
    return ((bucket - (shift << SUB_BITS) + 1) << shift) - 1
