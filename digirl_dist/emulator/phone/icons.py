"""The demo phone's app icons: glyphs as data on a field of 100 x 100 units, drawn large and scaled down smoothly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

from PIL import Image, ImageDraw

from digirl_dist.emulator.phone.apps import App

Point = tuple[float, float]
Color = tuple[int, int, int]

_UNIT = 2
"""Pixels per unit while drawing; well above the final size, so that scaling down smooths the edges."""
_WHITE = (255, 255, 255)


class Shape(Protocol):
    def draw(self, draw: ImageDraw.ImageDraw, back: Color) -> None: ...


@dataclass(frozen=True)
class Disc:
    """A circle; ``ink`` None: in the icon's own colour, as if cut out."""

    x: float
    y: float
    radius: float
    ink: Color | None = _WHITE

    def draw(self, draw: ImageDraw.ImageDraw, back: Color) -> None:
        x, y, radius = self.x * _UNIT, self.y * _UNIT, self.radius * _UNIT
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=self.ink or back)


@dataclass(frozen=True)
class Box:
    """A rectangle with rounded corners."""

    left: float
    top: float
    right: float
    bottom: float
    corner: float = 5
    ink: Color | None = _WHITE

    def draw(self, draw: ImageDraw.ImageDraw, back: Color) -> None:
        edges = [edge * _UNIT for edge in (self.left, self.top, self.right, self.bottom)]
        draw.rounded_rectangle(edges, self.corner * _UNIT, fill=self.ink or back)


@dataclass(frozen=True)
class Stroke:
    """A line through points."""

    points: tuple[Point, ...]
    width: float = 7
    ink: Color | None = _WHITE

    def draw(self, draw: ImageDraw.ImageDraw, back: Color) -> None:
        points = [(x * _UNIT, y * _UNIT) for x, y in self.points]
        draw.line(points, fill=self.ink or back, width=round(self.width * _UNIT), joint="curve")


@dataclass(frozen=True)
class Polygon:
    points: tuple[Point, ...]
    ink: Color | None = _WHITE

    def draw(self, draw: ImageDraw.ImageDraw, back: Color) -> None:
        draw.polygon([(x * _UNIT, y * _UNIT) for x, y in self.points], fill=self.ink or back)


_SUN = (255, 214, 64)

GLYPHS: dict[str, tuple[Shape, ...]] = {
    "Clock": (Disc(50, 50, 32), Stroke(((50, 28), (50, 52), (64, 62)), 7, None)),
    "Settings": (
        *(
            Stroke(ends, 15)
            for ends in (((50, 16), (50, 84)), ((16, 50), (84, 50)), ((26, 26), (74, 74)), ((26, 74), (74, 26)))
        ),
        Disc(50, 50, 26),
        Disc(50, 50, 12, None),
    ),
    "Messages": (
        Box(18, 24, 82, 66, 14),
        Polygon(((28, 60), (28, 84), (50, 62))),
        *(Disc(x, 45, 5, None) for x in (35, 50, 65)),
    ),
    "Browser": (
        Disc(50, 50, 33),
        Disc(50, 50, 26, None),
        Polygon(((66, 32), (57, 57), (43, 43))),
        Polygon(((34, 68), (57, 57), (43, 43)), _SUN),
    ),
    "Store": (
        Box(22, 38, 78, 82, 8),
        Stroke(((36, 44), (36, 30), (44, 20), (56, 20), (64, 30), (64, 44)), 6),
        Polygon(((43, 48), (43, 74), (64, 61)), None),
    ),
    "Camera": (Box(16, 32, 84, 78, 10), Box(36, 22, 64, 40, 6), Disc(50, 55, 18, None), Disc(50, 55, 11)),
    "Notes": (Box(26, 18, 76, 82, 6), *(Stroke(((36, y), (66, y)), 5, None) for y in (34, 48, 62))),
    "Music": (Stroke(((40, 70), (40, 26), (72, 20), (72, 62)), 8), Disc(31, 70, 12), Disc(63, 63, 12)),
    "Calendar": (
        Box(20, 22, 80, 82, 8),
        Box(20, 36, 80, 41, 0, None),
        Stroke(((35, 16), (35, 30)), 6),
        Stroke(((65, 16), (65, 30)), 6),
        *(Disc(x, y, 5, None) for y in (54, 69) for x in (34, 50, 66)),
    ),
    "Maps": (Disc(50, 40, 24), Polygon(((29, 52), (71, 52), (50, 86))), Disc(50, 40, 10, None)),
    "Weather": (Disc(64, 36, 18, _SUN), Disc(34, 60, 15), Disc(52, 52, 19), Disc(68, 62, 13), Box(30, 58, 72, 75, 8)),
    "Photos": (
        Box(18, 24, 82, 78, 8),
        Disc(64, 40, 7, _SUN),
        Polygon(((24, 72), (44, 42), (60, 72)), None),
        Polygon(((50, 72), (62, 54), (76, 72)), None),
    ),
}


@cache
def icon(app: App, size: int) -> Image.Image:
    """The app's icon, RGBA, ``size`` x ``size`` pixels: the same image for all phones, to be pasted, not changed."""
    edge = 100 * _UNIT
    large = Image.new("RGBA", (edge, edge), (*app.color, 0))
    draw = ImageDraw.Draw(large)
    draw.rounded_rectangle((0, 0, edge - 1, edge - 1), 26 * _UNIT, fill=app.color)
    for shape in GLYPHS[app.name]:
        shape.draw(draw, app.color)
    return large.resize((size, size), Image.Resampling.LANCZOS)
