"""Percentiles out of counts: within 0.1 % of the sorted list, whatever the values."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rebar.insight.latency import Latencies, bucket_of, upper_bound

SECONDS = st.floats(0.0, 3600.0)


@given(st.lists(SECONDS, min_size=1), st.floats(0.1, 100.0))
def test_a_percentile_is_that_of_the_sorted_list(values: list[float], percent: float) -> None:
    rank = max(1, math.ceil(len(values) * percent / 100))
    true = sorted(values)[rank - 1]
    found = Latencies(values).percentile(percent)
    # A bucket is a 1024th of its value, and values are whole microseconds.
    assert abs(found - true) <= true / 1024 + 1e-6


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_merged_is_as_counted_together(first: list[float], second: list[float]) -> None:
    merged = Latencies(first)
    merged.merge(Latencies(second))
    both = Latencies(first + second)
    assert [merged.percentile(p) for p in (1, 50, 99, 100)] == [
        both.percentile(p) for p in (1, 50, 99, 100)
    ]
    assert (merged.count, merged.least, merged.greatest) == (both.count, both.least, both.greatest)


@given(st.integers(0, 1 << 40))
def test_a_bucket_holds_its_values_and_is_narrow(value: int) -> None:
    top = upper_bound(bucket_of(value))
    assert value <= top <= value + value // 1024
    assert bucket_of(top) == bucket_of(value) != bucket_of(top + 1)


def test_nothing_has_percentiles_of_nothing() -> None:
    assert Latencies().facts() == dict.fromkeys(("p50", "p90", "p95", "p99", "max", "mean"), 0.0)


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    assert Latencies([-1.0]).percentile(50) == 0.0
