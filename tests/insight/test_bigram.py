from __future__ import annotations

import numpy as np
import pytest

from rebar.insight.bigram import Ids, Pairs, bigram_loss


def pairs(ids: Ids) -> Pairs:
    return ids[:-1], ids[1:]


def test_its_chances_add_up_to_one() -> None:
    """For every id that may come before, seen or not: the losses of all ids are those of one
    distribution.
    """
    train = np.random.default_rng(0).zipf(1.5, 500).astype(np.int32) % 12
    for a in range(14):  # 12 and 13 never occur
        every = [
            bigram_loss(pairs(train), pairs(np.array([a, b], np.int32)), 14) for b in range(14)
        ]
        assert np.exp(-np.array(every)).sum() == pytest.approx(1.0, abs=1e-12)


def test_a_pattern_of_pairs_is_nearly_free_and_noise_is_not() -> None:
    pattern = np.tile(np.arange(16, dtype=np.int32), 200)
    noise = np.random.default_rng(1).integers(0, 16, 3200).astype(np.int32)
    assert bigram_loss(pairs(pattern), pairs(pattern), 16) < 0.01
    assert bigram_loss(pairs(noise[:1600]), pairs(noise[1600:]), 16) == pytest.approx(
        np.log(16), rel=0.05
    )
