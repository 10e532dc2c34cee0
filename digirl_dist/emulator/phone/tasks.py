"""What the demo phone is asked to do, and how it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from digirl_dist.emulator.phone.apps import APPS, App, Button, Field, Switch, app_named
from digirl_dist.emulator.phone.layout import HEIGHT, LATER_KEY, PER_PAGE, WIDTH, Rect, icon_rect, rows_that_fit
from digirl_dist.emulator.phone.state import PhoneState
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import SettingsError
from digirl_dist.tasks import Task
from digirl_dist.types import Json

MAX_STEPS = 8
"""Steps after which an episode on this phone is given up: twice what the longest task needs."""

_OPEN = {"train": ("Open the {app} app", "Go to {app}"), "test": ("Start {app}",)}
_SWITCH = {
    "train": ("Turn {way} {name} in {app}", "In {app}, turn {name} {way}"),
    "test": ("Switch {name} {way} in the {app} app",),
}
_SUBMIT = {
    "Browser": {"train": 'Search for "{text}" in Browser', "test": 'Look for "{text}" in the Browser app'},
    "Store": {"train": 'Search for "{text}" in Store', "test": 'Look for "{text}" in the Store app'},
    "Maps": {"train": 'Find "{text}" in Maps', "test": 'Look for "{text}" in the Maps app'},
    "Notes": {"train": 'Write "{text}" in Notes', "test": 'Note "{text}" in the Notes app'},
    "Messages": {"train": 'Send "{text}" in Messages', "test": 'Write "{text}" in the Messages app'},
}
_TEXTS = {"train": ("pizza", "chess", "museum"), "test": ("tea", "violin")}
_PRESS = {
    "Camera": ("Shutter", {"train": "Take a picture with Camera", "test": "Take a photo with the Camera app"}),
    "Music": ("Play", {"train": "Play a song in Music", "test": "Start playing in the Music app"}),
}
_SWITCHES_OF_DEFAULT = {("Settings", "Wi-Fi"), ("Clock", "Evening alarm")}


def phone_tasks(task_set: str, split: str) -> list[Task]:
    """The tasks of a set, in a fixed order.

    ``easy``: open an app, on the first home page (one tap) or the second (a swipe and a tap). ``multistep``: open an
    app and turn a switch, press a button, or type the quoted text and press enter (two to four steps). ``all``: both.
    ``default``: the apps of the first home page in one wording each, two switches and the buttons: few enough that
    an untrained agent meets each of them often, so that training shows within minutes.
    ``long``: two such tasks in different apps in one instruction (five or six steps; ``max_steps=12`` leaves as much
    room as the other sets have), in any order; each earns half of the reward.
    ``switches``: turn a switch or press a button that an app of the first page shows when it opens (two steps).

    ``split`` is ``train`` or ``test``: ``test`` asks for the same things in other words and with other texts.
    Raises SettingsError naming the sets.
    """
    sets = {
        "default": _default(split),
        "easy": _easy(split),
        "multistep": _multistep(split),
        "all": _easy(split) + _multistep(split),
        "long": _long(split),
        "switches": _switches(split),
    }
    if task_set not in sets:
        raise SettingsError(
            f"the demo phone has no task set {task_set!r}; its sets are {', '.join(sets)}, and yours are files "
            "that end in .txt, .yaml or .json"
        )
    return sets[task_set]


def goal_reached(goal: dict[str, Json], state: PhoneState) -> bool:
    """Whether the phone shows the goal's app with what the goal wants done in it; a goal without app is for others.

    A goal of several ``parts`` is reached where all of them are done, whichever app is open.
    """
    if parts := parts_of(goal):
        return all(_done(part, state) for part in parts)
    return state.app is not None and state.app.name == goal.get("app") and _done(goal, state)


def parts_of(goal: dict[str, Json]) -> list[dict[str, Json]]:
    """Returns the goals that together are this one; none if it is not in parts, or what it calls so are no goals."""
    parts = goal.get("parts")
    return parts if isinstance(parts, list) and all(isinstance(part, dict) and "app" in part for part in parts) else []


def parts_done(goal: dict[str, Json], state: PhoneState) -> int:
    """How many of a goal's parts are done; a goal without parts has none."""
    return sum(_done(part, state) for part in parts_of(goal))


