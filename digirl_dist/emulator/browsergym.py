"""BrowserGym's tasks on the machine's own Chromium, and touch-screen actions in the words of its action set.

BrowserGym (``browsergym-core`` and a package of tasks) comes with ``emulator.packages``; its browser does not, as
playwright would download one. playwright drives Chromium over two pipes, as this package does, so nothing listens.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces

from digirl_dist.emulator.chromium import browser_program
from digirl_dist.emulator.miniwob import html_folder
from digirl_dist.emulator.touch_actions import DeviceAction


class BrowserGym(gymnasium.Env[dict[str, Any], str]):
    """``entry_point`` of such an emulator. Actions are BrowserGym's own, such as ``click("12")``, as code.

    The option ``task`` of a reset (``params`` of a task file) chooses another task than ``task``, such as
    ``miniwob.click-test``. An observation has the goal, with ``axtree`` followed by the accessibility tree, whose lines
    begin with the number (bid) of their element; and the screenshot, with ``marks`` the same numbers upon it.
    """

    def __init__(
        self,
        task: str,
        actions: Sequence[str] = ("coord", "nav"),
        axtree: bool = False,
        marks: bool = False,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        """``actions`` are the parts of its ``HighLevelActionSet``; ``environment`` are arguments of its environment."""
        from browsergym.core.action.highlevel import HighLevelActionSet

        mapping = HighLevelActionSet(list(actions)).to_python_code
        self._task = task
        self._environment = {"action_mapping": mapping, **(environment or {})}
        self._observe = partial(observed, axtree=axtree, marks=marks)
        self._env = self._made(task)
        text = spaces.Text(1 << 20)
        screenshot = self._env.observation_space["screenshot"]  # type: ignore[index]  # of any height and width
        self.observation_space = spaces.Dict({"goal": text, "screenshot": screenshot})
        self.action_space = spaces.Text(1 << 16)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        wanted = (options or {}).get("task", self._task)
        if wanted != self._current:
            self._env.close()
            self._env = self._made(wanted)
        raw, info = self._env.reset(seed=seed)
        return self._observe(raw), info

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        raw, reward, terminated, truncated, info = self._env.step(action)
        return self._observe(raw), float(reward), terminated, truncated, info

    def close(self) -> None:
        """Ends the browsers, and playwright's loop in this thread."""
        from browsergym import core

        self._env.close()
        if core._PLAYWRIGHT is not None:
            core._PLAYWRIGHT.stop()
            core._set_global_playwright(None)

    def _made(self, task: str) -> gymnasium.Env[Any, str]:
        benchmark = task.partition(".")[0]
        if benchmark == "miniwob":
            os.environ.setdefault("MINIWOB_URL", html_folder().as_uri() + "/")
        importlib.import_module(f"browsergym.{benchmark}")  # registers its tasks
        _use_own_browser()
        self._current = task
        return gymnasium.make(f"browsergym/{task}", disable_env_checker=True, **self._environment)


def observed(raw: Mapping[str, Any], axtree: bool = False, marks: bool = False) -> dict[str, Any]:
    """Returns goal and screenshot [H, W, 3] from BrowserGym's observation."""
    goal, screenshot, elements = raw["goal"], raw["screenshot"], raw["extra_element_properties"]
    if axtree:
        from browsergym.utils.obs import flatten_axtree_to_str

        goal = f"{goal}\n\n{flatten_axtree_to_str(raw['axtree_object'], elements)}"
    if marks:
        from browsergym.utils.obs import overlay_som

        screenshot = overlay_som(screenshot, elements)
    return {"goal": goal, "screenshot": screenshot[:, :, :3]}


def _use_own_browser() -> None:
    """Every browser that BrowserGym starts, that of its chat as well, is this machine's, in its sandbox but as root."""
    from browsergym.core import _get_global_playwright

    chromium = _get_global_playwright().chromium
    if not isinstance(chromium.launch, partial):
        guarded = os.geteuid() != 0
        chromium.launch = partial(chromium.launch, executable_path=browser_program(), chromium_sandbox=guarded)


def touch(action: DeviceAction, screen: tuple[int, int]) -> str:
    """The call that BrowserGym carries out; ``screen`` is height and width in pixels. A swipe drags, home waits."""
    height, width = screen

    def point(x: float, y: float) -> str:
        return f"{min(int(x * width), width - 1)}, {min(int(y * height), height - 1)}"

    match action.type:
        case "tap":
            return f"mouse_click({point(action.x, action.y)})"
        case "select":
            return f"mouse_dblclick({point(action.x, action.y)})"
        case "swipe" | "drag":
            return f"mouse_drag_and_drop({point(action.x, action.y)}, {point(action.to_x, action.to_y)})"
        case "type":
            return f"keyboard_type({action.text!r})"
        case "enter":
            return "keyboard_press('Enter')"
        case "back":
            return "go_back()"
        case _:
            return "noop()"
