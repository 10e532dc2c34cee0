"""The vocabulary of touch-screen actions."""

from __future__ import annotations

import pytest

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.report.viewed import caption
from digirl_dist.types import Json


def test_done_may_carry_the_answer_to_what_was_asked() -> None:
    answer = {"type": "done", "text": "42 km"}
    assert DeviceAction.from_json(answer).to_json() == answer
    assert DeviceAction("done").to_json() == {"type": "done"}
    assert caption(answer) == "done, “42 km”"


@pytest.mark.parametrize(
    "action", [{"type": "done", "text": 42}, {"type": "home", "text": "x"}, {"type": "done", "texts": ""}]
)
def test_no_other_action_and_nothing_but_a_text_is_an_answer(action: Json) -> None:
    with pytest.raises(ActionError, match="text must be a string|has exactly the fields"):
        DeviceAction.from_json(action)
