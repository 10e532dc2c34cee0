"""What AndroidWorld's tasks ask of a device, answered over the slot's own adb server.

AndroidWorld itself reaches a device through the emulator's gRPC port, and the elements on its screen through an app
that calls a gRPC server here. Both listen where other users of the machine reach them. Its tasks need neither: they
send adb commands, and read the elements on the screen, which ``uiautomator`` tells as well.
"""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
from android_env.components.adb_call_parser import AdbCallParser
from android_env.components.errors import AdbControllerError
from android_env.env_interface import AndroidEnvInterface
from android_env.proto.a11y.android_accessibility_forest_pb2 import AndroidAccessibilityForest
from android_world.env import representation_utils
from android_world.env.android_world_controller import A11yMethod, AndroidWorldController
from android_world.env.interface import AsyncAndroidEnv

from digirl_dist.emulator.android.screen import is_dump
from digirl_dist.errors import EmulatorError

_DUMP_ATTEMPTS = 3
_DUMP_PAUSE_S = 1.0


@dataclass(frozen=True)
class Adb:
    """The adb program on one device, in the words of android_env's ``AdbController``."""

    command: Sequence[str]
    """The program, its server and its device."""
    folder: Path | None
    """Where it is run: the server's socket file is named relative to it."""
    limit_s: float
    restarted: Callable[[], None]
    """Waits for the device, whose adbd has been restarted."""

    def execute_command(self, args: list[str], timeout: float | None = None, device_specific: bool = True) -> bytes:
        """Returns what it prints. Raises AdbControllerError, as the tasks expect."""
        words = [*self.command, *args]
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout or self.limit_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AdbControllerError(f"adb {' '.join(args)[:200]}: {error}") from error
        if done.returncode != 0:
            said = " ".join(done.stdout.decode(errors="replace").split())[-300:]
            raise AdbControllerError(f"adb {' '.join(args)[:200]} ended with status {done.returncode}: {said}")
        if args[:1] == ["root"]:
            self.restarted()
        return done.stdout


class _DeviceEnv(AndroidEnvInterface):  # type: ignore[misc]  # the library is untyped
    """The part of AndroidEnv that AndroidWorld's tasks use: adb commands, and pictures."""

    def __init__(self, adb: Adb, frame: Callable[[], np.ndarray]) -> None:
        self._parser = AdbCallParser(adb)
        self._frame = frame

    def execute_adb_call(self, call: Any) -> Any:
        return self._parser.parse(call)

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"pixels": self._frame()})

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a picture; whoever acts does so by other means."""
        return dm_env.transition(0.0, {"pixels": self._frame()})

    def action_spec(self) -> dict[str, Any]:
        return {}

    def observation_spec(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """The device is the slot's."""


class _Controller(AndroidWorldController):  # type: ignore[misc]
    """Tells the elements on the screen by ``uiautomator``."""

    def __init__(self, env: _DeviceEnv, window: Callable[[], str]) -> None:
        super().__init__(env, a11y_method=A11yMethod.UIAUTOMATOR)
        self._window = window

    def get_ui_elements(self) -> list[Any]:
        return self._elements(self._dump())

    def _process_timestep(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        dump = self._dump()
        timestep.observation["forest"] = forest_of(dump)
        timestep.observation["ui_elements"] = self._elements(dump)
        return timestep

    def _elements(self, dump: str) -> list[Any]:
        return list(representation_utils.xml_dump_to_ui_elements(dump))

    def _dump(self) -> str:
        """Raises EmulatorError for a screen that does not come to rest, in place of telling an earlier one."""
        said = ""
        for attempt in range(_DUMP_ATTEMPTS):
            if attempt:
                time.sleep(_DUMP_PAUSE_S)
            said = self._window()
            if is_dump(said):
                return said
        told = " ".join(said.split())[:200]
        raise EmulatorError(f"uiautomator does not tell the elements on the screen, which may never rest: {told}")


def forest_of(dump: str) -> Any:
    """Returns the elements of a dump of ``uiautomator`` as the trees that AndroidWorld's own app would send."""
    forest = AndroidAccessibilityForest()
    tree = forest.windows.add().tree

    def add(element: ET.Element, depth: int) -> int:
        node = tree.nodes.add()
        number = node.unique_id = len(tree.nodes)
        _describe(node, element.attrib)
        node.depth = depth
        node.child_ids.extend([add(child, depth + 1) for child in element])
        return number

    for top in ET.fromstring(dump):
        add(top, 0)
    return forest


_TEXTS = {
    "text": "text",
    "class": "class_name",
    "package": "package_name",
    "content-desc": "content_description",
    "resource-id": "view_id_resource_name",
    "hint": "hint_text",
}
_FLAGS = ("checkable", "checked", "clickable", "enabled", "focusable", "focused", "scrollable", "selected", "password")


def _describe(node: Any, said: dict[str, str]) -> None:
    for name, field in _TEXTS.items():
        setattr(node, field, said.get(name, ""))
    for name in (*_FLAGS, "long-clickable"):
        setattr(node, f"is_{name.replace('-', '_')}", said.get(name) == "true")
    node.is_visible_to_user = True  # it tells no others
    node.is_editable = said.get("class", "").endswith("EditText")
    bounds = said.get("bounds", "[0,0][0,0]").strip("[]").replace("][", ",").split(",")
    box = node.bounds_in_screen
    box.left, box.top, box.right, box.bottom = map(int, bounds)


def world_of(adb: Adb, frame: Callable[[], np.ndarray], window: Callable[[], str]) -> Any:
    """Returns the environment that AndroidWorld's tasks are initialised and judged in.

    ``frame`` takes a picture of the screen, ``window`` tells its elements.
    """
    return AsyncAndroidEnv(_Controller(_DeviceEnv(adb, frame), window))


def package_of(app_name: str) -> str | None:
    """Returns the package of an app as AndroidWorld's tasks name it; None if it knows of none."""
    from android_world.env import adb_utils

    activity = adb_utils.get_adb_activity(app_name) if app_name else None
    return None if activity is None else str(adb_utils.extract_package_name(activity))
