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
    updates: int = 0
    """Updates that each app offers, one after another, when it is opened for the first time."""
    endless: set[tuple[str, int]] = field(default_factory=set)
    """Those that never end, by app and number; the screen does not tell them from the others."""
    decided: dict[str, int] = field(default_factory=dict)
    """How many of its offers each app has had an answer to."""
    answer: bool | None = None
    """To the offer that the screen still acknowledges: whether it was accepted. The next action ends that."""

    @classmethod
    def fresh(cls, seed: int, shuffle_icons: bool, updates: int = 0, endless: float = 0.0) -> PhoneState:
        """A phone as ``seed`` would have it: time, wallpaper, which switches are on, and the order of icons.

        With ``updates``, also which of these never end: a share of ``endless``.
        """
        rng = np.random.default_rng(seed)
        minutes, tint = int(rng.integers(24 * 60)), float(rng.random())
        switches = [(app.name, widget.name) for app in APPS for widget in app.widgets if isinstance(widget, Switch)]
        on = {switch for switch in switches if rng.random() < 0.5}
        names = [app.name for app in APPS]
        icons = [names[place] for place in rng.permutation(len(names))] if shuffle_icons else names
        offers = [(app.name, number) for app in APPS for number in range(updates)]
        luck = np.random.default_rng((seed, 1))
        never_end = {offer for offer in offers if luck.random() < endless}
        return cls(icons, minutes, tint, on, updates=updates, endless=never_end)

    @property
    def pages(self) -> int:
        return -(-len(self.icons) // layout.PER_PAGE)

    def icons_on_page(self) -> list[str]:
        return self.icons[self.page * layout.PER_PAGE : (self.page + 1) * layout.PER_PAGE]

    @property
    def offer(self) -> int | None:
        """The number of the update that the open app offers or makes; None if it has come to its rows."""
        if self.app is None or (number := self.decided.get(self.app.name, 0)) >= self.updates:
            return None
        return number

    def rows(self) -> list[tuple[Widget, Rect]]:
        """The open app's rows that can be seen, and where."""
        rows = [(widget, layout.row_rect(index, self.scroll)) for index, widget in enumerate(self._widgets())]
        return [(widget, rect) for widget, rect in rows if rect.top >= layout.ROWS_TOP and rect.bottom <= layout.BOTTOM]

    def perform(self, action: DeviceAction) -> None:
        """Change as the phone does when it is touched or written on; what has no effect changes nothing."""
        if self.answer is not None:
            self._wait()
            return
        match action.type:
            case "tap":
                self._tap(action.x * layout.WIDTH, action.y * layout.HEIGHT)
            case "swipe":
                self._swipe(action.to_x - action.x, action.to_y - action.y)
            case "type" if self.focused:
                self.typed += action.text.rstrip("\n")
                if action.text.endswith("\n"):
                    self.perform(DeviceAction("enter"))
            case "enter" if self.focused and self.typed:
                self._submit()
            case "back":
                self._back()
            case "home":
                self._home()

    def open(self, app: App) -> None:
        self.app, self.scroll, self.typed = app, 0, ""
        self._show_rows()

    def _show_rows(self) -> None:
        """Focuses the app's field, unless there is an offer in front of it."""
        assert self.app is not None
        self.focused = self.offer is None and any(isinstance(widget, Field) for widget in self.app.widgets)

    def _wait(self) -> None:
        """Whatever is touched, time passes: an update ends or never does, a declined one is gone."""
        assert self.app is not None and self.offer is not None
        if self.answer and (self.app.name, self.offer) in self.endless:
            return
        self.answer = None
        self.decided[self.app.name] = self.offer + 1
        self._show_rows()

    def _widgets(self) -> list[Widget]:
        """The open app's widgets, with the answers to what was submitted below its field."""
        if self.app is None or self.offer is not None:
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
        elif self.offer is not None:
            self._tap_offer(x, y)
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

    def _tap_offer(self, x: float, y: float) -> None:
        if layout.UPDATE_KEY.contains(x, y):
            self.answer = True
        elif layout.LATER_KEY.contains(x, y):
            self.answer = False

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
