"""Devices whose texts tell the latest actions, and what is on the screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.agent.prompts import shown
from digirl_dist.emulator import Label
from digirl_dist.emulator.phone import DemoPhone, layout, phone_tasks
from digirl_dist.emulator.phone.apps import APPS
from digirl_dist.emulator.remembered import Memory, PromptedEmulator, RememberedEmulator, recalled, told
from digirl_dist.emulator.touch_actions import SAID, TOKENS, UNREAD, DeviceAction
from digirl_dist.errors import ActionError, EmulatorError
from digirl_dist.settings import DeviceAgentSettings, PhoneSettings, VlmSettings
from digirl_dist.storage import episode_file
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory, Transition, seen_at
from digirl_dist.types import Json

TASK = next(task for task in phone_tasks("multistep", "train") if task.id == "submit-browser-pizza")
OK = Label("Ok", "button", 0.1, 0.25, 0.5, 0.375)
UMLAUT = Label("Größe „M“", "", 0.0, 0.0, 1.0, 0.001)
NOWHERE, BACK = DeviceAction("tap", 0.5, 0.1), DeviceAction("back")


def phone() -> DemoPhone:
    return PhoneSettings().build().factory()


def browser() -> DeviceAction:
    left, top, right, bottom = layout.icon_rect([app.name for app in APPS].index("Browser"))
    return DeviceAction("tap", (left + right) / 2 / layout.WIDTH, (top + bottom) / 2 / layout.HEIGHT)


def begun(most: int = 8) -> RememberedEmulator:
    emulator = RememberedEmulator(phone, most)
    assert emulator.reset(TASK, 3).text == TASK.instruction
    return emulator


def memories(emulator: RememberedEmulator, *actions: DeviceAction) -> list[Memory]:
    for action in actions:
        text = emulator.step(action.to_json()).observation.text
    instruction, found, labels = recalled(text)
    assert instruction == TASK.instruction and not labels
    return found


def test_an_observation_tells_the_actions_before_it_and_which_were_on_this_screen() -> None:
    assert memories(begun(), NOWHERE) == [Memory(NOWHERE, True)]
    assert memories(begun(), NOWHERE, browser()) == [Memory(NOWHERE, False), Memory(browser(), False)]
    there_and_back = memories(begun(), NOWHERE, browser(), BACK, BACK)  # the first hides the keyboard
    assert [memory.here for memory in there_and_back] == [True, True, False, False]


def test_only_the_latest_are_told_and_none_of_another_episode() -> None:
    emulator = begun(most=2)
    assert [memory.action for memory in memories(emulator, NOWHERE, browser(), BACK)] == [browser(), BACK]
    assert emulator.reset(TASK, 3).text == TASK.instruction


def test_typing_at_a_point_touches_it_and_types() -> None:
    emulator = begun()
    emulator.step(browser().to_json())
    emulator.step({"type": "back"})  # hides the keyboard: nothing can be typed
    middle = (layout.row_rect(0, 0).top + layout.row_rect(0, 0).bottom) / 2 / layout.HEIGHT
    emulator.step({"type": "type_at", "x": 0.5, "y": middle, "text": "pizza"})
    assert emulator.step({"type": "enter"}).success


def test_typing_at_a_point_ends_with_the_episode() -> None:
    emulator = RememberedEmulator(phone, 8)
    emulator.reset(Task("open", "Open the Browser app", {"app": "Browser"}), 3)
    answer = emulator.step({"type": "type_at", "x": browser().x, "y": browser().y, "text": "pizza"})
    assert answer.success and answer.reward == 1.0 and list(answer.achieved) == [{"app": "Browser"}]


def test_what_both_parts_of_typing_at_a_point_met_is_told() -> None:
    emulator = begun()
    answer = emulator.step({"type": "type_at", "x": browser().x, "y": browser().y, "text": "pizza"})
    assert list(answer.achieved) == [{"app": "Browser"}] and not answer.ended
    assert emulator.step({"type": "enter"}).success


def prompted(factory: Any = phone, **asked: Any) -> PromptedEmulator:
    agent = VlmSettings(model="m", **asked)
    emulator = agent.wrapped(factory)()
    assert isinstance(emulator, PromptedEmulator)
    return emulator


def test_a_prompt_has_the_latest_answers_in_the_models_words_and_what_could_not_be_read() -> None:
    emulator = prompted(previous_actions=2)
    assert emulator.reset(TASK, 3).text == f"Task: {TASK.instruction}\nThe next action:"
    emulator.step(BACK.to_json())
    emulator.step({**browser().to_json(), SAID: "The browser.\ntap(…)", TOKENS: [1]})
    text = emulator.step({"type": "wait", SAID: "x" * 5000, UNREAD: "no action"}).observation.text
    assert "\nYour latest answers:\nThe browser.\ntap(…)\n" + "x" * 1000 + " (no action" in text and "back" not in text
    assert "latest" not in emulator.reset(TASK, 3).text


def test_a_chat_model_types_at_a_point_and_its_episode_goes_on_after_text_that_nothing_takes() -> None:
    emulator = prompted()
    emulator.reset(TASK, 3)
    assert not emulator.step({"type": "type", "text": "\0 nowhere"}).ended
    emulator.step(browser().to_json())
    emulator.step({"type": "back"})
    middle = (layout.row_rect(0, 0).top + layout.row_rect(0, 0).bottom) / 2 / layout.HEIGHT
    emulator.step({"type": "type_at", "x": 0.5, "y": middle, "text": "pizza"})
    assert emulator.step({"type": "enter"}).success


def test_a_chat_model_is_shown_earlier_screenshots_and_files_have_each_once(tmp_path: Path) -> None:
    emulator = prompted(screenshots=3)
    seen = [emulator.reset(TASK, 3)]
    taken = [browser(), BACK, BACK, browser()]
    seen += [emulator.step(action.to_json()).observation for action in taken]
    screens = [each.image for each in seen]
    assert [list(each.earlier) for each in seen] == [screens[max(0, at - 2) : at] for at in range(5)]
    ends = [False, False, False, True]
    steps = [
        Step(before, action.to_json(), -1.0, 0.0, end, False)
        for before, action, end in zip(seen, taken, ends, strict=False)
    ]
    episode = Trajectory(Ticket(0, 0, TASK, 3, 0), "e", "w", 0, steps, seen[-1], False)
    episode_file.write(tmp_path / "e.episode", episode)
    kept = episode_file.read(tmp_path / "e.episode")
    assert [list(seen_at(kept, at).earlier) for at in range(5)] == [screens[:at] for at in range(5)]
    fragment = replace(episode, steps=steps[2:])
    assert [seen_at(fragment, at) for at in range(3)] == seen[2:], "also one that begins within the episode"
    assert prompted().reset(TASK, 3).earlier == ()


def test_a_chat_model_is_told_labels_if_it_is_to_be() -> None:
    emulator = prompted(lambda: Named(OK, UMLAUT), labels=True)
    text = emulator.reset(TASK, 0).text
    assert recalled(text).labels == [OK] and shown(text).marks == [(0.3, 0.3125)]
    assert recalled(prompted(lambda: Named(OK)).reset(TASK, 0).text).labels == []


def test_what_is_no_action_is_refused() -> None:
    with pytest.raises(ActionError, match="not a device action"):
        begun().step({"type": "jump"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Do\nBefore: noon",
        'Do\nBefore: [{"type": "jump", "here": true}]',
        "\nBefore: 7",
        "Read\nOn screen: news",
        'Read\nOn screen: [["Ok", "button"]]',
        "Read\nOn screen: [[]]\nBefore: 7",
    ],
)
def test_instructions_that_look_like_memories_or_labels_stay_instructions(text: str) -> None:
    assert recalled(text) == (text, [], [])
    known = [Memory(BACK, False), Memory(NOWHERE, True, "Ok")]
    for memories, labels in ((known, []), ([], [OK]), (known, [OK, UMLAUT])):
        assert recalled(told(text, memories, labels)) == (text, memories, labels)


class Named:
    """An emulator that says what it shows: a label more after each step."""

    def __init__(self, *labels: Any) -> None:
        self._all, self._steps = labels, 0

    def reset(self, task: Task, seed: int) -> Observation:
        self._steps = 1
        return Observation(task.instruction)

    def step(self, action: Json) -> Transition:
        self._steps += 1
        return Transition(Observation(TASK.instruction), 0.0, terminated=False)

    def labels(self) -> Sequence[Any]:
        return self._all[: self._steps]

    def close(self) -> None:
        pass


def test_labels_are_those_of_the_screen_that_is_seen() -> None:
    emulator = RememberedEmulator(lambda: Named(OK, UMLAUT), 8, labels=True)
    assert recalled(emulator.reset(TASK, 0).text) == (TASK.instruction, [], [OK])
    text = emulator.step(BACK.to_json()).observation.text
    assert recalled(text) == (TASK.instruction, [Memory(BACK, True)], [OK, UMLAUT])
    assert RememberedEmulator(lambda: Named(OK), 8).reset(TASK, 0).text == TASK.instruction, "nobody asked for labels"


def test_a_memory_knows_the_name_of_what_was_touched() -> None:
    emulator = RememberedEmulator(lambda: Named(UMLAUT, replace(UMLAUT, name="all", bottom=1.0), OK), 8, labels=True)
    emulator.reset(TASK, 0)
    emulator.step(BACK.to_json())
    touch = [{"type": "tap", "x": 0.3, "y": 0.3}, {"type": "drag", "x": 0.3, "y": 0.3, "to_x": 0.1, "to_y": 0.1}]
    for action in [*touch, BACK.to_json()]:
        text = emulator.step(action).observation.text
    assert [memory.on for memory in recalled(text).memories] == ["", "all", "Ok", ""], "the smallest at that place"


def test_labels_are_bounded_in_number_length_and_place() -> None:
    far = replace(OK, name="n" * 10_000 + "end", left=-3.0, bottom=7.0)
    emulator = RememberedEmulator(lambda: Named(*[far] * 10_000), 8, labels=True)
    for _ in range(100):
        emulator.step(BACK.to_json())
    _, _, labels = recalled(emulator.step(BACK.to_json()).observation.text)
    assert labels == [replace(OK, name=f"{'n' * 100} … {'n' * 47}end", left=0.0, bottom=1.0)] * 64


@pytest.mark.parametrize("wrong", [None, ("Ok", "button", 0, 0, 1, 1), replace(OK, top=math.nan)])
def test_what_is_no_label_is_refused(wrong: Any) -> None:
    with pytest.raises(EmulatorError, match=r"labels\(\) returned"):
        RememberedEmulator(lambda: Named(wrong), 8, labels=True).reset(TASK, 0)


def test_the_device_agent_chooses_how_much_is_told() -> None:
    assert DeviceAgentSettings(memory=0, labels=False).wrapped(phone) is phone
    remembering = DeviceAgentSettings(memory=3).wrapped(phone)()
    assert isinstance(remembering, RememberedEmulator) and remembering._most == 3
    without_memory = DeviceAgentSettings(memory=0).wrapped(lambda: Named(OK))()
    assert without_memory.reset(TASK, 0).text == told(TASK.instruction, labels=[OK])


@pytest.mark.parametrize("wrong", [{"name": None}, {"role": None}, {"left": "0.1"}, {"top": float("nan")}])
def test_a_label_of_other_kinds_is_told_with_its_method(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        EmulatorError, match=r"labels\(\) returned Label.*, not a digirl_dist.emulator.Label with texts"
    ):
        prompted(lambda: Named(replace(OK, **wrong)), labels=True).reset(TASK, 0)