def refuse_unreachable(goal: dict[str, Json]) -> None:
    """Raises SettingsError for a goal that nothing on this phone can reach, naming what there is."""
    for part in parts_of(goal) or [goal]:
        if "app" not in part:
            raise SettingsError(f"its params must name an app, or parts that each do: {goal!r:.200}")
        app = next((app for app in APPS if app.name == part["app"]), None)
        if app is None:
            raise SettingsError(f"the demo phone has no app {part['app']!r:.200}; it has {_names(APPS)}")
        _refuse_missing(part, app)


def _refuse_missing(part: dict[str, Json], app: App) -> None:
    for key, kind in (("switch", Switch), ("button", Button)):
        has = [widget for widget in app.widgets if isinstance(widget, Switch | Button) and isinstance(widget, kind)]
        if key in part and all(widget.name != part[key] for widget in has):
            there = f"it has {_names(has)}" if has else "it has none"
            raise SettingsError(f"{app.name} on the demo phone has no {key} {part[key]!r:.200}; {there}")
    if "switch" in part and not isinstance(part.get("on"), bool):
        raise SettingsError(f"beside the switch {part['switch']}, its params must say on: true or on: false")
    if "submit" in part and not any(isinstance(widget, Field) for widget in app.widgets):
        raise SettingsError(f"{app.name} on the demo phone has no field to submit {part['submit']!r:.200} in")


def _names(named: Sequence[App | Switch | Button]) -> str:
    return ", ".join(one.name for one in named)


def goals_met(state: PhoneState, start: PhoneState) -> list[dict[str, Json]]:
    """What could have been asked for and now holds by changes since ``start``: in the open app, or as two parts."""
    changes = [change for app in APPS for change in _changes(app, state, start)]
    here = [] if state.app is None else [{"app": state.app.name}]
    here += [change for change in changes if state.app is not None and change["app"] == state.app.name]
    return [*here, *({"parts": list(pair)} for pair in combinations(changes, 2))]


def _changes(app: App, state: PhoneState, start: PhoneState) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    for widget in app.widgets:
        key = app.name, widget.name if isinstance(widget, Switch | Button) else ""
        match widget:
            case Switch(name) if (key in state.on) is not (key in start.on):
                found.append({"app": app.name, "switch": name, "on": key in state.on})
            case Button(name) if key in state.on - start.on:
                found.append({"app": app.name, "button": name})
    if app.name in state.submitted:
        found.append({"app": app.name, "submit": state.submitted[app.name]})
    return found


def _done(goal: dict[str, Json], state: PhoneState) -> bool:
    app = goal["app"]
    if "switch" in goal:
        return ((app, goal["switch"]) in state.on) is bool(goal["on"])
    if "button" in goal:
        return (app, goal["button"]) in state.on
    return "submit" not in goal or bool(state.submitted.get(app) == goal["submit"])


def solution(goal: dict[str, Json], state: PhoneState) -> DeviceAction:
    """Returns the next action on the shortest way to a goal, which declines updates; gives up a goal without app."""
    part = next((part for part in parts_of(goal) if not _done(part, state)), goal)
    if "app" not in part:
        return DeviceAction("impossible")
    if state.answer is not None:
        return DeviceAction("wait")
    if state.app is None:
        page, place = divmod(state.icons.index(part["app"]), PER_PAGE)
        there = 0.8 if page > state.page else 0.2
        return _tap(icon_rect(place)) if page == state.page else DeviceAction("swipe", there, 0.5, 1 - there, 0.5)
    if state.app.name != part["app"]:
        return DeviceAction("home")
    return _tap(LATER_KEY) if state.offer is not None else _within(part, state)


def _within(part: dict[str, Json], state: PhoneState) -> DeviceAction:
    """Returns the next action in the goal's app, which shows its rows."""
    rows = {widget.name: rect for widget, rect in state.rows() if isinstance(widget, Switch | Button)}
    fields = [rect for widget, rect in state.rows() if isinstance(widget, Field)]
    if "submit" in part and state.focused:
        return DeviceAction("enter") if state.typed == part["submit"] else DeviceAction("type", text=part["submit"])
    if state.focused:  # the keyboard covers rows
        return DeviceAction("back")
    row = next(iter(fields), None) if "submit" in part else rows.get(str(part.get("switch", part.get("button"))))
    return _tap(row) if row is not None else DeviceAction("swipe", 0.5, 0.7, 0.5, 0.3)


