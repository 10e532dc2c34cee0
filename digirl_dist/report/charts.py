"""Charts as inline SVG with axes, ticks, and the values under the pointer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from digirl_dist.report.markup import element, short_number

_WIDTH, _HEIGHT = 460.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 10.0, 34.0
_DOTS = 60
"""Largest number of points for which a line gets a dot at each."""

Value = float | None


@dataclass(frozen=True)
class Series:
    """A named row of values, one per place on the x axis; ``colour`` is an index into the page's colours."""

    name: str
    values: Sequence[Value]
    colour: int = 1

    def described(self, place: int) -> str:
        return f"{self.name} {short_number(self.values[place])}"


@dataclass(frozen=True)
class _Plot:
    """The drawing area: ``labels`` name the places of the x axis; the y axis spans ``low`` to ``high``."""

    labels: Sequence[str]
    low: float
    high: float

    def x(self, place: float) -> float:
        """Returns the x coordinate of a place's middle."""
        return _LEFT + (place + 0.5) * self.pitch

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)

    @property
    def pitch(self) -> float:
        return (_WIDTH - _LEFT - _RIGHT) / len(self.labels)


def line_chart(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    bounds: tuple[float, float] | None = None,
    x_title: str = "iteration",
) -> Element:
    """Draws lines with gaps where values are None. ``bounds`` fixes the y axis."""
    low, high = bounds or _extent([value for one in series for value in one.values])
    plot = _Plot(labels, low, high)
    drawn = [mark for one in series for mark in _line(plot, one)]
    return _chart(title, x_title, plot, series, drawn)


def stacked_bars(title: str, labels: Sequence[str], parts: Sequence[Series], line: Series) -> Element:
    """Draws bars of ``parts`` stacked from zero upwards, None as zero, and a line over them."""
    heights = [sum(max(0.0, part.values[place] or 0.0) for part in parts) for place in range(len(labels))]
    _, high = _extent([0.0, *heights, *line.values])
    plot = _Plot(labels, 0.0, high)
    drawn = [*_bars(plot, parts), *_line(plot, line)]
    return _chart(title, "iteration", plot, [*parts, line], drawn)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Returns round numbers from ``low`` to ``high`` in steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _extent(values: Sequence[Value]) -> tuple[float, float]:
    """Returns bounds around ``values`` that are never equal."""
    present = [value for value in values if value is not None]
    low, high = min(present, default=0.0), max(present, default=1.0)
    margin = 0.0 if high - low > 1e-6 * max(abs(low), abs(high)) else max(abs(high) * 0.1, 0.5)
    return low - margin, high + margin


def _chart(title: str, x_title: str, plot: _Plot, series: Sequence[Series], drawn: Sequence[Element]) -> Element:
    box = {"viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "role": "img", "aria-label": title}
    canvas = element("svg", box, *_axes(plot, x_title), *drawn, *_hover(plot, x_title, series))
    legend = [element("span", {"class": f"key c{one.colour}"}, one.name) for one in series] if len(series) > 1 else []
    caption = element("figcaption", None, element("b", None, title), *legend)
    return element("figure", {"class": "chart"}, caption, canvas)


def _axes(plot: _Plot, x_title: str) -> Iterator[Element]:
    for value in ticks(plot.low, plot.high):
        y = plot.y(value)
        yield element("line", {"class": "grid", "x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": y, "y2": y})
        yield element("text", {"class": "tick end", "x": _LEFT - 6, "y": y + 3.5}, f"{value:.4g}")
    floor = _HEIGHT - _BOTTOM
    yield element("line", {"class": "axis", "x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": floor, "y2": floor})
    for place in _labelled_places(len(plot.labels)):
        x = plot.x(place)
        yield element("line", {"class": "axis", "x1": x, "x2": x, "y1": floor, "y2": floor + 4})
        yield element("text", {"class": "tick middle", "x": x, "y": floor + 15}, plot.labels[place])
    yield element("text", {"class": "tick end", "x": _WIDTH - _RIGHT, "y": _HEIGHT - 4}, x_title)


def _labelled_places(places: int) -> list[int]:
    step = max(1.0, ticks(0, max(1, places - 1), 7)[1])
    return [place for place in range(places) if place % step == 0]


def _line(plot: _Plot, series: Series) -> Iterator[Element]:
    for run in _runs(series.values):
        points = [(plot.x(place), plot.y(value)) for place, value in run]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield element("path", {"class": f"line c{series.colour}", "d": path})
        if len(plot.labels) <= _DOTS or len(points) == 1:
            for x, y in points:
                yield element("circle", {"class": f"dot c{series.colour}", "cx": x, "cy": y, "r": 2.6})


def _runs(values: Sequence[Value]) -> list[list[tuple[int, float]]]:
    """Splits values at their gaps into runs of (place, value)."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            runs[-1].append((place, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _bars(plot: _Plot, parts: Sequence[Series]) -> Iterator[Element]:
    width = min(plot.pitch * 0.8, 34.0)
    for place in range(len(plot.labels)):
        top = 0.0
        for part in parts:
            bottom, top = top, top + max(0.0, part.values[place] or 0.0)
            box = {
                "x": plot.x(place) - width / 2,
                "y": plot.y(top),
                "width": width,
                "height": plot.y(bottom) - plot.y(top),
            }
            yield element("rect", {"class": f"bar c{part.colour}", **box})


def _hover(plot: _Plot, x_title: str, series: Sequence[Series]) -> Iterator[Element]:
    """Yields a hover band per place, as high as the plot, so that the pointer need not hit a thin line."""
    for place, label in enumerate(plot.labels):
        text = "\n".join([f"{x_title} {label}", *(one.described(place) for one in series)])
        box = {"x": _LEFT + place * plot.pitch, "y": _TOP, "width": plot.pitch, "height": _HEIGHT - _TOP - _BOTTOM}
        yield element("rect", {"class": "hover", **box}, element("title", None, text))


def thinned(rows: int, most: int) -> list[range]:
    """Divides ``rows`` places into at most ``most`` bins of equal size (the last may be smaller)."""
    size = max(1, math.ceil(rows / most))
    return [range(first, min(first + size, rows)) for first in range(0, rows, size)]


def binned(bins: Sequence[range], values: Sequence[Value]) -> list[Value]:
    """Returns the mean of each bin's values; None for a bin without values."""
    means: list[Value] = []
    for places in bins:
        present = [value for value in values[places.start : places.stop] if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return means
