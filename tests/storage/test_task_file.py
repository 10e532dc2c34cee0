"""Task sets in files: what may be written, what it means, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from user_classes import Counter

from digirl_dist.agent.plugins.custom import CustomAgentSettings
from digirl_dist.assembly.parts import build_device
from digirl_dist.emulator.plugins.custom import CustomEmulatorSettings
from digirl_dist.errors import SettingsError
from digirl_dist.settings import (
    DeviceAgentSettings,
    EmulatorSettings,
    GenericAgentSettings,
    GymnasiumSettings,
    MiniwobSettings,
    PhoneSettings,
    Settings,
    Success,
    TaskSplit,
)
from digirl_dist.storage.task_file import from_file, is_file
from digirl_dist.tasks import Plan, Task

KNOWN = [Task("open-clock", "Open the clock", {"app": "Clock"}), Task("open-maps", "Open the maps", {"app": "Maps"})]


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_text_file_has_one_instruction_per_line(tmp_path: Path) -> None:
    path = written(tmp_path, "general.txt", "Search for shoes\n\n  Open the mail of Ann \n")
    assert from_file(path, "train") == [
        Task("general-0001", "Search for shoes"),
        Task("general-0003", "Open the mail of Ann"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_instruction(tmp_path: Path) -> None:
    path = written(tmp_path, "general.txt", "\ufeffSearch for shoes\r\nOpen the mail\r\n")
    assert [task.instruction for task in from_file(path, "train")] == ["Search for shoes", "Open the mail"]


def test_the_split_may_be_part_of_the_name(tmp_path: Path) -> None:
    written(tmp_path, "general_train.txt", "Do it\n")
    written(tmp_path, "general_test.txt", "Try it\n")
    path = str(tmp_path / "general_{split}.txt")
    assert [from_file(path, split)[0].instruction for split in ("train", "test")] == ["Do it", "Try it"]


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_a_list_holds_instructions_and_mappings(tmp_path: Path, suffix: str) -> None:
    content = ["Do it", {"id": "b", "instruction": "Do b", "params": {"k": [1]}}, {"id": "c", "split": "test"}]
    path = written(tmp_path, f"mine{suffix}", json.dumps(content))
    assert from_file(path, "train") == [Task("mine-0001", "Do it"), Task("b", "Do b", {"k": [1]})]
    assert [task.id for task in from_file(path, "test")] == ["mine-0001", "b", "c"]


def test_a_mapping_holds_a_list_for_each_split(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.yaml", "train: [one, two]\ntest: [three]\n")
    assert [task.instruction for task in from_file(path, "train")] == ["one", "two"]
    assert [task.id for task in from_file(path, "test")] == ["mine-test-0001"]


def test_an_entry_that_names_a_known_task_is_that_task(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.txt", "open-maps\nOpen the clock\n")
    assert from_file(path, "train", KNOWN) == [KNOWN[1], KNOWN[0]]


def test_a_known_task_may_be_asked_for_in_other_words(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.yaml", "[{id: open-maps, instruction: Show me where I am}]")
    assert from_file(path, "train", KNOWN) == [Task("open-maps", "Show me where I am", {"app": "Maps"})]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "\n", "no task of the split 'train'"),
        ("a.yaml", "a: [1", "not valid"),
        ("a.yaml", "{trian: [x]}", "no key 'trian'"),
        ("a.yaml", "train: x", "must be a list"),
        ("a.yaml", "[3]", "entry 1: 3 is neither"),
        ("a.yaml", "[{id: a, instrution: b}]", "no key 'instrution'"),
        ("a.yaml", "[{id: 3}]", "id must be a str"),
        ("a.yaml", "[{id: a, split: dev}]", "no split 'dev'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refusal:
        from_file(written(tmp_path, name, text), "train")
    assert str(tmp_path / name) in str(refusal.value)


def test_a_missing_file_is_named() -> None:
    assert is_file("tasks/none.txt") and not is_file("default")
    with pytest.raises(SettingsError, match=r"tasks/none\.txt cannot be read"):
        from_file("tasks/none.txt", "train")


def chosen(emulator: EmulatorSettings, task_set: str, **more: object) -> list[Task]:
    settings = Settings(**{"task_set": task_set, "emulator": emulator, "agent": DeviceAgentSettings(), **more})  # type: ignore[arg-type]
    return list(build_device(settings, emulator).tasks)


def test_two_tasks_with_one_id_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    """Tasks are asked for by id, and one of them vanished."""
    path = written(tmp_path, "a.yaml", "[{id: a, params: {app: Maps}}, {id: a, params: {app: Clock}}]")
    with pytest.raises(SettingsError, match="two tasks with the id 'a'") as refusal:
        chosen(PhoneSettings(), path)
    assert path in str(refusal.value)
    own = CustomEmulatorSettings(entry_point=f"{__name__}:TwoOfOneId")
    with pytest.raises(SettingsError, match="task_set default has two tasks with the id 'a' in train: rename one"):
        chosen(own, "default", agent=CustomAgentSettings(entry_point="user_classes:Coin"))


def test_params_that_are_no_object_are_refused_before_a_worker_reads_them() -> None:
    own = CustomEmulatorSettings(entry_point=f"{__name__}:ListedParams")
    with pytest.raises(SettingsError, match=r"cannot be stored \(params is a list\): .* params a JSON object"):
        chosen(own, "default", agent=CustomAgentSettings(entry_point="user_classes:Coin"))


class TwoOfOneId(Counter):
    @staticmethod
    def tasks(task_set: str, split: str) -> list[Task]:
        return [Task("a", params={"x": 1}), Task("b"), Task("a", params={"x": 2})]


class ListedParams(Counter):
    @staticmethod
    def tasks(task_set: str, split: str) -> list[Task]:
        return [Task("a", "A", [1])]  # type: ignore[arg-type]


def test_the_demo_phone_judges_its_own_tasks_and_those_with_a_goal(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.yaml", "[open-clock-0, {instruction: Now the maps, params: {app: Maps}}]")
    assert [task.params for task in chosen(PhoneSettings(), path)] == [{"app": "Clock"}, {"app": "Maps"}]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ("{app: Setings}", "has no app 'Setings'; it has Clock, Settings"),
        ("{app: 3}", "has no app 3"),
        ("{switch: Wi-Fi, on: true}", "must name an app"),
        (
            "{app: Settings, switch: Wifi, on: true}",
            "Settings on the demo phone has no switch 'Wifi'; it has Wi-Fi,",
        ),
        ("{app: Settings, switch: [Wi-Fi], on: true}", r"has no switch \['Wi-Fi'\]"),
        ("{app: Settings, switch: Wi-Fi, on: 1}", "must say on: true or on: false"),
        ("{app: Settings, switch: Wi-Fi}", "must say on: true or on: false"),
        ("{app: Browser, switch: Wi-Fi, on: true}", "Browser on the demo phone has no switch 'Wi-Fi'; it has none"),
        ("{app: Camera, button: Flash}", "has no button 'Flash'; it has Shutter"),
        ("{app: Clock, submit: pizza}", "Clock on the demo phone has no field to submit 'pizza' in"),
        ("{parts: 3}", "must name an app, or parts"),
        ("{parts: []}", "must name an app, or parts"),
        ("{parts: [{app: Clock}, 3]}", "must name an app, or parts"),
        ("{parts: [{app: Clock}, {app: Clok}]}", "has no app 'Clok'"),
    ],
)
def test_a_goal_that_nothing_on_the_demo_phone_reaches_is_refused(tmp_path: Path, params: str, told: str) -> None:
    for entry in (f"{{instruction: Do it, params: {params}}}", f"{{id: open-clock-0, params: {params}}}"):
        if "open-clock" in entry and ("app" not in params or "parts" in params):
            continue  # the known task's own app stays
        with pytest.raises(SettingsError, match=f"mine.yaml: '.*': .*{told}"):
            chosen(PhoneSettings(), written(tmp_path, "mine.yaml", f"[{entry}]"))


def test_a_goal_in_parts_may_be_asked_for(tmp_path: Path) -> None:
    goal = {"parts": [{"app": "Clock"}, {"app": "Settings", "switch": "Wi-Fi", "on": True}]}
    path = written(tmp_path, "mine.yaml", f"[{{instruction: Do both, params: {json.dumps(goal)}}}]")
    assert [task.params for task in chosen(PhoneSettings(), path)] == [goal]


def test_an_instruction_that_the_demo_phone_cannot_judge_needs_another_judge(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.txt", "Open teh Clock app\n")
    with pytest.raises(
        SettingsError, match=r"cannot run and judge 'Open teh Clock app'; near it are 'Open the Clock app'"
    ):
        chosen(PhoneSettings(), path)
    assert chosen(PhoneSettings(), path, success=Success.judge)[0].instruction == "Open teh Clock app"


def test_a_file_may_list_miniwob_pages(tmp_path: Path) -> None:
    pytest.importorskip("miniwob")
    path = written(tmp_path, "pages.txt", "click-test-2\nenter-text\n")
    tasks = chosen(MiniwobSettings(), path, task_split=TaskSplit.test)
    assert [(task.id, task.params["data_mode"]) for task in tasks] == [("click-test-2", "test"), ("enter-text", "test")]
    with pytest.raises(SettingsError, match="'click-test-3'; near it are 'click-test"):
        chosen(MiniwobSettings(), written(tmp_path, "wrong.txt", "click-test-3\n"), success=Success.judge)


def test_a_file_gives_a_gymnasium_environment_its_instructions(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.yaml", "[{id: short, params: {length: 3}}]")
    found = chosen(GymnasiumSettings(id="CartPole-v1"), path, agent=GenericAgentSettings())
    assert found == [Task("short", "", {"length": 3})]


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_every_pass_over_the_fleet_covers_the_set_without_repeats(order: str) -> None:
    tasks = [Task(str(number)) for number in range(7)]
    plan = Plan(tasks, rollout_size=3, seed=5, order=order)
    drawn = [ticket.task.id for iteration in range(14) for ticket in plan.tickets(iteration, 0)]
    passes = [drawn[start : start + 7] for start in range(0, 42, 7)]
    assert all(sorted(each) == [task.id for task in tasks] for each in passes)
    assert (len({tuple(each) for each in passes}) == 1) is (order == "sequential")
