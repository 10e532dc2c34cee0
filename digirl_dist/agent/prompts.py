"""What chat models are asked at each step."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from digirl_dist.agent.answers import Coordinates, Shown, edges
from digirl_dist.chat import Messages, text_part
from digirl_dist.emulator import Label
from digirl_dist.emulator.remembered import Past, recalled
from digirl_dist.errors import TrajectoryError
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

_SYSTEM = """\
You operate a device with a touch screen to do a task. Each turn shows its screen. Answer with the one action to take
next, as one line of JSON and nothing else:
{"type": "tap", "x": MIDDLE, "y": UPPER}
{"type": "swipe", "x": MIDDLE, "y": LOWER, "to_x": MIDDLE, "to_y": UPPER}
{"type": "type", "text": "hello"}
{"type": "enter"}, {"type": "back"}, {"type": "home"} or {"type": "wait"}
{"type": "done"} when the task is done, {"type": "impossible"} when it cannot be done
x and y are UNIT, counted from the top left corner."""
_MARKED = '\nElements of the screen, each with its centre; {"type": "tap", "mark": 1} taps number 1:'
_EARLIER = "\nThe last picture shows the screen now, those before it show earlier ones."
_LONGEST_SAID = 1000
"""Characters of an earlier answer that are shown, from its end."""
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”')


def conversation(
    text: str,
    picture: Json,
    system: str = "",
    coordinates: Coordinates = Coordinates.shares,
    size: tuple[int, int] | None = None,
    earlier: Sequence[Json] = (),
) -> Messages:
    """Returns the chat that asks for the next action: ``text`` as the observation has it, ``picture`` a part.

    ``earlier`` are parts with screenshots before that one. ``system`` replaces the general rules, if it is not empty.
    ``size`` is the picture's height and width to the model, which pixels need.
    """
    asked, _, labels = recalled(text)
    rules = {"role": "system", "content": [text_part(system or _rules(coordinates, size))]}
    asked += _elements(labels, coordinates, size) + (_EARLIER if earlier else "")
    return [rules, {"role": "user", "content": [*earlier, picture, text_part(asked)]}]


def about_screen(
    seen: Observation,
    part: Callable[[bytes], Json],
    system: str,
    coordinates: Coordinates,
    size: tuple[int, int] | None,
    most: int,
) -> Messages:
    """Returns the chat about a screenshot and the latest ones before it, ``most`` at most; ``part`` makes each a part.

    Raises TrajectoryError for an observation without a screenshot.
    """
    if seen.image is None:
        raise TrajectoryError("an observation has no screenshot, which this agent needs")
    earlier = [part(image) for image in seen.earlier[max(0, len(seen.earlier) - most) :]]
    return conversation(seen.text, part(seen.image), system, coordinates, size, earlier)


def shown(text: str, size: tuple[int, int] | None = None) -> Shown:
    """Returns what an answer to an observation with this text may refer to."""
    return Shown(size, [label.middle for label in recalled(text).labels])


def task_text(task: str, past: Sequence[Past]) -> str:
    """Returns the text of an observation: the task, and the latest answers, oldest first, in the model's own words."""
    told = "".join(f"\n{_answer(each)}" for each in past)
    before = f"\nYour latest answers:{told}" if told else ""
    return f"Task: {task}{before}\nThe next action:"


def quoted(text: str) -> list[str]:
    """The parts of ``text`` in double quotes, without them; each once, as no two kinds of action may type the same."""
    return list(dict.fromkeys(one or other for one, other in _QUOTED.findall(text)))


def _answer(past: Past) -> str:
    said = past.said.strip()[-_LONGEST_SAID:] or json.dumps(past.action.to_json(), ensure_ascii=False)
    return f"{said} (no action could be read in this answer)" if past.unread else said


def _rules(coordinates: Coordinates, size: tuple[int, int] | None) -> str:
    wide, high = edges(coordinates, size)
    of_screen = f"of the screen's width and height, from 0 to {wide:g}"
    unit = {
        Coordinates.shares: f"shares {of_screen}",
        Coordinates.thousandths: f"thousandths {of_screen}",
        Coordinates.pixels: f"pixels of the screenshot, {wide:g} from left to right and {high:g} from top to bottom",
    }[coordinates]
    places = {"MIDDLE": _number(0.5, wide), "UPPER": _number(0.25, high), "LOWER": _number(0.75, high), "UNIT": unit}
    return re.sub("|".join(places), lambda found: places[found[0]], _SYSTEM)


def _elements(labels: Sequence[Label], coordinates: Coordinates, size: tuple[int, int] | None) -> str:
    wide, high = edges(coordinates, size)
    lines = []
    for number, label in enumerate(labels, 1):
        x, y = label.middle
        lines.append(
            f"\n{number} {label.role} {json.dumps(label.name, ensure_ascii=False)} "
            f"[{_number(x, wide)}, {_number(y, high)}]"
        )
    return _MARKED + "".join(lines) if lines else ""


def _number(share: float, most: float) -> str:
    return f"{share:.3g}" if most == 1 else f"{round(share * most)}"
