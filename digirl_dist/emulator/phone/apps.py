"""What is installed on the demo phone: its apps and what each of them shows, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Switch:
    """A row that is on or off; a tap turns it over."""

    name: str


@dataclass(frozen=True)
class Button:
    """A row with a round button; a tap presses it once and for all."""

    name: str


@dataclass(frozen=True)
class Field:
    """A row to type into; it has the focus when its app opens, and ``enter`` submits what was typed."""

    hint: str
    answers: tuple[str, ...]
    """Lines shown below it after submitting; ``{}`` stands for the submitted text."""


@dataclass(frozen=True)
class Line:
    """A row to read."""

    text: str
    detail: str = ""


Widget = Switch | Button | Field | Line


@dataclass(frozen=True)
class App:
    """One app: a name, the colour of its icon and title bar as RGB, and its rows from top to bottom."""

    name: str
    color: tuple[int, int, int]
    widgets: tuple[Widget, ...]


APPS = (
    App("Clock", (52, 73, 180), (Switch("Morning alarm"), Switch("Evening alarm"), Line("Time zone", "UTC"))),
    App(
        "Settings",
        (96, 108, 122),
        (
            Switch("Wi-Fi"),
            Switch("Bluetooth"),
            Switch("Airplane mode"),
            Switch("Location"),
            Switch("Dark theme"),
            Switch("Battery saver"),
            Switch("Hotspot"),
            Switch("Vibration"),
        ),
    ),
    App("Messages", (34, 168, 92), (Field("Text message", ("You: {}",)), Line("Ann", "See you at six"), Line("Ben"))),
    App("Browser", (226, 122, 28), (Field("Search the web", ("{} - encyclopedia", "{} near you", "Images of {}")),)),
    App("Store", (16, 150, 165), (Field("Search apps", ("{}", "{} pro", "{} for kids")), Line("Top charts"))),
    App("Camera", (62, 66, 74), (Button("Shutter"), Switch("Flash"))),
    App("Notes", (240, 180, 20), (Field("New note", ("Saved: {}",)), Line("Shopping list"), Line("Ideas"))),
    App("Music", (196, 40, 120), (Button("Play"), Switch("Shuffle"), Line("Blue hour", "3:42"))),
    App("Calendar", (214, 56, 56), (Line("Dentist", "Mon 10:00"), Line("Team lunch", "Wed 12:30"), Line("Concert"))),
    App("Maps", (72, 150, 54), (Field("Where to?", ("{} - 12 min", "{} - 25 min")), Switch("Satellite view"))),
    App("Weather", (70, 150, 220), (Line("Today", "18 degrees"), Line("Tomorrow", "21 degrees"), Switch("Alerts"))),
    App("Photos", (140, 84, 200), (Line("Holiday", "48"), Line("Family", "112"), Switch("Backup"))),
)
"""In the order of the home screen: nine apps on its first page, the others on the second."""


def app_named(name: str) -> App:
    """Raises KeyError for an app that is not installed."""
    return {app.name: app for app in APPS}[name]
