"""The order of an epoch and the draws of a sample."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebar.dataflow.data import generator, samples_at

SEEDS = st.integers(min_value=-(2**70), max_value=2**70)


def order(count: int, seed: int, epoch: int) -> list[int]:
    return list(map(int, samples_at(np.arange(count), count, seed, epoch)))


@given(st.integers(0, 3000), SEEDS, st.integers(0, 2**40))
def test_each_sample_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(order(count, seed, epoch)) == list(range(count))


@given(st.integers(1, 10**15), SEEDS, st.integers(0, 9), st.data())
def test_a_place_is_known_alone(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    """Any cut of the places gives the same samples: what a resumed run depends on."""
    places = np.asarray(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    whole = samples_at(places, count, seed, epoch)
    alone = [samples_at(places[i : i + 1], count, seed, epoch)[0] for i in range(len(places))]
    assert whole.tolist() == alone
    assert ((whole >= 0) & (whole < count)).all()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(order(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_small_orders_are_all_met_about_equally_often(count: int) -> None:
    """Chi-square over all permutations: its mean is the degrees of freedom d, its deviation
    sqrt(2 d). A generator of any quality stays within 6 deviations.
    """
    orders = list(itertools.permutations(range(count)))
    drawn = 40 * len(orders)
    seen = Counter(tuple(order(count, 0, epoch)) for epoch in range(drawn))
    chi = sum((seen[o] - 40) ** 2 / 40 for o in orders)
    freedom = len(orders) - 1
    assert abs(chi - freedom) < 6 * (2 * freedom) ** 0.5


def test_samples_lie_anywhere() -> None:
    """Places cut in 32 parts against samples cut in 32: 1024 cells of 64 expected each."""
    table = np.zeros((32, 32))
    found = samples_at(np.arange(65536), 65536, 1, 2)
    np.add.at(table, (np.arange(65536) // 2048, found // 2048), 1)
    chi = ((table - 64) ** 2 / 64).sum()
    assert abs(chi - 31**2) < 6 * (2 * 31**2) ** 0.5


def test_neighbours_part() -> None:
    """Two samples that stood together in one epoch are as far apart as any two in the next."""
    here, there = (np.argsort(order(4096, 0, epoch)) for epoch in (0, 1))
    together = np.abs(np.diff(here)) < 16
    distance = np.abs(np.diff(there))[together]
    assert abs(distance.mean() - 4096 / 3) < 6 * (4096 / 18**0.5) / distance.size**0.5


def test_draws_are_addressed() -> None:
    """The story of torch's issue 5059: forked workers share one stream, so their samples got the
    same numbers, epoch after epoch. Here a draw has an address.
    """
    places = list(itertools.product(range(3), range(3), range(40), ("crop", "flip")))
    drawn = {place: generator(*place).random() for place in places}
    assert len(set(drawn.values())) == len(places)
    assert all(generator(*place).random() == drawn[place] for place in reversed(places))
