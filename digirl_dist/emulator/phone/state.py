"""What the demo phone does: its state and how actions change it. Nothing here draws."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from digirl_dist.emulator.phone import layout
from digirl_dist.emulator.phone.apps import APPS, App, Button, Field, Line, Switch, Widget, app_named
from digirl_dist.emulator.phone.layout import Rect
from digirl_dist.emulator.touch_actions import DeviceAction

_SWIPE = 0.1
"""A swipe shorter than this share of the screen does nothing."""
_SCROLL_ROWS = 3


@dataclass
class PhoneState:
    """Everything that can change. ``on`` holds switches and pressed buttons by (app, name)."""

    icons: list[str]
    minutes: int
    """Time of day in the status bar."""
    tint: float
    """Hue of the wallpaper in [0, 1)."""
    on: set[tuple[str, str]] = field(default_factory=set)
    submitted: dict[str, str] = field(default_factory=dict)
    """Text last submitted in each app's field."""
    page: int = 0
    app: App | None = None
    scroll: int = 0
    focused: bool = False
    typed: str = ""

    @classmethod
    def fresh(cls, seed: int, shuffle_icons: bool) -> PhoneState:
        """A phone as ``seed`` would have it: time, wallpaper, which switches are on, and the order of icons."""
        rng = np.random.default_rng(seed)
        minutes, tint = int(rng.integers(24 * 60)), float(rng.random())
        switches = [(app.name, widget.name) for app in APPS for widget in app.widgets if isinstance(widget, Switch)]
        on = {switch for switch in switches if rng.random() < 0.5}
        names = [app.name for app in APPS]
        icons = [names[place] for place in rng.permutation(len(names))] if shuffle_icons else names
        return cls(icons, minutes, tint, on)

    @property
    def pages(self) -> int:
        return -(-len(self.icons) // layout.PER_PAGE)

    def icons_on_page(self) -> list[str]:
        return self.icons[self.page * layout.PER_PAGE : (self.page + 1) * layout.PER_PAGE]

    def rows(self) -> list[tuple[Widget, Rect]]:
        """The open app's rows that can be seen, and where."""
        rows = [(widget, layout.row_rect(index, self.scroll)) for index, widget in enumerate(self._widgets())]
        return [(widget, rect) for widget, rect in rows if rect.top >= layout.ROWS_TOP and rect.bottom <= layout.BOTTOM]

    def perform(self, action: DeviceAction) -> None:
        """Change as the phone does when it is touched or written on; what has no effect changes nothing."""
        match action.type:
            case "tap":
                self._tap(action.x * layout.WIDTH, action.y * layout.HEIGHT)
            case "swipe":
                self._swipe(action.to_x - action.x, action.to_y - action.y)
            case "type" if self.focused:
                self.typed += action.text
            case "enter" if self.focused and self.typed:
                self._submit()
            case "back":
                self._back()
            case "home":
                self._home()

    def open(self, app: App) -> None:
        self.app, self.scroll, self.typed = app, 0, ""
        self.focused = any(isinstance(widget, Field) for widget in app.widgets)

    def _widgets(self) -> list[Widget]:
        """The open app's widgets, with the answers to what was submitted below its field."""
        if self.app is None:
            return []
        text = self.submitted.get(self.app.name)
        widgets: list[Widget] = []
        for widget in self.app.widgets:
            widgets.append(widget)
            if isinstance(widget, Field) and text is not None:
                widgets.extend(Line(answer.format(text)) for answer in widget.answers)
        return widgets

    def _tap(self, x: float, y: float) -> None:
        if layout.BACK_KEY.contains(x, y):
            self._back()
        elif layout.HOME_KEY.contains(x, y):
            self._home()
        elif self.app is None:
            self._tap_home_screen(x, y)
        elif self.focused and layout.KEYBOARD.contains(x, y):
            if layout.ENTER_KEY.contains(x, y) and self.typed:
                self._submit()
        else:
            self._tap_app(self.app, x, y)

    def _tap_home_screen(self, x: float, y: float) -> None:
        for place, name in enumerate(self.icons_on_page()):
            if layout.icon_touch_rect(place).contains(x, y):
                self.open(app_named(name))
                return

    def _tap_app(self, app: App, x: float, y: float) -> None:
        for widget, rect in self.rows():
            if rect.contains(x, y):
                self._touch(app, widget)

    def _touch(self, app: App, widget: Widget) -> None:
        match widget:
            case Switch(name):
                self.on ^= {(app.name, name)}
            case Button(name):
                self.on.add((app.name, name))
            case Field():
                self.focused = True

    def _submit(self) -> None:
        assert self.app is not None
        self.submitted[self.app.name] = self.typed
        self.typed, self.focused = "", False

    def _swipe(self, dx: float, dy: float) -> None:
        """Home pages turn sideways, apps scroll up and down; content follows the finger."""
        if self.app is None and abs(dx) >= max(abs(dy), _SWIPE):
            self.page = min(max(self.page + (1 if dx < 0 else -1), 0), self.pages - 1)
        elif self.app is not None and abs(dy) >= max(abs(dx), _SWIPE):
            hidden = max(0, len(self._widgets()) - layout.rows_that_fit())
            self.scroll = min(max(self.scroll + (_SCROLL_ROWS if dy < 0 else -_SCROLL_ROWS), 0), hidden)

    def _back(self) -> None:
        """The keyboard goes first, then the app."""
        if self.focused:
            self.focused = False
        elif self.app is not None:
            self.app = None
        else:
            self.page = 0

    def _home(self) -> None:
        self.app, self.focused, self.page = None, False, 0
