"""What is on an Android screen by name: told, bounded, without secrets, and used by an agent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emulator.android.phone_shell import PhoneShell, as_android
from emulator.android.sites import RunningPhone, quick

from digirl_dist.emulator import Label
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.android.screen import is_dump, labels_of
from digirl_dist.emulator.android.tasks import android_spec
from digirl_dist.emulator.phone import phone_tasks
from digirl_dist.emulator.remembered import RememberedEmulator
from digirl_dist.errors import EmulatorError
from digirl_dist.settings import AndroidSettings, DeviceAgentSettings
from digirl_dist.tasks import Task

HELLO = Task("hello", "Go home")


def dump(*nodes: str) -> str:
    return f'<?xml version="1.0" ?><hierarchy rotation="0">{"".join(nodes)}</hierarchy>'


def node(bounds: str = "[0,0][100,50]", **said: str) -> str:
    words = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in said.items())
    return f'<node {words} bounds="{bounds}" />'


@pytest.mark.unit
@pytest.mark.parametrize(
    ("element", "name", "role"),
    [
        (node(text="Wi-Fi", **{"class": "android.widget.TextView"}), "Wi-Fi", ""),
        (node(text="Save", **{"class": "android.widget.Button"}), "Save", "button"),
        (node(content_desc="Shutter", **{"class": "android.widget.ImageButton"}), "Shutter", "button"),
        (node(**{"class": "androidx.appcompat.widget.SwitchCompat"}), "", "switch"),
        (node(text="Ok", **{"class": "com.google.android.material.button.MaterialButton"}), "Ok", "button"),
        (node(text="Yes", **{"class": "android.widget.RadioButton"}), "Yes", "radio"),
        (node(hint="Name", **{"class": "android.widget.EditText"}), "Name", "textbox"),
        (node(text="Ann", hint="Name", **{"class": "androidx.appcompat.widget.AppCompatEditText"}), "Ann", "textbox"),
        (node(text="Clock", clickable="true", **{"class": "android.widget.TextView"}), "Clock", "button"),
        (node(text="s3cret", password="true", **{"class": "android.widget.EditText"}), "", "textbox"),
        (node(text="s3cret", hint="Password", password="true", **{"class": "android.widget.EditText"}),
         "Password", "textbox"),
    ],
)  # fmt: skip
def test_an_element_is_told_by_its_name_and_its_role(element: str, name: str, role: str) -> None:
    assert labels_of(dump(element), 200, 100) == [Label(name, role, 0.0, 0.0, 0.5, 0.5)]


@pytest.mark.unit
@pytest.mark.parametrize(
    "element",
    [
        node(clickable="true", **{"class": "android.view.ViewGroup"}),
        node("[300,0][400,50]", text="outside"),
        node("[10,10][10,40]", text="without a width"),
        node("[-50,-50][0,0]", text="outside"),
        node("[NaN,0][1,1]", text="no numbers"),
        node("", text="nowhere"),
    ],
)
def test_what_has_neither_name_nor_place_is_not_told(element: str) -> None:
    assert labels_of(dump(element), 200, 100) == []


@pytest.mark.unit
def test_boxes_end_at_the_screen_and_elements_in_others_are_told_too() -> None:
    inner = node("[-9,50][999,999]", text="in")
    row = f'<node class="android.widget.LinearLayout" bounds="[0,0][200,100]">{inner}</node>'
    assert labels_of(dump(row), 200, 100) == [Label("in", "", 0.0, 0.5, 1.0, 1.0)]


@pytest.mark.unit
@pytest.mark.parametrize("said", ["", "ERROR: null root node returned", dump()[:-3], "<?xml version='1.0' ?>"])
def test_half_a_dump_is_none(said: str) -> None:
    assert not is_dump(said) and is_dump(dump())


@pytest.mark.unit
@pytest.mark.parametrize("said", [dump("<node"), dump('<node text="\x00" />')])
def test_xml_that_cannot_be_read_is_named(said: str) -> None:
    with pytest.raises(EmulatorError, match="uiautomator tells of the screen cannot be read"):
        labels_of(said, 200, 100)


@pytest.mark.unit
def test_the_spec_says_whether_there_are_labels() -> None:
    assert android_spec(AndroidSettings(avd="a", labels=True)).labels
    assert not android_spec(AndroidSettings(avd="a")).labels


@pytest.mark.component
def test_a_device_names_what_its_screen_shows_if_asked(tmp_path: Path) -> None:
    with RunningPhone() as phone:
        emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial], labels=True))
        emulator.reset(HELLO, seed=0)
        assert [label.name for label in emulator.labels()][:3] == ["Clock", "Settings", "Messages"]
        emulator._settings.labels = False
        asked = len(phone.shell.history)
        assert emulator.labels() == [] and len(phone.shell.history) == asked, "a dump takes a second on a real device"
        emulator.close()


@pytest.mark.component
def test_a_screen_that_never_rests_has_no_names_and_another_failure_is_told(tmp_path: Path) -> None:
    with RunningPhone(PhoneShell(restless=-1)) as phone:
        emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial], labels=True, settle_s=0.1))
        emulator.reset(HELLO, seed=0)
        assert emulator.labels() == []
        phone.shell.restless = 0
        phone.shell._uiautomator = phone.shell._false  # type: ignore[method-assign]
        with pytest.raises(EmulatorError, match=r"uiautomator does not tell .* set emulator.labels=false"):
            emulator.labels()
        emulator.close()


@pytest.mark.component
def test_an_untrained_agent_touches_what_the_instruction_names(tmp_path: Path) -> None:
    """With the names of icons it opens most apps at the first touch; without them, hardly any."""
    tasks = [task for task in phone_tasks("easy", "train") if task.id.endswith("-0")][:9]
    assert _opened(tasks, tmp_path / "with", labels=True) >= 7 > 3 >= _opened(tasks, tmp_path / "without", labels=False)


def _opened(tasks: list[Task], folder: Path, labels: bool) -> int:
    """How many apps are open after one action, of an agent that prefers to touch."""
    torch.manual_seed(0)
    with RunningPhone() as phone:
        settings = quick(folder, serials=[phone.serial], labels=labels)
        spec = android_spec(settings)
        agent = DeviceAgentSettings(short_side=56, width=32).build(spec)()
        device = RememberedEmulator(lambda: AndroidEmulator(settings), 4, labels)
        opened = 0
        for seed, task in enumerate(tasks):
            seen = device.reset(as_android(task), seed)
            for attempt in range(20):
                with torch.no_grad():
                    [decision] = agent.act([seen], [np.random.default_rng(100 * seed + attempt)])
                if decision.action["type"] == "tap":
                    opened += device.step(decision.action).success
                    break
        device.close()
        return opened
