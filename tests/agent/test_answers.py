"""What chat models write, and the actions that are read in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digirl_dist.agent.prompts import read, read_or_wait, task_text
from digirl_dist.emulator.aitw import to_autoui
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError

TAP = DeviceAction("tap", 0.25, 0.5)


@pytest.mark.parametrize(
    "answer",
    [
        '{"type": "tap", "x": 0.25, "y": 0.5}',
        'I see a clock. I will tap it.\n```json\n{"action": "click", "coordinate": [0.25, 0.5]}\n```',
        '{"name": "mobile", "arguments": {"action": "click", "coordinate": [250, 500]}}',
        '{"thought": "there {it is", "action": {"type": "tap", "point": "[0.25, 0.5]"}}',
        '{"type": "tap", "bbox": [0.2, 0.4, 0.3, 0.6]}',
        "tap(0.25, 0.5)",
        "Thought: the icon.\nAction: CLICK(x=250, y=500)",
        "pyautogui.click(x=0.25, y=0.5)",
        "first {'broken\n- tap [0.25, 0.5]",
        "back\nhome\ntap 0.25 0.5",
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
        ('type("hello \\"you\\"")', DeviceAction("type", text='hello \\"you\\"')),
        ('{"action": "scroll", "direction": "down"}', DeviceAction("swipe", 0.5, 0.75, 0.5, 0.25)),
        ("swipe left", DeviceAction("swipe", 0.8, 0.5, 0.2, 0.5)),
        ('{"type": "swipe", "x": 0.1, "y": 0.2, "to_x": 0.3, "to_y": 0.4}', DeviceAction("swipe", 0.1, 0.2, 0.3, 0.4)),
        ("drag(100, 200, 300, 400)", DeviceAction("swipe", 0.1, 0.2, 0.3, 0.4)),
        ("Action: press_back", DeviceAction("back")),
        ('{"type": "home"}', DeviceAction("home")),
        ("**DONE**", DeviceAction("done")),
        ('{"action": "terminate", "status": "success"}', DeviceAction("done")),
        ('{"type": "done", "text": "42 km"}', DeviceAction("done", text="42 km")),
        ("status_task_impossible", DeviceAction("impossible")),
    ],
)
def test_every_kind_of_action_is_read(answer: str, action: DeviceAction) -> None:
    assert read(answer) == action


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Let me go back to the start and look.",
        '{"type": "tap"}',
        "tap(5000, 2)",
        "{" * 5000,
        '{"type": ["tap"]}',
        '{\n"type": "tap"\n}',
        pytest.param('{"type": "tap", "x": ' + "9" * 400 + ', "y": 0.5}', id="a number beyond float"),
        pytest.param('{"type": "tap", "x": ' + "[" * 800 + "]" * 800 + "}", id="lists in lists"),
    ],
)
def test_what_is_no_action_waits(answer: str) -> None:
    with pytest.raises(ActionError):
        read(answer)
    assert read_or_wait(answer) == DeviceAction("wait")


@pytest.mark.component
@settings(max_examples=50, deadline=None)
@given(st.text() | st.sampled_from(["{", '{"type": "tap", "x": ', "tap(", '"action_type": "touch_point": ']))
def test_nothing_that_a_model_writes_raises(answer: str) -> None:
    action = read_or_wait(answer)
    assert DeviceAction.from_json(action.to_json()) == action
    json.dumps(action.to_json()).encode()


def test_the_prompt_tells_the_task_and_the_latest_actions_as_they_are_to_be_written() -> None:
    assert task_text("Open the clock", []) == "Task: Open the clock\nThe next action:"
    told = task_text("Open the clock", [TAP, DeviceAction("back")])
    assert [read(line) for line in told.splitlines()[2:-1]] == [TAP, DeviceAction("back")]
