"""The demo phone: what it draws, what it does, and how it judges."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from digirl_dist.emulator.phone import MAX_STEPS, DemoPhone, layout, phone_tasks
from digirl_dist.emulator.phone.apps import APPS, Button, Switch, Widget, app_named
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.settings import PhoneSettings
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

SWIPE_LEFT = {"type": "swipe", "x": 0.8, "y": 0.5, "to_x": 0.2, "to_y": 0.5}
SWIPE_UP = {"type": "swipe", "x": 0.5, "y": 0.8, "to_x": 0.5, "to_y": 0.2}
ALL_TASKS = [*phone_tasks("all", "train"), *phone_tasks("all", "test")]


def phone(shuffle_icons: bool = False) -> DemoPhone:
    return PhoneSettings(shuffle_icons=shuffle_icons).build().factory()


def tap(rect: layout.Rect) -> Json:
    x, y = (rect.left + rect.right) / 2, (rect.top + rect.bottom) / 2
    return {"type": "tap", "x": x / layout.WIDTH, "y": y / layout.HEIGHT}


def pixels(observation: Observation) -> np.ndarray:
    assert observation.image is not None
    return np.asarray(Image.open(io.BytesIO(observation.image)).convert("RGB"))


def is_target(widget: Widget, goal: dict[str, Json]) -> bool:
    return isinstance(widget, Switch | Button) and widget.name in (goal.get("switch"), goal.get("button"))


def solution(goal: dict[str, Json]) -> list[Json]:
    """What a person would do who knows the phone, from its unshuffled home screen."""
    page, place = divmod([app.name for app in APPS].index(goal["app"]), layout.PER_PAGE)
    actions = [SWIPE_LEFT] * page + [tap(layout.icon_rect(place))]
    if "submit" in goal:
        return [*actions, {"type": "type", "text": goal["submit"]}, {"type": "enter"}]
    for row, widget in enumerate(app_named(goal["app"]).widgets):
        if is_target(widget, goal):
            hidden = max(0, row + 1 - layout.rows_that_fit())
            scroll = len(app_named(goal["app"]).widgets) - layout.rows_that_fit() if hidden else 0
            return [*actions, *([SWIPE_UP] if hidden else []), tap(layout.row_rect(row, scroll))]
    return actions


@pytest.mark.component
@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda task: f"{task.id}: {task.instruction}")
def test_a_task_is_solved_by_who_knows_the_phone(task: Task) -> None:
    emulator, actions = phone(), solution(task.params)
    emulator.reset(task, seed=3)
    answers = [emulator.step(action) for action in actions]
    assert [answer.reward for answer in answers] == [0.0] * (len(actions) - 1) + [1.0]
    assert [answer.success for answer in answers] == [answer.terminated for answer in answers]
    assert answers[-1].success and len(actions) <= MAX_STEPS


LONG_TASKS = [*phone_tasks("long", "train"), *phone_tasks("long", "test")]


@pytest.mark.parametrize("task", LONG_TASKS[::13], ids=lambda task: f"{task.id}: {task.instruction}")
def test_each_part_of_a_long_task_earns_its_share_in_either_order(task: Task) -> None:
    for parts in (task.params["parts"], task.params["parts"][::-1]):
        ways = [solution(part) for part in parts]
        actions = [*ways[0], {"type": "back"}, *ways[1]]
        assert 5 <= len(actions) <= 6
        emulator = phone()
        emulator.reset(task, seed=3)
        answers = [emulator.step(action) for action in actions]
        expected = [0.0] * len(actions)
        expected[len(ways[0]) - 1] = expected[-1] = 0.5
        assert [answer.reward for answer in answers] == expected
        assert [answer.success for answer in answers] == [False] * (len(actions) - 1) + [True]
        assert task.params in answers[-1].achieved  # hindsight finds the task


def test_a_part_that_is_undone_earns_once_and_must_be_done_again() -> None:
    task = next(each for each in LONG_TASKS if each.id == "turn-on-wi-fi-0-and-press-shutter")
    first, second = (solution(part) for part in task.params["parts"])
    emulator = phone()
    emulator.reset(task, seed=3)
    answers = [emulator.step(action) for action in (*first, first[-1], {"type": "back"}, *second)]
    assert [answer.reward for answer in answers] == [0.0, 0.5, 0.0, 0.0, 0.0, 0.0] and not answers[-1].terminated
    answers = [emulator.step(action) for action in ({"type": "back"}, *first)]
    assert answers[-1].reward == 0.5 and answers[-1].success


@pytest.mark.component
@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda task: f"{task.id}: {task.instruction}")
def test_a_task_is_not_solved_by_doing_nothing(task: Task) -> None:
    emulator = phone()
    for seed in range(3):
        emulator.reset(task, seed)
        idle = [emulator.step({"type": "back"}) for _ in range(2)]
        assert not any(answer.terminated or answer.success or answer.reward for answer in idle)
        gave_up = emulator.step({"type": "done"})
        assert gave_up.terminated and not gave_up.success and gave_up.reward == 0.0


def test_the_same_actions_show_the_same_screens() -> None:
    [task] = [task for task in ALL_TASKS if task.id == "submit-maps-chess"]
    one, other = phone(), phone()
    assert one.reset(task, 7).image == other.reset(task, 7).image
    for action in solution(task.params):
        assert one.step(action).observation.image == other.step(action).observation.image


def test_the_seed_changes_the_wallpaper_but_not_the_icons() -> None:
    emulator, task = phone(), ALL_TASKS[0]
    first, second = (pixels(emulator.reset(task, seed)) for seed in (1, 2))
    middle = layout.icon_rect(0).inset(20, 20)
    crop = slice(middle.top, middle.bottom), slice(middle.left, middle.right)
    assert (first[crop] == second[crop]).all()
    assert (first[80, 2] != second[80, 2]).any()


def test_icons_are_shuffled_when_asked_for() -> None:
    emulator, task = phone(shuffle_icons=True), ALL_TASKS[0]
    orders = set()
    for seed in range(4):
        emulator.reset(task, seed)
        orders.add(tuple(emulator._state.icons))
    assert len(orders) == 4 and all(sorted(order) == sorted(app.name for app in APPS) for order in orders)


SWITCHES = phone_tasks("switches", "train")
UPDATE, LATER, ANYWHERE = tap(layout.UPDATE_KEY), tap(layout.LATER_KEY), {"type": "back"}


def offering(updates: int, endless: float) -> DemoPhone:
    return PhoneSettings(updates=updates, endless_updates=endless).build().factory()


def through(updates: int, key: Json, task: Task) -> list[Json]:
    """The solution, answering every offer with the same key."""
    first, *others = solution(task.params)
    return [first, *([key, ANYWHERE] * updates), *others]


@pytest.mark.parametrize("task", SWITCHES, ids=lambda task: task.id)
def test_a_task_takes_six_steps_through_two_offers_whether_they_are_accepted_or_not(task: Task) -> None:
    for key, endless in ((LATER, 1.0), (UPDATE, 0.0)):
        emulator, actions = offering(2, endless), through(2, key, task)
        emulator.reset(task, seed=3)
        answers = [emulator.step(action) for action in actions]
        assert len(actions) == 6 and [answer.success for answer in answers] == [False] * 5 + [True]
        assert len({answer.observation.image for answer in answers}) == 6, "a way without loops"


def test_the_step_limit_has_room_for_the_offers() -> None:
    assert PhoneSettings().build().max_steps == MAX_STEPS
    assert PhoneSettings(updates=2).build().max_steps == MAX_STEPS + 4


def test_an_endless_update_is_seen_by_nothing_but_that_it_does_not_end() -> None:
    endless, short = offering(1, 1.0), offering(1, 0.0)
    for one in (endless, short):
        one.reset(SWITCHES[0], seed=3)
    for action in through(1, UPDATE, SWITCHES[0])[:2]:
        assert endless.step(action).observation.image == short.step(action).observation.image
    stuck = [endless.step(action) for action in (ANYWHERE, {"type": "home"}, LATER, SWIPE_UP)]
    assert len({answer.observation.image for answer in stuck}) == 1
    assert stuck[0].observation.image != short.step(ANYWHERE).observation.image


@pytest.mark.component
def test_the_seed_chooses_which_updates_are_endless() -> None:
    def ended(seed: int) -> bool:
        emulator = offering(1, 0.3)
        emulator.reset(SWITCHES[0], seed)
        return [emulator.step(action) for action in through(1, UPDATE, SWITCHES[0])][-1].success

    luck = [ended(seed) for seed in range(100)]
    assert luck[:9] == [ended(seed) for seed in range(9)] and 0.6 < sum(luck) / len(luck) < 0.8


def test_an_app_that_was_left_repeats_its_offer_and_one_that_was_answered_does_not() -> None:
    emulator, into = offering(1, 0.0), tap(layout.icon_rect(0))
    emulator.reset(SWITCHES[0], seed=3)
    offer = emulator.step(into).observation.image
    emulator.step({"type": "back"})
    assert emulator.step(into).observation.image == offer
    for action in (LATER, ANYWHERE, {"type": "back"}):
        emulator.step(action)
    assert emulator.step(into).observation.image != offer


def test_an_offer_hides_the_keyboard_until_it_is_answered() -> None:
    [task] = [task for task in ALL_TASKS if task.id == "submit-maps-chess"]
    emulator = offering(1, 0.0)
    emulator.reset(task, seed=3)
    way = solution(task.params)
    opened = [emulator.step(action) for action in way[:2]][-1]
    assert emulator.step(way[2]).observation.image == opened.observation.image, "there is nothing to type into yet"
    answers = [emulator.step(action) for action in (LATER, ANYWHERE, *way[2:])]
    assert answers[-1].success


def test_typing_into_nothing_does_nothing() -> None:
    emulator, task = phone(), ALL_TASKS[0]
    before = emulator.reset(task, 0).image
    assert emulator.step({"type": "type", "text": "lost"}).observation.image == before
    assert emulator.step({"type": "enter"}).observation.image == before


def before_the_end(left: int) -> DemoPhone:
    """A phone on which only so many actions are left until "pizza" is submitted."""
    [task] = [task for task in phone_tasks("all", "train") if task.id == "submit-browser-pizza"]
    emulator = phone()
    emulator.reset(task, 0)
    for action in solution(task.params)[:-left]:
        emulator.step(action)
    return emulator


def test_the_keyboard_has_an_enter_key() -> None:
    emulator = before_the_end(1)
    assert emulator.step(tap(layout.ENTER_KEY)).success


def test_a_text_that_ends_with_a_new_line_is_submitted() -> None:
    emulator = before_the_end(2)
    assert emulator.step({"type": "type", "text": "pizza\n"}).success


def test_back_hides_the_keyboard_then_closes_the_app() -> None:
    emulator = phone()
    home = emulator.reset(phone_tasks("easy", "train")[0], 0).image
    opened = emulator.step(tap(layout.icon_rect(3))).observation.image
    without_keyboard = emulator.step({"type": "back"}).observation.image
    assert len({home, opened, without_keyboard}) == 3
    assert emulator.step(tap(layout.BACK_KEY)).observation.image == home


def test_a_phone_without_a_task_says_so() -> None:
    with pytest.raises(EmulatorError, match="reset"):
        phone().step({"type": "home"})


def test_an_unknown_task_set_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="default, easy, multistep, all, long, switches"):
        phone_tasks("hard", "train")


@pytest.mark.parametrize("split", ["train", "test"])
def test_task_ids_are_unique_and_sets_are_parts_of_all(split: str) -> None:
    known = {task.id for task in phone_tasks("all", split)}
    assert len(known) == len(phone_tasks("all", split))
    parts = "default", "easy", "multistep", "switches"
    assert all({task.id for task in phone_tasks(name, split)} <= known for name in parts)


def test_the_splits_share_no_instruction() -> None:
    train, test = ({task.instruction for task in phone_tasks("all", split)} for split in ("train", "test"))
    assert not train & test
