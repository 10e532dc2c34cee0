"""Draws the demo phone's screen."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from digirl_dist.emulator import png
from digirl_dist.emulator.phone import layout
from digirl_dist.emulator.phone.apps import APPS, App, Button, Field, Line, Switch, Widget
from digirl_dist.emulator.phone.layout import Rect
from digirl_dist.emulator.phone.state import PhoneState

Point = tuple[float, float]
Color = tuple[int, int, int]

_INK, _GREY, _RULE, _WHITE = (32, 33, 36), (118, 122, 130), (226, 228, 232), (255, 255, 255)
_PAPER, _KEYBOARD, _ACCENT, _OFF = (250, 250, 252), (214, 217, 223), (24, 120, 230), (190, 194, 202)
_UNIT = 2
"""Pixels per unit while drawing; well above the final size, so that scaling down smooths the edges."""


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


_KEYS = ("QWERTYUIOP", "ASDFGHJKL", "ZXCVBNM")
_SAID = {None: "An update is available", True: "Updating, please wait", False: "Maybe later, then"}
_SMOOTH = 4
"""Round things are drawn this much larger and scaled down: Pillow draws them without smooth edges."""


class Screen:
    """Keeps fonts and icons ready; ``draw`` is a pure function of the state."""

    def __init__(self) -> None:
        self._small, self._medium = ImageFont.load_default(11), ImageFont.load_default(13)
        self._large, self._huge = ImageFont.load_default(17), ImageFont.load_default(40)
        self._icons = {app.name: icon(app, layout.ICON) for app in APPS}
        self._switches = {on: _switch(on) for on in (False, True)}
        self._buttons = {pressed: _button(pressed) for pressed in (False, True)}
        self._keyboard = self._draw_keyboard()

    def draw(self, state: PhoneState) -> bytes:
        """The screen as PNG."""
        image = self._home(state) if state.app is None else self._open_app(state, state.app)
        self._status_bar(ImageDraw.Draw(image), state)
        return png(image)

    # --- the home screen -----------------------------------------------------------------------------------------

    def _home(self, state: PhoneState) -> Image.Image:
        image = _wallpaper(state.tint)
        draw = ImageDraw.Draw(image)
        middle = layout.WIDTH / 2
        draw.text((middle, 54), _clock(state.minutes), _WHITE, self._huge, "mm")
        for place, name in enumerate(state.icons_on_page()):
            rect = layout.icon_rect(place)
            image.paste(self._icons[name], (rect.left, rect.top), self._icons[name])
            draw.text((rect.left + layout.ICON / 2, rect.bottom + 9), name, _WHITE, self._small, "mm")
        for page in range(state.pages):
            x, radius = middle + 12 * (page - (state.pages - 1) / 2), 3 if page == state.page else 2
            draw.ellipse((x - radius, 344 - radius, x + radius, 344 + radius), fill=_WHITE)
        _navigation_bar(draw, _WHITE)
        return image

    def _status_bar(self, draw: ImageDraw.ImageDraw, state: PhoneState) -> None:
        draw.text((8, 9), _clock(state.minutes), _WHITE, self._small, "lm")
        right = layout.WIDTH - 8
        draw.rounded_rectangle((right - 18, 5, right - 2, 13), 2, outline=_WHITE)
        draw.rectangle((right - 16, 7, right - 7, 11), fill=_WHITE)
        draw.rectangle((right - 1, 7, right, 11), fill=_WHITE)
        for bar in range(4):
            draw.rectangle((right - 38 + 4 * bar, 11 - 2 * bar, right - 36 + 4 * bar, 13), fill=_WHITE)

    # --- an open app ---------------------------------------------------------------------------------------------

    def _open_app(self, state: PhoneState, app: App) -> Image.Image:
        image = Image.new("RGB", (layout.WIDTH, layout.HEIGHT), _PAPER)
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, 0, layout.WIDTH, layout.ROWS_TOP - 1), fill=app.color)
        draw.text((14, (layout.TOP + layout.ROWS_TOP) / 2), app.name, _WHITE, self._large, "lm")
        for widget, rect in state.rows():
            self._row(image, draw, state, app, widget, rect)
        if state.offer is not None:
            self._offer(draw, app, state.offer, state.answer)
        if state.focused:
            image.paste(self._keyboard, (layout.KEYBOARD.left, layout.KEYBOARD.top))
        _navigation_bar(draw, _GREY)
        return image

    def _offer(self, draw: ImageDraw.ImageDraw, app: App, number: int, accepted: bool | None) -> None:
        card, middle = layout.OFFER, layout.WIDTH / 2
        draw.rounded_rectangle(card, 10, fill=_WHITE, outline=_RULE)
        draw.text((middle, card.top + 26), f"{app.name} {number + 2}.0", _INK, self._large, "mm")
        draw.text((middle, card.top + 56), _SAID[accepted], _GREY, self._medium, "mm")
        if accepted is None:
            for rect, text, fill, ink in (
                (layout.UPDATE_KEY, "Update now", _ACCENT, _WHITE),
                (layout.LATER_KEY, "Later", _KEYBOARD, _INK),
            ):
                draw.rounded_rectangle((*rect[:2], rect.right - 1, rect.bottom - 1), 8, fill=fill)
                draw.text((middle, _middle(rect)), text, ink, self._medium, "mm")
        elif accepted:
            draw.rounded_rectangle((40, 200, layout.WIDTH - 40, 208), 4, fill=_RULE)
            draw.rounded_rectangle((40, 200, layout.WIDTH // 2, 208), 4, fill=app.color)

    def _row(
        self, image: Image.Image, draw: ImageDraw.ImageDraw, state: PhoneState, app: App, widget: Widget, rect: Rect
    ) -> None:
        if not isinstance(widget, Field):
            draw.line((14, rect.bottom - 1, rect.right - 14, rect.bottom - 1), fill=_RULE)
        match widget:
            case Switch(name):
                self._label(draw, rect, name)
                _paste_right(image, self._switches[(app.name, name) in state.on], rect)
            case Button(name):
                self._label(draw, rect, name)
                _paste_right(image, self._buttons[(app.name, name) in state.on], rect)
            case Field(hint):
                self._field(draw, rect, hint, state)
            case Line(text, detail):
                self._label(draw, rect, text)
                draw.text((rect.right - 14, _middle(rect)), detail, _GREY, self._small, "rm")

    def _label(self, draw: ImageDraw.ImageDraw, rect: Rect, text: str) -> None:
        draw.text((14, _middle(rect)), text, _INK, self._medium, "lm")

    def _field(self, draw: ImageDraw.ImageDraw, rect: Rect, hint: str, state: PhoneState) -> None:
        edge = _ACCENT if state.focused else _OFF
        draw.rounded_rectangle(rect.inset(10, 7), 14, fill=_WHITE, outline=edge, width=2 if state.focused else 1)
        text, ink = (state.typed, _INK) if state.typed else (hint, _GREY)
        draw.text((22, _middle(rect)), text, ink, self._medium, "lm")
        if state.focused:
            caret = 23 + draw.textlength(state.typed, self._medium)
            draw.line((caret, rect.top + 14, caret, rect.bottom - 15), fill=_ACCENT, width=1)

    def _draw_keyboard(self) -> Image.Image:
        left, top, right, bottom = layout.KEYBOARD
        image = Image.new("RGB", (right - left, bottom - top), _KEYBOARD)
        draw = ImageDraw.Draw(image)
        for row, letters in enumerate(_KEYS):
            start = (layout.WIDTH - 21 * len(letters)) // 2
            for column, letter in enumerate(letters):
                x, y = start + 21 * column, 4 + 25 * row
                draw.rounded_rectangle((x + 1, y, x + 19, y + 21), 3, fill=_WHITE)
                draw.text((x + 10, y + 11), letter, _INK, self._small, "mm")
        draw.rounded_rectangle((52, 79, 164, 100), 3, fill=_WHITE)
        enter = [edge - offset for edge, offset in zip(layout.ENTER_KEY, (left, top, left, top), strict=True)]
        draw.rounded_rectangle((enter[0], enter[1], enter[2] - 1, enter[3] - 1), 3, fill=_ACCENT)
        draw.text(((enter[0] + enter[2]) / 2, (enter[1] + enter[3]) / 2), "Enter", _WHITE, self._small, "mm")
        return image


def _wallpaper(tint: float) -> Image.Image:
    """A vertical gradient of dark colours around the hue ``tint``; one colour per line, which PNG packs well."""
    top, bottom = (
        np.array(colorsys.hsv_to_rgb(hue % 1, 0.55, value)) for hue, value in ((tint, 0.30), (tint + 0.12, 0.62))
    )
    share = np.linspace(0, 1, layout.HEIGHT)[:, None, None]
    pixels = np.broadcast_to(255 * (top + share * (bottom - top)), (layout.HEIGHT, layout.WIDTH, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def _navigation_bar(draw: ImageDraw.ImageDraw, ink: Color) -> None:
    for key in (layout.BACK_KEY, layout.HOME_KEY):
        x, y = (key.left + key.right) / 2, (key.top + key.bottom) / 2
        if key is layout.BACK_KEY:
            draw.polygon(((x - 5, y), (x + 4, y - 5), (x + 4, y + 5)), outline=ink)
        else:
            draw.ellipse((x - 5, y - 5, x + 5, y + 5), outline=ink)


@cache
def _switch(on: bool) -> Image.Image:
    width, height, margin = 38 * _SMOOTH, 22 * _SMOOTH, 3 * _SMOOTH
    large = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(large)
    draw.rounded_rectangle((0, 0, width - 1, height - 1), height // 2, fill=_ACCENT if on else _OFF)
    left = width - height + margin if on else margin
    draw.ellipse((left, margin, left + height - 2 * margin, height - margin), fill=_WHITE)
    return large.resize((width // _SMOOTH, height // _SMOOTH), Image.Resampling.LANCZOS)


@cache
def _button(pressed: bool) -> Image.Image:
    edge = 34 * _SMOOTH
    large = Image.new("RGB", (edge, edge), _PAPER)
    draw = ImageDraw.Draw(large)
    draw.ellipse((0, 0, edge - 1, edge - 1), fill=_ACCENT if pressed else (214, 56, 56))
    draw.ellipse((edge * 0.3, edge * 0.3, edge * 0.7, edge * 0.7), fill=_WHITE)
    return large.resize((edge // _SMOOTH, edge // _SMOOTH), Image.Resampling.LANCZOS)


def _paste_right(image: Image.Image, sprite: Image.Image, rect: Rect) -> None:
    image.paste(sprite, (rect.right - 14 - sprite.width, (rect.top + rect.bottom - sprite.height) // 2))


def _middle(rect: Rect) -> float:
    return (rect.top + rect.bottom) / 2


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
