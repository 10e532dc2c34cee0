"""Environments in the manner of BrowserGym through the Gymnasium adapter: dict observations, actions as code."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

from digirl_dist.assembly.parts import agent_plugin, build_device
from digirl_dist.emulator import DeviceActions
from digirl_dist.emulator.browsergym import observed, touch
from digirl_dist.emulator.gymnasium import GymnasiumEmulator, gymnasium_spec
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import SettingsError
from digirl_dist.settings import GymnasiumSettings
from digirl_dist.settings.configuration import load
from digirl_dist.tasks import Task

HEIGHT, WIDTH = 40, 60


class AnyScreen(spaces.Space[Any]):
    """As BrowserGym declares its screenshots: of any height and width."""

    def __init__(self) -> None:
        super().__init__((-1, -1, 3), np.uint8)


class Page(gymnasium.Env[Any, str]):
    """A page with one button, somewhere. Its actions are code, such as ``mouse_click(3, 4)``."""

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self.did: list[str] = []
        self.action_space = spaces.Text(1000)
        text = spaces.Text(1000)
        self.observation_space = spaces.Dict(
            {"goal": text, "screenshot": AnyScreen(), "axtree_object": spaces.Sequence(text), "url": text}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._colour = (options or {}).get("colour", "red")
        self._left, self._top = self.np_random.integers(0, [WIDTH - self._size, HEIGHT - self._size])
        return self._see(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.did.append(action)
        call = ast.parse(action, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        values = [ast.literal_eval(argument) for argument in call.args]
        hit = call.func.id == "mouse_click" and self._on_button(*values)
        return self._see(), float(hit), hit, False, {}

    def _on_button(self, x: int, y: int) -> bool:
        return self._left <= x < self._left + self._size and self._top <= y < self._top + self._size

    def _see(self) -> dict[str, Any]:
        pixels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
        button = pixels[self._top : self._top + self._size, self._left : self._left + self._size]
        button[:] = (255, 0, 0) if self._colour == "red" else (0, 0, 255)
        goal = f"Press the {self._colour} button"
        return {"goal": goal, "screenshot": pixels, "axtree_object": ("button",), "url": "about:blank"}


def make(size: int) -> gymnasium.Env[Any, str]:
    """As users do who must give an environment what a YAML file cannot hold."""
    gymnasium.register("Page-v0", entry_point=Page, max_episode_steps=20)
    return gymnasium.make("Page-v0", size=size, disable_env_checker=True)


SETTINGS = GymnasiumSettings(
    entry_point="test_browsergym:make",
    kwargs={"size": 8},
    observe=["screenshot", "goal"],
    touch="digirl_dist.emulator.browsergym:touch",
)


@pytest.fixture(autouse=True)
def _users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file lies in the working directory."""
    monkeypatch.chdir(Path(__file__).parent)


@pytest.fixture
def emulator() -> Iterator[GymnasiumEmulator]:
    made = SETTINGS.factory()()
    assert isinstance(made, GymnasiumEmulator)
    yield made
    made.close()


def button(image: bytes | None) -> tuple[float, float]:
    """The middle of what is not white, in shares of width and height."""
    assert image is not None
    rows, columns = np.nonzero(np.asarray(Image.open(io.BytesIO(image))).sum(axis=2) < 765)
    return float((columns.mean() + 0.5) / WIDTH), float((rows.mean() + 0.5) / HEIGHT)


def test_the_shapes_are_those_of_the_first_screenshot() -> None:
    spec = gymnasium_spec(SETTINGS.factory())
    assert spec.actions == DeviceActions() and spec.image_size == (HEIGHT, WIDTH) and spec.vector_size == 0


def test_goal_and_screenshot_are_seen_and_a_tap_on_the_button_succeeds(emulator: GymnasiumEmulator) -> None:
    seen = emulator.reset(Task("page", params={"colour": "blue"}), seed=3)
    assert seen.text == "Press the blue button" and seen.vector is None
    missed = emulator.step({"type": "type", "text": 'a "quoted" text'})
    assert not missed.terminated and not missed.success
    x, y = button(seen.image)
    hit = emulator.step({"type": "tap", "x": x, "y": y})
    assert (hit.terminated, hit.success, hit.reward) == (True, True, 1.0)


def test_done_gives_up_without_asking_the_environment(emulator: GymnasiumEmulator) -> None:
    seen = emulator.reset(Task("page"), seed=3)
    ended = emulator.step({"type": "done"})
    assert ended.terminated and not ended.success and ended.observation.image == seen.image


def test_the_device_agent_fits_such_an_environment() -> None:
    words = [
        "emulator=gymnasium",
        "agent=device",
        "emulator.entry_point=test_browsergym:Page",
        "emulator.observe=[screenshot,goal]",
        "emulator.touch=digirl_dist.emulator.browsergym:touch",
    ]
    settings = load("config/multimachine", "host", words)
    device = build_device(settings, settings.emulator)
    agent = agent_plugin(settings).build(device.spec)()
    emulator = device.factory()
    with torch.no_grad():
        (decision,) = agent.act([emulator.reset(device.tasks[0], 0)], [np.random.default_rng(0)])
    assert not emulator.step(decision.action).truncated
    emulator.close()


@pytest.mark.parametrize(
    ("observe", "told"),
    [([], r"axtree_object .* emulator\.observe"), (["screen"], "no entry 'screen'; there are .*screenshot")],
)
def test_an_entry_that_cannot_be_used_or_is_not_there_is_named(observe: list[str], told: str) -> None:
    settings = GymnasiumSettings(entry_point="test_browsergym:Page", touch=SETTINGS.touch, observe=observe)
    with pytest.raises(SettingsError, match=told):
        gymnasium_spec(settings.factory())


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (DeviceAction("tap", x=1.0, y=0.5), "mouse_click(59, 20)"),
        (DeviceAction("swipe", x=0.0, y=0.0, to_x=0.5, to_y=1.0), "mouse_drag_and_drop(0, 0, 30, 39)"),
        (DeviceAction("drag", x=0.0, y=0.0, to_x=0.5, to_y=1.0), "mouse_drag_and_drop(0, 0, 30, 39)"),
        (DeviceAction("select", x=0.5, y=1.0), "mouse_dblclick(30, 39)"),
        (DeviceAction("type", text="it's"), 'keyboard_type("it\'s")'),
        (DeviceAction("enter"), "keyboard_press('Enter')"),
        (DeviceAction("back"), "go_back()"),
        (DeviceAction("home"), "noop()"),
    ],
)
def test_touch_actions_are_put_into_browsergyms_words(action: DeviceAction, call: str) -> None:
    assert touch(action, (HEIGHT, WIDTH)) == call


def test_of_an_observation_goal_and_screenshot_are_used() -> None:
    """In the form of browsergym-core 0.14.3, as it was recorded on miniwob.click-test."""
    raw = {
        "goal": "Click the button.",
        "goal_object": ({"type": "text", "text": "Click the button."},),
        "chat_messages": ({"role": "user", "timestamp": 1.8e9, "message": "Click the button."},),
        "screenshot": np.zeros((321, 498, 4), np.uint8),
        "axtree_object": {"nodes": []},
        "extra_element_properties": {
            "13": {"bbox": [117.0, 169.5, 55.5, 51.0], "visibility": 1.0, "set_of_marks": True}
        },
        "elapsed_time": np.array([0.5]),
    }
    seen = observed(raw)
    assert seen.keys() == {"goal", "screenshot"}
    assert seen["goal"] == "Click the button." and seen["screenshot"].shape == (321, 498, 3)
