"""The ladder of lab/gemm: each rung compiles without a warning and gives what the first gives."""

from __future__ import annotations

import numpy as np
import pytest
from lab.gemm import ladder, measure

SIZES = [(1, 48, 64), (3, 96, 128), (8, 144, 64), (13, 96, 192), (29, 48, 576)]


@pytest.fixture(scope="module", params=["-march=native", ""], ids=["this machine", "any machine"])
def rungs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[ladder.Rung]:
    """Compiled for this machine, and as for one without vector extensions."""
    return ladder.rungs(tmp_path_factory.mktemp("rungs"), request.param or "-O3")


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_rung_gives_what_the_first_gives(
    rungs: list[ladder.Rung], size: tuple[int, int, int]
) -> None:
    case = ladder.Case.random(*size)
    for rung in rungs:
        if rung.needs is None:
            for threads in (1, 3):
                ladder.verify(rung, rungs[0], case, threads)


def test_a_rung_that_cannot_run_here_says_what_it_lacks(rungs: list[ladder.Rung]) -> None:
    """The first four run anywhere; the others all need the same."""
    assert [r.name for r in rungs[:4] if r.needs] == []
    assert {r.needs for r in rungs[4:]} in ({None}, {"AVX-512 VNNI"})


def test_the_ladder_is_whole_and_each_step_has_its_reason(rungs: list[ladder.Rung]) -> None:
    assert [int(r.number) for r in rungs] == list(range(1, len(rungs) + 1))
    assert all(r.why.endswith(".") and len(r.why) > 40 for r in rungs)
    for source in ladder.HERE.glob("*.cpp"):
        assert len(source.read_text().splitlines()) < 100 or source.name == "ceilings.cpp"


def test_one_wrong_sum_is_seen(rungs: list[ladder.Rung]) -> None:
    """The comparison itself, for integers by one and for floats by more than rounding."""
    case = ladder.Case.random(2, 48, 64)
    exact = ladder.exact(case)
    wanted = rungs[0].product(exact)
    np.testing.assert_array_equal(wanted, case.xi.astype(np.int64) @ case.wi.T.astype(np.int64))
    other = wanted.copy()
    other[1, 47] += 1
    with pytest.raises(AssertionError, match="1 of 96 differ"):
        ladder.compare("x", other, wanted, np.zeros(1))
    broken = ladder.Case(case.xf.copy(), case.wf, case.xi, case.wi)
    broken.xf[0, 5] += 0.01
    products = rungs[0].product(broken), rungs[0].product(case)
    with pytest.raises(AssertionError, match="differ"):
        ladder.compare("x", *products, ladder.tolerance(case))


def test_the_table_tells_rates_shares_and_gains() -> None:
    """Figures made up: 1 ms and 0.5 ms for one row of 3,538,944 operations."""
    operations = 2 * measure.N * measure.K
    first = measure.Line("1 first", True, 1, "It is first.", dict.fromkeys(measure.ROWS, 1e-3))
    second = measure.Line("2 second", True, 1, "It is next.", dict.fromkeys(measure.ROWS, 5e-4))
    vendor = measure.Line("Vendor", True, 1, "", dict.fromkeys(measure.ROWS, 1e-3))
    limits = measure.Ceilings(
        floats=operations * 8e3, bytes=0, read=4 * measure.N * measure.K * 4e3
    )
    assert limits.share(first, 1) == pytest.approx(0.25)  # reading takes longer than computing
    assert limits.share(first, 8) == pytest.approx(1.0)
    lines = measure.table([([vendor, first, second], limits)]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["1 first", "2 second", "Vendor"]
    assert lines[2].split("|")[2].strip() == f"{operations * 1e-6:.3g}"
    assert "2.0 / 2.0 / 2.0 x" in lines[3]
    assert measure.Ceilings(1, 0, 1).share(measure.Line("x", False, 1, "", {1: 1.0}), 1) is None
