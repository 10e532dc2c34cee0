"""What chat models write, and what is read in it. ``test_answer_formats`` has those of published models."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digirl_dist.agent.answers import Coordinates, action_of, read
from digirl_dist.agent.prompts import conversation, shown, task_text
from digirl_dist.emulator import Label
from digirl_dist.emulator.aitw import to_autoui
from digirl_dist.emulator.remembered import Past, told
from digirl_dist.emulator.touch_actions import DeviceAction

TAP = DeviceAction("tap", 0.25, 0.5)


@pytest.mark.parametrize(
    "answer",
    [
        '{"type": "tap", "x": 0.25, "y": 0.5}',
        'I see a clock. I will tap it.\n```json\n{"action": "click", "coordinate": [0.25, 0.5]}\n```',
        '{"thought": "there {it is", "action": {"type": "tap", "point": "[0.25, 0.5]"}}',
        '{"type": "tap", "bbox": [0.2, 0.4, 0.3, 0.6]}',
        '{"step": 2, "action": "click", "id": 12, "x": 0.25, "y": 0.5}',
        "tap(0.25, 0.5)",
        "Thought: the 3rd icon.\nAction: CLICK(x=0.25, y=0.5)",
        "pyautogui.click(x=0.25, y=0.5)",
        "first {'broken\n- tap [0.25, 0.5]",
        to_autoui(TAP),
    ],
)
def test_a_tap_is_read_in_many_forms(answer: str) -> None:
    assert read(answer) == TAP


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ('{"type": "type", "text": "two words"}', DeviceAction("type", text="two words")),
        ('{"action_type": "input_text", "text": "5 pm"}', DeviceAction("type", text="5 pm")),
        ('type("hello \\"you\\"")', DeviceAction("type", text='hello "you"')),
        ('{"action": "scroll", "direction": "down"}', DeviceAction("swipe", 0.5, 0.75, 0.5, 0.25)),
        ("swipe left", DeviceAction("swipe", 0.8, 0.5, 0.2, 0.5)),
        ('{"type": "swipe", "x": 0.1, "y": 0.2, "to_x": 0.3, "to_y": 0.4}', DeviceAction("swipe", 0.1, 0.2, 0.3, 0.4)),
        ("drag(0.1, 0.2, 0.3, 0.4)", DeviceAction("swipe", 0.1, 0.2, 0.3, 0.4)),
        ("Action: press_back", DeviceAction("back")),
        ('{"type": "home"}', DeviceAction("home")),
        ("**DONE**", DeviceAction("done")),
        ('{"action": "terminate", "status": "success"}', DeviceAction("done")),
        ('{"action_type": "status", "goal_status": "infeasible"}', DeviceAction("impossible")),
        ('{"type": "done", "text": "42 km"}', DeviceAction("done", text="42 km")),
        ('{"type": "done", "text": "Failed"}', DeviceAction("done", text="Failed")),
        ('{"action": "press", "key": "Enter"}', DeviceAction("enter")),
        ("terminate('failure')", DeviceAction("impossible")),
        ("status_task_impossible", DeviceAction("impossible")),
    ],
)
def test_every_kind_of_action_is_read(answer: str, action: DeviceAction) -> None:
    assert read(answer) == action


@pytest.mark.component
@settings(max_examples=200, deadline=None)
@given(
    st.text()
    | st.lists(st.sampled_from(["{", '{"type": "tap", "x": ', "tap(", '"', "\n", "back", "0.5,", "]"])).map("".join)
)
def test_nothing_that_a_model_writes_raises(answer: str) -> None:
    action = action_of(answer)
    assert DeviceAction.from_json(action).type in DeviceAction.FIELDS
    json.dumps(action).encode()


def test_the_prompt_tells_the_task_and_the_latest_answers_in_the_models_own_words() -> None:
    assert task_text("Open the clock", []) == "Task: Open the clock\nThe next action:"
    past = [
        Past(DeviceAction("back")),
        Past(TAP, "I see it.\ntap(500, 250)"),
        Past(DeviceAction("wait"), "Hm", unread=True),
    ]
    assert task_text("Open the clock", past) == (
        "Task: Open the clock\nYour latest answers:\n"
        '{"type": "back"}\nI see it.\ntap(500, 250)\nHm (no action could be read in this answer)\nThe next action:'
    )


@pytest.mark.parametrize(
    ("unit", "middle", "upper", "edge"),
    [
        ("shares", "0.5", "0.25", "from 0 to 1,"),
        ("thousandths", "500", "250", "to 1000"),
        ("pixels", "180", "200", "360 from left"),
    ],
)
def test_rules_and_elements_are_told_in_the_models_unit(unit: str, middle: str, upper: str, edge: str) -> None:
    text = told("Task: open\nThe next action:", (), [Label('Ok "now"', "button", 0.25, 0.125, 0.75, 0.375)])
    chat = json.dumps(conversation(text, {"type": "image"}, "", Coordinates(unit), (800, 360)))
    rules, asked = (json.loads(chat)[at]["content"][-1]["text"] for at in (0, 1))
    assert f'{{"type": "tap", "x": {middle}, "y": {upper}}}' in rules and edge in rules
    assert asked.endswith(f'\n1 button "Ok \\"now\\"" [{middle}, {upper}]') and asked.startswith("Task: open\n")
    assert read('{"type": "tap", "mark": 1}', shown=shown(text)) == DeviceAction("tap", 0.5, 0.25)
    assert read(f'{{"type": "tap", "x": {middle}, "y": {upper}}}', Coordinates(unit), shown(text, (800, 360))).y == 0.25
