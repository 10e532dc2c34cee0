"""AndroidInTheWild's format and AutoUI's text form: nothing is lost in either direction, and no text raises."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digirl_dist.emulator.aitw import (
    ActionType,
    AitwAction,
    from_aitw,
    from_autoui,
    read_autoui,
    to_aitw,
    to_autoui,
    to_prompt,
)
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError

MANY = settings(max_examples=1000, deadline=None)

shares = st.floats(0, 1) | st.integers(0, 10_000).map(lambda value: value / 10_000)
points = st.tuples(shares, shares)
plain = st.sampled_from([name for name, fields in DeviceAction.FIELDS.items() if not fields])
actions = st.one_of(
    st.builds(lambda at: DeviceAction("tap", *at), points),
    st.builds(lambda at, to: DeviceAction("swipe", *at, *to), points, points).filter(
        lambda action: (action.x, action.y) != (action.to_x, action.to_y)
    ),
    st.builds(lambda text: DeviceAction("type", text=text), st.text()),
    st.builds(DeviceAction, plain),
)
aitw_actions = st.one_of(
    st.tuples(points, points).map(lambda pair: AitwAction(ActionType.DUAL_POINT, *pair)),
    st.text().map(lambda text: AitwAction(ActionType.TYPE, text=text)),
    st.sampled_from(sorted({*ActionType} - {ActionType.TYPE, ActionType.DUAL_POINT})).map(AitwAction),
)


@pytest.mark.component
@MANY
@given(actions)
def test_a_device_action_survives_the_way_through_the_data_sets_format(action: DeviceAction) -> None:
    assert from_aitw(to_aitw(action)) == action


@pytest.mark.component
@MANY
@given(aitw_actions)
def test_an_action_of_the_data_set_survives_the_way_through_ours(action: AitwAction) -> None:
    assert to_aitw(from_aitw(action)) == action


@pytest.mark.component
@MANY
@given(actions)
def test_a_device_action_survives_the_way_through_text(action: DeviceAction) -> None:
    text = to_autoui(action)
    assert from_autoui(text) == action
    assert to_autoui(from_autoui(text)) == text
    assert read_autoui(f"Action Plan: [DUAL_POINT, TYPE], Action Decision: {text}") == action


@pytest.mark.component
@MANY
@given(actions)
def test_an_action_is_the_same_after_json(action: DeviceAction) -> None:
    assert DeviceAction.from_json(json.loads(json.dumps(action.to_json()))) == action


WORDS = ["action_type", "touch_point", "lift_point", "typed_text", "DUAL_POINT", "TYPE", *'[]"{,:', ": ", ", "]
pieces = st.lists(st.sampled_from(WORDS) | st.text(max_size=5) | st.floats().map(str), max_size=30).map("".join)


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A sound text with some of it replaced."""
    text = to_autoui(draw(actions))
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(st.text(max_size=4)) + text[start + draw(st.integers(0, 20)) :]


@pytest.mark.component
@MANY
@given(st.text() | pieces | mangled())
def test_what_a_model_writes_is_an_action_or_unread(text: str) -> None:
    with suppress(ActionError):
        action = read_autoui(text)
        assert DeviceAction.from_json(action.to_json()) == action


@pytest.mark.parametrize("text", ["", "I would tap the icon", '"action_type": "FLY"', '"action_type": "TYPE"',
    '"action_type": "DUAL_POINT", "touch_point": "[7, 7]"', '"action_type": "DUAL_POINT", "touch_point": "[]"',
    f'"action_type": "DUAL_POINT", "touch_point": "[{"9" * 400}, 0]"'])  # fmt: skip
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    for read in (read_autoui, from_autoui):
        with pytest.raises(ActionError):
            read(text)


TAP = DeviceAction("tap", x=0.25, y=0.5)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('"action_type": "DUAL_POINT", "touch_point": "[0.5, 0.25]", "lift_point": "[0.5, 0.25]"', TAP),
        ('action_type: DUAL_POINT, touch_point: [0.5, 0.25]', TAP),
        ('{"lift_point": [0.5 0.25], "touch_point": [0.5 0.25], "action_type": "dual_point"}', TAP),
        ('"action_type": "TYPE", "typed_text": "say "hi", please', DeviceAction("type", text='say "hi", please')),
        ('"action_type": "TYPE", "typed_text": "grüße"}', DeviceAction("type", text="grüße")),
        ('"action_type": "TASK_IMPOSSIBLE", "touch_point": "[-1.0, -1.0]"', DeviceAction("impossible")),
        ('"action_type": "STATUS_TASK_COMPLETE"', DeviceAction("done")),
        ('"action_type": "PRESS_BACK", "touch_point": "[-1.0, -1.0', DeviceAction("back")),
    ],
)  # fmt: skip
def test_sloppy_texts_are_understood(text: str, action: DeviceAction) -> None:
    assert read_autoui(text) == action


def test_the_text_form_is_that_of_autoui() -> None:
    assert to_autoui(DeviceAction("swipe", 0.5, 0.75, 0.5, 0.125)) == (
        '"action_type": "DUAL_POINT", "touch_point": "[0.7500, 0.5000]", "lift_point": "[0.1250, 0.5000]", '
        '"typed_text": ""'
    )
    assert to_autoui(DeviceAction("type", text="tea")) == (
        '"action_type": "TYPE", "touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]", "typed_text": "tea"'
    )


@pytest.mark.parametrize("point", [(-1.0, -1.0), (0.5, 1.5), (float("nan"), 0.5)])
def test_a_gesture_outside_the_screen_is_refused(point: tuple[float, float]) -> None:
    with pytest.raises(ActionError, match="must lie in"):
        from_aitw(AitwAction(ActionType.DUAL_POINT, point, (0.5, 0.5)))


def test_a_prompt_is_that_of_digirl() -> None:
    """As its ``autoui_prepare_prompt`` writes it, which leaves idling out."""
    nowhere = '"touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]", "typed_text": ""'
    history = [DeviceAction("home"), DeviceAction("wait"), DeviceAction("tap", 0.25, 0.5)]
    assert to_prompt("open the clock", []) == "Previous Actions: Goal: open the clock</s>"
    assert to_prompt("open the clock", history) == (
        f'Previous Actions: "action_type": "PRESS_HOME", {nowhere} "action_type": "DUAL_POINT", '
        '"touch_point": "[0.5000, 0.2500]", "lift_point": "[0.5000, 0.2500]", "typed_text": "" Goal: open the clock</s>'
    )
