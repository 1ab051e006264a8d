"""Rotation tables against the published formulas."""

from __future__ import annotations

import numpy as np

from rebar.graph.models.config import RopeConfig
from rebar.graph.models.rope import inverse_frequencies, rope_table


def test_the_first_pair_turns_one_radian_a_position() -> None:
    table = rope_table(RopeConfig(theta=10000.0, dim=8), 4)
    assert table.shape == (4, 8)
    assert table.dtype == np.float32
    assert (table[0] == [1, 1, 1, 1, 0, 0, 0, 0]).all()
    assert table[3, 0] == np.float32(np.cos(3.0))
    assert table[3, 7] == np.float32(np.sin(3 * 10000.0 ** (-6 / 8)))


def test_linear_scaling_stretches_positions() -> None:
    plain = inverse_frequencies(RopeConfig(theta=1e6, dim=16))
    assert (
        inverse_frequencies(RopeConfig(theta=1e6, dim=16, scaling="linear", factor=8.0)) * 8
        == plain
    ).all()


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    """Llama 3.1: original context 8192, factors 8, 1, 4."""
    rope = RopeConfig(theta=500000.0, dim=128, scaling="llama3", factor=8.0)
    plain, scaled = (
        inverse_frequencies(RopeConfig(theta=500000.0, dim=128)),
        inverse_frequencies(rope),
    )
    waves = 2 * np.pi / plain
    short, long = waves < 8192 / 4, waves > 8192 / 1
    assert (scaled[short] == plain[short]).all()
    assert np.allclose(scaled[long] * 8, plain[long], rtol=1e-15)
    between = ~short & ~long
    assert between.any()
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8)).all()