def _tap(place: Rect) -> DeviceAction:
    return DeviceAction("tap", (place.left + place.right) / 2 / WIDTH, (place.top + place.bottom) / 2 / HEIGHT)


def make_unreached(goal: dict[str, Json], state: PhoneState) -> None:
    """Put the switches that the goal is about into the other position."""
    for part in parts_of(goal):
        make_unreached(part, state)
    if "switch" in goal:
        switch = (goal["app"], goal["switch"])
        state.on = state.on - {switch} if goal["on"] else state.on | {switch}


def _easy(split: str) -> list[Task]:
    return [task for app in APPS for task in _open(app, split)]


def _multistep(split: str) -> list[Task]:
    switches = [task for app in APPS for widget in app.widgets if isinstance(widget, Switch)
                for task in _switch(app, widget.name, split)]  # fmt: skip
    return [*switches, *_press(split), *_submit(split, _TEXTS[split])]


def _default(split: str) -> list[Task]:
    easy = [task for app in APPS[:PER_PAGE] for task in _open(app, split)[:1]]
    switches = [task for app, name in sorted(_SWITCHES_OF_DEFAULT) for task in _switch(app_named(app), name, split)]
    return [*easy, *(task for task in switches if task.id.endswith("-0")), *_press(split)]


def _long(split: str) -> list[Task]:
    """Pairs of what the apps of the first page let one do without scrolling, of which one asks for no text."""
    singles = [_without_scrolling(app, split) for app in APPS[:PER_PAGE]]
    pairs = [(one, other) for ones, others in combinations(singles, 2) for one in ones for other in others]
    few = [pair for pair in pairs if not all("submit" in part.params for part in pair)]
    return [
        Task(f"{one.id}-and-{other.id}", _joined(one, other), {"parts": [one.params, other.params]})
        for one, other in few
    ]


def _switches(split: str) -> list[Task]:
    """What an app of the first page shows at once, in all wordings."""
    turns = [task for app in APPS[:PER_PAGE] for name in _seen_at_once(app) for task in _switch(app, name, split)]
    return [*turns, *_press(split)]


def _seen_at_once(app: App) -> list[str]:
    return [widget.name for widget in app.widgets[: rows_that_fit()] if isinstance(widget, Switch)]


def _without_scrolling(app: App, split: str) -> list[Task]:
    """One task for each switch and button of the app that is seen when it opens, and for its field."""
    names = _seen_at_once(app)
    turns = [_switch(app, name, split)[number % 2 * len(_SWITCH[split])] for number, name in enumerate(names)]
    others = [*_press(split), *_submit(split, _TEXTS[split][:1])]
    return [*turns, *(task for task in others if task.params["app"] == app.name)]


def _joined(one: Task, other: Task) -> str:
    return f"{one.instruction}, and {other.instruction[0].lower()}{other.instruction[1:]}"


def _open(app: App, split: str) -> list[Task]:
    return [
        Task(f"open-{app.name.lower()}-{wording}", template.format(app=app.name), {"app": app.name})
        for wording, template in enumerate(_OPEN[split])
    ]


def _switch(app: App, name: str, split: str) -> list[Task]:
    return [
        Task(
            f"turn-{way}-{_slug(name)}-{wording}",
            template.format(way=way, name=name, app=app.name),
            {"app": app.name, "switch": name, "on": way == "on"},
        )
        for way in ("on", "off")
        for wording, template in enumerate(_SWITCH[split])
    ]


def _press(split: str) -> list[Task]:
    return [
        Task(f"press-{_slug(button)}", wordings[split], {"app": app, "button": button})
        for app, (button, wordings) in _PRESS.items()
    ]


def _submit(split: str, texts: tuple[str, ...]) -> list[Task]:
    return [
        Task(f"submit-{app.lower()}-{text}", wordings[split].format(text=text), {"app": app, "submit": text})
        for app, wordings in _SUBMIT.items()
        for text in texts
    ]


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
