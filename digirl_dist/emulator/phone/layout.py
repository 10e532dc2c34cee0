"""Where things are on the demo phone's screen, in pixels; shared by what is drawn and what a tap hits."""

from __future__ import annotations

from typing import NamedTuple

WIDTH, HEIGHT = 216, 384
COLUMNS, ICON_ROWS = 3, 3
PER_PAGE = COLUMNS * ICON_ROWS
ICON = 50
ROW = 44
TOP, BOTTOM = 18, HEIGHT - 24
"""Lower edge of the status bar, upper edge of the navigation bar."""
ROWS_TOP = TOP + 38
"""Lower edge of an app's title bar."""
KEYBOARD_TOP = BOTTOM - 104
_ICONS_TOP, _ICON_PITCH = 92, 82


class Rect(NamedTuple):
    """Pixels from (left, top) up to and without (right, bottom)."""

    left: int
    top: int
    right: int
    bottom: int

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x < self.right and self.top <= y < self.bottom

    def inset(self, dx: int, dy: int) -> Rect:
        return Rect(self.left + dx, self.top + dy, self.right - dx, self.bottom - dy)


BACK_KEY = Rect(0, BOTTOM, WIDTH // 3, HEIGHT)
HOME_KEY = Rect(WIDTH // 3, BOTTOM, 2 * WIDTH // 3, HEIGHT)
KEYBOARD = Rect(0, KEYBOARD_TOP, WIDTH, BOTTOM)
ENTER_KEY = Rect(WIDTH - 46, BOTTOM - 27, WIDTH - 2, BOTTOM - 3)
OFFER = Rect(14, 96, WIDTH - 14, 296)
UPDATE_KEY = Rect(26, 174, WIDTH - 26, 222)
LATER_KEY = Rect(26, 232, WIDTH - 26, 280)


def icon_rect(place: int) -> Rect:
    """The icon at one of a home page's places, counted row by row."""
    column, row = place % COLUMNS, place // COLUMNS
    left = WIDTH * (2 * column + 1) // (2 * COLUMNS) - ICON // 2
    top = _ICONS_TOP + row * _ICON_PITCH
    return Rect(left, top, left + ICON, top + ICON)


def icon_touch_rect(place: int) -> Rect:
    """What opens the app: its icon, its label and a little around them."""
    left, top, right, bottom = icon_rect(place)
    return Rect(left - 5, top - 3, right + 5, bottom + 18)


def row_rect(index: int, scroll: int) -> Rect:
    """Row ``index`` of an app that was scrolled by ``scroll`` rows; it may lie outside the visible part."""
    top = ROWS_TOP + (index - scroll) * ROW
    return Rect(0, top, WIDTH, top + ROW)


def rows_that_fit() -> int:
    return (BOTTOM - ROWS_TOP) // ROW
