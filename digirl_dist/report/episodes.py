"""Episodes on the report page: screenshots with the actions drawn on them, or else curves and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.report.charts import Series, binned, line_chart, thinned
from digirl_dist.report.markup import element, short_number, shorten
from digirl_dist.report.picture import draw, embed
from digirl_dist.report.record import number
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json

STEPS = 10
"""Number of steps shown of an episode: of a longer one, its beginning and its end."""
_BEGINNING = 4
_COMPONENTS = 4
_POINTS = 120


def episode(trajectory: Trajectory) -> Element:
    """Renders one episode: its origin, its result, its observations and actions."""
    pictured = any(step.observation.image is not None for step in trajectory.steps)
    body = [_film(trajectory)] if pictured else list(_figures(trajectory))
    return element("article", {"class": "episode"}, _heading(trajectory), *body)


def caption(action: Json) -> str:
    """Describes an action in a few words."""
    match _device_action(action):
        case DeviceAction(type="tap", x=x, y=y):
            return f"tap {x:.2f}, {y:.2f}"
        case DeviceAction(type="swipe", x=x, y=y, to_x=to_x, to_y=to_y):
            return f"swipe {x:.2f}, {y:.2f} → {to_x:.2f}, {to_y:.2f}"
        case DeviceAction(type="type", text=text):
            return f"type “{shorten(text, 40)}”"
        case DeviceAction(type="type_at", x=x, y=y, text=text):
            return f"type “{shorten(text, 40)}” at {x:.2f}, {y:.2f}"
        case DeviceAction(type="done", text=text) if text:
            return f"done, “{shorten(text, 40)}”"
        case DeviceAction(type=key):
            return key
        case _:
            return f"action {shorten(json.dumps(action), 60)}"


def _heading(trajectory: Trajectory) -> Element:
    ticket = trajectory.ticket
    badge = element("span", {"class": "badge good"}, "✓ success")
    if not trajectory.success:
        badge = element("span", {"class": "badge bad"}, "✗ failure")
    facts = {
        "reward": short_number(trajectory.reward),
        "steps": str(len(trajectory.steps)),
        "worker": f"{shorten(trajectory.worker, 60)} / slot {trajectory.slot}",
        "policy": f"version {ticket.policy_version}",
        "iteration": str(ticket.iteration),
        "seed": str(ticket.seed),
    }
    told = [element("span", None, f"{name} ", element("b", None, fact)) for name, fact in facts.items()]
    instruction = shorten(ticket.task.instruction, 300)
    title = element("h3", None, badge, " ", instruction or shorten(ticket.task.id, 120))
    task = element("span", None, "task ", element("b", None, shorten(ticket.task.id, 120))) if instruction else None
    return element("header", None, title, element("p", {"class": "facts"}, task, *told))


def _film(trajectory: Trajectory) -> Element:
    frames: list[Element] = []
    before = -1
    for place in _shown_steps(len(trajectory.steps)):
        if place > before + 1:
            frames.append(_gap(place - before - 1))
        frames.append(_frame(place, trajectory.steps[place]))
        before = place
    end = element("figcaption", None, element("b", None, "end"))
    frames.append(
        element("figure", {"class": "frame"}, _seen(trajectory.final_observation, None, "after the last step"), end)
    )
    return element("div", {"class": "film"}, *frames)


def _frame(place: int, step: Step) -> Element:
    said = caption(step.action)
    title = f"step {place}: {said}\nreward {short_number(step.reward)}, log-probability {short_number(step.log_prob)}"
    reward = element("span", {"class": "reward"}, f"reward {step.reward:+.3g}") if step.reward else None
    told = element("figcaption", None, element("b", None, f"{place} "), said, reward)
    return element("figure", {"class": "frame"}, _seen(step.observation, _device_action(step.action), title), told)


def _seen(observation: Observation, action: DeviceAction | None, title: str) -> Element:
    if observation.image is None:
        return element("div", {"class": "blank", "title": title}, _words(observation))
    picture = embed(observation.image)
    if picture is None:
        return element("div", {"class": "blank", "title": title}, "unreadable screenshot")
    return draw(picture, action, title)


def _gap(steps: int) -> Element:
    return element("div", {"class": "gap"}, f"{steps} step{'s' if steps > 1 else ''} left out")


def _shown_steps(steps: int) -> list[int]:
    if steps <= STEPS:
        return list(range(steps))
    return [*range(_BEGINNING), *range(steps - STEPS + _BEGINNING, steps)]


def _figures(trajectory: Trajectory) -> Iterator[Element]:
    """Yields curves of the vector's first components and of the reward, and a folded table of steps."""
    steps = trajectory.steps
    bins = thinned(len(steps), _POINTS)
    labels = [str(places[0]) for places in bins]
    rewards = Series("reward", binned(bins, [number(step.reward) for step in steps]), 5)
    charts = [*_observed(steps, bins, labels), line_chart("reward of a step", labels, [rewards], x_title="step")]
    yield element("div", {"class": "charts"}, *charts)
    yield _step_table(steps)


def _observed(steps: Sequence[Step], bins: Sequence[range], labels: Sequence[str]) -> Iterator[Element]:
    size = max((len(step.observation.vector) for step in steps if step.observation.vector is not None), default=0)
    shown = range(min(_COMPONENTS, size))
    if shown:
        rows = [[_component(step, index) for step in steps] for index in shown]
        curves = [Series(f"[{index}]", binned(bins, rows[index]), index + 1) for index in shown]
        title = "observation" if size == len(shown) else f"observation, first {len(shown)} of {size} numbers"
        yield line_chart(title, labels, curves, x_title="step")


def _component(step: Step, index: int) -> float | None:
    vector = step.observation.vector
    return None if vector is None or index >= len(vector) else number(float(vector[index]))


def _step_table(steps: Sequence[Step]) -> Element:
    titles = [element("th", None, title) for title in ("step", "observation", "action", "log-prob.", "reward")]
    rows = [_step_row(place, steps[place]) for place in _shown_steps(len(steps))]
    left_out = len(steps) - len(rows)
    summary = f"{len(rows)} steps" + (f" ({left_out} in the middle left out)" if left_out else "")
    table = element("table", None, element("tr", None, *titles), *rows)
    return element("details", None, element("summary", None, summary), element("div", {"class": "wide"}, table))


def _step_row(place: int, step: Step) -> Element:
    cells = [
        str(place),
        _words(step.observation),
        caption(step.action).removeprefix("action "),
        short_number(step.log_prob),
        short_number(step.reward),
    ]
    return element("tr", None, *(element("td", None, cell) for cell in cells))


def _words(observation: Observation) -> str:
    """Returns an observation's text and first numbers, shortened."""
    text = shorten(observation.text, 160)
    if observation.vector is None:
        return text or "nothing to show"
    numbers = ", ".join(f"{value:.3g}" for value in observation.vector[:6])
    more = len(observation.vector) - 6
    return f"{text} [{numbers}{f', … {more} more' if more > 0 else ''}]".strip()


def _device_action(action: Json) -> DeviceAction | None:
    try:
        return DeviceAction.from_json(action)
    except (ActionError, TypeError):
        return None
