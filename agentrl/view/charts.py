"""Curves as SVG that the server draws: it needs no script, and nothing of it comes from a model or a tool but names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrl.figures import compact

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 20
NUM_DRAWN = 300
"""Points of a curve; more are drawn as means of neighbours."""
NUM_MARKED = 40
"""Up to so many, each point is marked, and tells its figures to a pointer."""


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. Points come by x; what was not measured is left out."""

    name: str
    points: Sequence[Point]

    @property
    def last(self) -> str:
        return compact(self.points[-1].y)


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis."""

    title: str
    series: Sequence[Series]
    x_name: str = "step"

    @classmethod
    def of(cls, title: str, series: Mapping[str, Sequence[tuple[float, float | None]]], x_name: str = "step") -> Chart:
        """With those of the series that have finite points."""
        found = [Series(name, list(_finite(points))) for name, points in series.items()]
        return cls(title, [one for one in found if one.points], x_name)

    @property
    def drawn(self) -> Drawn:
        """In the units of the picture."""
        points = [point for one in self.series for point in one.points]
        return Drawn(
            _scale([p.x for p in points], is_padded=False), _scale([p.y for p in points], is_padded=True), self
        )

    @property
    def told(self) -> str:
        """For those who don't see it."""
        return f"{self.title} by {self.x_name}. " + " ".join(_told(one) for one in self.series)


class Scale(NamedTuple):
    low: float
    high: float

    def share(self, value: float) -> float:
        """Where it lies between low and high, 0..1."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Drawn:
    x: Scale
    y: Scale
    chart: Chart

    @property
    def lines(self) -> Iterator[tuple[int, str, list[tuple[float, float, str]]]]:
        """(number, the points of a polyline, marked points with what they say)."""
        for number, one in enumerate(self.chart.series):
            points = _thinned(one.points)
            places = [self.place(point) for point in points]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            marked = zip(places, points, strict=True) if len(points) <= NUM_MARKED else ()
            says = f"{one.name}, {self.chart.x_name}"
            yield number, line, [(x, y, f"{says} {compact(p.x)}: {compact(p.y)}") for (x, y), p in marked]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(height, label) of the lines across."""
        values = [self.y.low + (self.y.high - self.y.low) * share for share in (0.0, 0.5, 1.0)]
        return [(self.place(Point(self.x.low, value))[1], compact(value)) for value in values]

    @property
    def ends(self) -> tuple[str, str]:
        return compact(self.x.low), compact(self.x.high)

    def place(self, point: Point) -> tuple[float, float]:
        return (
            LEFT + self.x.share(point.x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.share(point.y) * (HEIGHT - TOP - BOTTOM),
        )


def _finite(points: Sequence[tuple[float, float | None]]) -> Iterator[Point]:
    for x, y in points:
        if isinstance(y, int | float) and math.isfinite(y):
            yield Point(x, y)


def _scale(values: Sequence[float], *, is_padded: bool) -> Scale:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if is_padded and 0 < low < (high - low):
        low = 0.0  # near enough for the axis to begin at nothing
    if low == high:
        around = abs(low) / 2 or 0.5
        low, high = low - around, high + around
    return Scale(low, high)


def _thinned(points: Sequence[Point]) -> list[Point]:
    size = math.ceil(len(points) / NUM_DRAWN)
    parts = [points[start : start + size] for start in range(0, len(points), size)] if size > 1 else []
    return [Point(*(sum(axis) / len(part) for axis in zip(*part, strict=True))) for part in parts] or list(points)


def _told(one: Series) -> str:
    values = [point.y for point in one.points]
    span = f"from {compact(values[0])} to {compact(values[-1])}, lowest {compact(min(values))}, highest"
    return f"{one.name}: {len(values)} points {span} {compact(max(values))}."
