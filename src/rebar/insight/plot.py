"""Lines over steps as an SVG picture: no library, opens in every browser, a few kilobytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 48
MOST_POINTS = 1500  # more than two a pixel say nothing; a long run is thinned to as many


@dataclass(frozen=True, slots=True)
class Series:
    """One line. points: (x, y) by x; what is not finite is left out. faint: behind the others.
    dots: a mark at every point.
    """

    name: str
    points: Points
    colour: str
    faint: bool = False
    dots: bool = False


def smoothed(points: Points, share: float = 0.9) -> list[tuple[float, float]]:
    """Exponential mean, corrected for its beginning as Adam corrects its moments."""
    mean, weight, out = 0.0, 0.0, []
    for x, y in points:
        if math.isfinite(y):
            mean = share * mean + (1 - share) * y
            weight = share * weight + (1 - share)
            out.append((x, mean / weight))
    return out


def line_plot(series: Sequence[Series], title: str, x_label: str, y_label: str) -> str:
    """The picture as text."""
    lines = [
        Series(s.name, _finite(s.points), s.colour, s.faint, s.dots)
        for s in sorted(series, key=lambda s: not s.faint)
    ]
    lines = [s for s in lines if s.points]
    x_ticks = ticks([x for s in lines for x, _ in s.points])
    y_ticks = ticks([y for s in lines for _, y in s.points])
    heading = escape(_cut(title, lines))
    frame = _Frame(x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#222222">{heading}</text>',
        *_grid(frame, x_ticks, y_ticks),
        *(part for s in lines for part in _line(frame, s)),
        *_legend(lines),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle" '
        f'fill="#444444">{escape(x_label)}</text>',
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle" fill="#444444" '
        f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(y_label)}</text>',
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def ticks(values: Sequence[float], about: int = 6) -> list[float]:
    """Round numbers from at or below the least to at or above the largest, about so many."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= abs(high) * 1e-9:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where numbers lie on the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def _finite(points: Points) -> list[tuple[float, float]]:
    sound = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    every = -(-len(sound) // MOST_POINTS) if sound else 1
    return [*sound[:-1:every], *sound[-1:]]


def _grid(frame: _Frame, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
    out = []
    for value in y_ticks:
        y = frame.y(value)
        out.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="#444444">{value:g}</text>'
        )
    for value in x_ticks:
        x = frame.x(value)
        out.append(
            f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v5" stroke="#888888"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle" '
            f'fill="#444444">{value:g}</text>'
        )
    out.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#888888"/>')
    return out


def _line(frame: _Frame, s: Series) -> list[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in s.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = 'stroke-width="1" stroke-opacity="0.35"' if s.faint else 'stroke-width="2"'
    out = [
        f'<polyline points="{path}" fill="none" stroke="{s.colour}" {style} '
        'stroke-linejoin="round"/>'
    ]
    if s.dots or len(places) == 1:
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{s.colour}"/>' for x, y in places]
    return out


def _cut(title: str, lines: Sequence[Series]) -> str:
    """The end of a title that would run into the legend."""
    room = int((WIDTH - RIGHT - LEFT - sum(map(_legend_width, lines)) - 10) / 8.5)  # 15 px letters
    return title if len(title) <= room else f"…{title[1 - room :]}"


def _legend_width(s: Series) -> float:
    return 7.0 * len(s.name) + 34


def _legend(lines: Sequence[Series]) -> list[str]:
    """Names from the right end of the title's line."""
    out, x = [], float(WIDTH - RIGHT)
    for s in reversed(lines):
        x -= _legend_width(s)
        opacity = ' stroke-opacity="0.35"' if s.faint else ""
        out.append(
            f'<path d="M{x:.0f} 20h18" stroke="{s.colour}" stroke-width="2"{opacity}/>'
            f'<text x="{x + 23:.0f}" y="24" fill="#222222">{escape(s.name)}</text>'
        )
    return out
