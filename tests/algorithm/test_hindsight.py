"""Episodes relabelled with goals that they met, and steps that brought an episode forward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from digirl_dist.algorithm.hindsight import Hindsight
from digirl_dist.algorithm.plugins import LearningContext
from digirl_dist.algorithm.selection import on_the_way
from digirl_dist.emulator.phone import layout, phone_tasks
from digirl_dist.emulator.phone.apps import APPS
from digirl_dist.errors import TrainingError
from digirl_dist.settings import FilteredBcSettings, HindsightSettings, PhoneSettings
from digirl_dist.settings.algorithms import ExperienceSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Goal, Observation, Step, Trajectory
from digirl_dist.types import Json

ASKED = Task("own", "Do this", {"goal": 0})
OTHERS = [Task(f"other-{wording}", f"Do that ({wording})", {"goal": 1}) for wording in range(2)]
TASKS = [ASKED, *OTHERS, Task("third", "Do a third thing", {"goal": 3})]


def episode(screens: str, achieved: dict[int, Goal], actions: dict[int, Json] | None = None) -> Trajectory:
    """One step per screen but the last; ``achieved`` and ``actions`` by the number of the step."""
    seen = [Observation(f"Do this\nPrevious: {at}", screen.encode()) for at, screen in enumerate(screens)]
    steps = []
    for at in range(len(screens) - 1):
        met = (achieved[at],) if at in achieved else ()
        steps.append(Step(seen[at], (actions or {}).get(at, {"type": "home"}), -1.0, 0.0, False, False, met))
    steps[-1] = replace(steps[-1], truncated=True)
    return Trajectory(Ticket(3, 5, ASKED, 7, 3), "e", "w", 0, steps, seen[-1], False)


def screens(way: Trajectory) -> str:
    return b"".join(step.observation.image or b"" for step in way.steps).decode()


def test_the_way_to_a_goal_that_was_met_is_a_success_under_its_instruction() -> None:
    [way] = Hindsight(TASKS, 3).relabelled(episode("abcd", {1: {"goal": 3}}))
    assert screens(way) == "ab" and way.final_observation.image == b"c"
    assert [step.reward for step in way.steps] == [0.0, 1.0] and way.success and way.steps[-1].terminated
    assert way.ticket.task.id == "third" and way.steps[1].observation.text == "Do a third thing\nPrevious: 1"
    assert way.final_observation.text == "Do a third thing\nPrevious: 2"


def test_every_wording_of_a_goal_counts_and_no_more_than_asked_for() -> None:
    met = episode("abcd", {0: {"goal": 1}, 2: {"goal": 3}})
    assert {way.ticket.task.id for way in Hindsight(TASKS, 3).relabelled(met)} == {"other-0", "other-1", "third"}
    assert len(Hindsight(TASKS, 2).relabelled(met)) == 2
    elsewhere = replace(met, episode_id="e2", worker="another", slot=1)
    assert [way.ticket for way in Hindsight(TASKS, 2).relabelled(met)] == [
        way.ticket for way in Hindsight(TASKS, 2).relabelled(elsewhere)
    ]
    assert Hindsight(TASKS, 0).relabelled(met) == []


def test_the_own_task_and_goals_of_no_task_are_left_alone() -> None:
    assert Hindsight(TASKS, 3).relabelled(episode("abc", {0: {"goal": 0}, 1: {"goal": 9}})) == []


def test_a_goal_may_be_told_in_words_and_the_own_one_by_the_observation_alone() -> None:
    told = episode("abcd", {1: {"instruction": "Do it at night"}})
    untold = replace(told, ticket=replace(told.ticket, task=Task("page", "", {})))
    steps = [replace(step, observation=replace(step.observation, text="Do this")) for step in told.steps]
    shown = replace(untold, steps=steps, final_observation=steps[0].observation)
    for each in (told, shown):
        [way] = Hindsight(TASKS, 3).relabelled(each)
        assert way.ticket.task == Task("Do it at night", "Do it at night") and screens(way) == "ab"
        assert way.steps[1].observation.text.startswith("Do it at night")
    assert Hindsight(TASKS, 3).relabelled(untold) == []  # texts that differ are no instruction alone


def test_loops_are_cut_out_of_the_way() -> None:
    [way] = Hindsight(TASKS, 3).relabelled(episode("abacd", {3: {"goal": 3}}))
    assert screens(way) == "ac"


def test_the_way_to_a_goal_in_two_parts_leads_back_to_the_start_after_the_first() -> None:
    both = Task("both", "Do one and the other", {"parts": [{"goal": 1}, {"goal": 3}]})
    met = episode("axabacd", {3: {"goal": 1}, 5: both.params})
    [way] = Hindsight([ASKED, both], 3).relabelled(met)
    assert screens(way) == "abac" and [step.reward for step in way.steps] == [0, 0.5, 0, 0.5]
    odd = replace(both, params={"parts": 2})
    [way] = Hindsight([ASKED, odd], 3).relabelled(episode("axabacd", {5: odd.params}))
    assert screens(way) == "ac", "what another emulator calls parts are no goals"


def test_a_goal_whose_last_step_changed_nothing_teaches_nothing() -> None:
    assert Hindsight(TASKS, 3).relabelled(episode("abbc", {1: {"goal": 3}})) == []


@pytest.mark.parametrize(
    ("answer", "ways"),
    [
        ("To get there I tap", 1),
        ("I was asked to 'Do this', so I tap", 0),
        ("Doing THIS takes a tap", 0),
        ('{"type": "home"}', 1),
    ],
)
def test_an_answer_with_words_of_the_instruction_is_imitated_under_no_other_that_lacks_them(
    answer: str, ways: int
) -> None:
    met = episode("abc", {1: {"goal": 3}}, {0: {"type": "home", "said": answer}})
    assert len(Hindsight(TASKS, 3).relabelled(met)) == ways
    named = [Task("own", "Type this at home", {"goal": 0}), *TASKS[1:]]
    met = replace(met, ticket=replace(met.ticket, task=named[0]))
    assert len(Hindsight(named, 3).relabelled(met)) == ways, "what an action is called says nothing"


@pytest.mark.parametrize(("typed", "ways"), [("third", 1), ("pizza", 0)])
def test_a_way_on_which_other_text_was_typed_is_not_the_way_to_the_goal(typed: str, ways: int) -> None:
    met = episode("abc", {1: {"goal": 3}}, {0: {"type": "type", "text": typed}})
    assert len(Hindsight(TASKS, 3).relabelled(met)) == ways


@pytest.mark.parametrize(
    ("own", "other", "ways"),
    [
        ('Write "tea"', 'Find "tea"', 1),
        ('Write "tea"', "Find tea", 0),
        ('Write "tea"', 'Find "milk" and "tea"', 0),
        ('Write "milk" and "tea"', 'Find "tea"', 1),
        ("Write tea", "Find some tea", 1),
    ],
)
def test_a_quoted_text_must_be_quoted_no_later_under_the_other_instruction(own: str, other: str, ways: int) -> None:
    met = episode("abc", {1: {"goal": 3}}, {0: {"type": "type_at", "x": 0.5, "y": 0.5, "text": "tea"}})
    met = replace(met, ticket=replace(met.ticket, task=Task("own", own, {"goal": 0})))
    assert len(Hindsight([Task("third", other, {"goal": 3})], 3).relabelled(met)) == ways


def test_text_typed_in_vain_does_not_matter() -> None:
    [way] = Hindsight(TASKS, 3).relabelled(episode("aabc", {2: {"goal": 3}}, {0: {"type": "type", "text": "pizza"}}))
    assert screens(way) == "ab"


def test_a_function_of_the_users_may_say_what_was_achieved() -> None:
    found = Hindsight(TASKS, 3, lambda met: [(1, "Do a third thing"), (2, "Whatever")]).relabelled(episode("abc", {}))
    assert {(way.ticket.task.id, screens(way)) for way in found} == {("third", "a"), ("Whatever", "ab")}


@pytest.mark.parametrize("answer", [(9, "Do a third thing"), "third", (0, "x"), (1, None)])
def test_a_function_that_answers_something_else_is_named(answer: object) -> None:
    def my_function(met: Trajectory) -> list[object]:
        return [answer]

    with pytest.raises(TrainingError, match="my_function answered"):
        Hindsight(TASKS, 3, my_function).relabelled(episode("abc", {}))  # type: ignore[arg-type]


def test_a_function_that_answers_nothing_at_all_is_named() -> None:
    def my_function(met: Trajectory) -> None:
        pass

    with pytest.raises(TrainingError, match=r"my_function answered None, not a list of pairs; .* \[\]"):
        Hindsight(TASKS, 3, my_function).relabelled(episode("abc", {}))  # type: ignore[arg-type]


def test_every_relabelled_episode_follows_its_own() -> None:
    first, second = episode("abc", {0: {"goal": 3}}), episode("abc", {})
    found, added = Hindsight(TASKS, 3).added([first, second])
    assert [found[0], found[2]] == [first, second] and found[1].ticket.task.id == "third"
    assert added == {"relabelled_share": pytest.approx(1 / 3)}


def test_steps_are_on_the_way_whose_screen_does_not_come_back() -> None:
    assert on_the_way(episode("aab", {})) == [False, True]
    assert on_the_way(episode("abcad", {})) == [False, False, False, True]
    assert on_the_way(episode("abcb", {})) == [True, False, False]


def test_the_way_to_a_reward_stays_where_the_screen_comes_back_after_it() -> None:
    won = episode("aba", {})
    won.steps[1] = replace(won.steps[1], reward=1.0)  # type: ignore[index]
    assert on_the_way(won) == [True, True]


def test_a_penalty_for_each_step_keeps_none_that_changed_nothing() -> None:
    dear = episode("aab", {})
    steps = [replace(step, reward=-0.1) for step in dear.steps]
    assert on_the_way(replace(dear, steps=steps)) == [False, True]


def tap(rect: layout.Rect) -> Json:
    x, y = (rect.left + rect.right) / 2, (rect.top + rect.bottom) / 2
    return {"type": "tap", "x": x / layout.WIDTH, "y": y / layout.HEIGHT}


def on_the_phone(task: Task, actions: list[Json], seed: int = 3) -> list[list[Goal]]:
    """The goals that each action met."""
    phone = PhoneSettings().build().factory()
    phone.reset(task, seed)
    return [list(phone.step(action).achieved) for action in actions]


def test_the_phone_tells_which_goals_an_action_met() -> None:
    task = Task("other", "Take a picture with Camera", {"app": "Camera", "button": "Shutter"})
    settings = tap(layout.icon_rect([app.name for app in APPS].index("Settings")))
    title, bluetooth = {"type": "tap", "x": 0.5, "y": 0.1}, tap(layout.row_rect(1, 0))
    opened, unchanged, once, twice = on_the_phone(task, [settings, title, bluetooth, bluetooth])
    assert opened == [{"app": "Settings"}]
    assert unchanged == []
    [goal] = once
    assert goal["app"] == "Settings" and goal["switch"] == "Bluetooth"
    assert twice == []  # the switch is as the episode found it


def test_the_phone_tells_of_what_was_submitted() -> None:
    task = next(task for task in phone_tasks("multistep", "train") if task.id == "submit-browser-pizza")
    browser = tap(layout.icon_rect([app.name for app in APPS].index("Browser")))
    actions: list[Json] = [browser, {"type": "type", "text": "pizza"}, {"type": "enter"}]
    assert on_the_phone(task, actions) == [[{"app": "Browser"}], [], [task.params]]


def test_an_algorithm_relabels_with_the_tasks_of_its_run() -> None:
    """So the share that was learned from is among the figures of an update."""
    from digirl_dist.parallel.peers import ALONE
    from tests.algorithm.test_digirl import Coin, Counter

    met = episode("abc", {1: {"goal": 3}}, {0: 1, 1: 1})
    for most, share in ((3, 0.5), (0, 0.0)):
        context = LearningContext(0, 1, 3, tasks=TASKS, experience=ExperienceSettings(HindsightSettings(most=most)))
        algorithm = FilteredBcSettings().build(context)(Coin(Counter.spec), ALONE)
        assert algorithm.update([met], [met]).figures["relabelled_share"] == share
