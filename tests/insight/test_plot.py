from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from rebar.insight.plot import MOST_POINTS, Series, line_plot, smoothed, ticks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*series: Series) -> ET.Element:
    return ET.fromstring(line_plot(series, "loss <of> a & b", "step", "nats"))


def places(line: ET.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]  # type: ignore[misc]


def test_a_falling_loss_falls() -> None:
    picture = drawn(Series("training", [(1, 4.0), (50, 2.0), (100, 1.0)], "#123456"))
    (line,) = picture.iter(f"{SVG}polyline")
    xs, ys = zip(*places(line), strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # down on the picture is more
    texts = [t.text for t in picture.iter(f"{SVG}text")]
    assert {"loss <of> a & b", "training", "step", "nats", "1", "4"} <= set(texts)


def test_what_is_no_number_is_left_out_and_long_runs_are_thinned() -> None:
    points = [(float(i), math.nan if i % 2 else i / 7) for i in range(20_000)]
    (line,) = drawn(Series("a", points, "#000000")).iter(f"{SVG}polyline")
    assert len(places(line)) <= MOST_POINTS + 1
    assert not list(drawn(Series("a", [(1, math.inf)], "#000000")).iter(f"{SVG}polyline"))


def test_one_point_is_seen() -> None:
    assert len(list(drawn(Series("held out", [(10, 3.0)], "#0a0")).iter(f"{SVG}circle"))) == 1


def test_the_faint_line_is_behind_and_dots_mark_points() -> None:
    picture = drawn(
        Series("b", [(0, 1.0), (1, 2.0)], "#00f", dots=True),
        Series("a", [(0, 1.0), (1, 2.0)], "#f00", faint=True),
    )
    assert [e.attrib["stroke"] for e in picture.iter(f"{SVG}polyline")] == ["#f00", "#00f"]
    assert len(list(picture.iter(f"{SVG}circle"))) == 2


def test_a_long_title_gives_way_to_the_legend() -> None:
    """A model's path ran across the names of the lines; its end says more than its beginning."""
    line = Series("held out", [(0, 1.0), (1, 2.0)], "#00f")
    for title in ("short", "/a/very/long/path" * 8 + " on chat.jsonl"):
        picture = ET.fromstring(line_plot([line], title, "step", "loss"))
        first, *_ = (e.text or "" for e in picture.iter(f"{SVG}text"))
        assert title.endswith(first.removeprefix("…"))
        assert (first == title) == (title == "short")
        assert 64 + 8.5 * len(first) <= 760 - 20 - 34 - 7 * len("held out")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 100.0], [0, 20, 40, 60, 80, 100]),
        ([2.13, 3.97], [2, 2.5, 3, 3.5, 4]),
        ([5.0, 5.0], [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),
        ([], [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round_and_hold_all(values: list[float], expected: list[float]) -> None:
    assert ticks(values) == pytest.approx(expected)
    assert min(values, default=0) >= ticks(values)[0]
    assert max(values, default=1) <= ticks(values)[-1]


def test_a_smoothed_line_begins_where_the_points_do_and_keeps_a_constant() -> None:
    constant = smoothed([(1, 3.0), (2, 3.0), (3, math.nan), (4, 3.0)])
    assert [x for x, _ in constant] == [1, 2, 4]
    assert [y for _, y in constant] == pytest.approx([3.0] * 3)
    assert smoothed([(0, 8.0), (1, 0.0)])[0][1] == pytest.approx(8.0)
