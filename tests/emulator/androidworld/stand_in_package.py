"""A stand-in for ``android_world``, which is on no registry, and for ``android_env``, which it builds on.

It has the names that ``digirl_dist.emulator.androidworld`` imports, and five tasks of its own. Whether the real
package fits is what ``test_real_package.py`` tries, where that is importable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from digirl_dist.emulator import androidworld

FILES = {
    "dm_env/__init__.py": """
from types import SimpleNamespace
TimeStep = SimpleNamespace
def restart(observation):
    return SimpleNamespace(observation=observation)
def transition(reward, observation):
    return SimpleNamespace(observation=observation)
""",
    "android_env/env_interface.py": "class AndroidEnvInterface: pass\n",
    "android_env/components/errors.py": "class AdbControllerError(Exception): pass\n",
    "android_env/components/adb_call_parser.py": """
class AdbCallParser:
    def __init__(self, adb_controller):
        self._adb = adb_controller
    def parse(self, request):
        return self._adb.execute_command(request).decode()
""",
    "android_env/proto/a11y/android_accessibility_forest_pb2.py": "class AndroidAccessibilityForest: pass\n",
    "android_world/env/representation_utils.py": """
import xml.etree.ElementTree as ET
def xml_dump_to_ui_elements(dump):
    return [node.get("text") for node in ET.fromstring(dump).iter("node")]
""",
    "android_world/env/adb_utils.py": """
def get_adb_activity(app_name):
    return {"settings": "com.android.settings/.Settings", "notes": "org.notes/.Main"}.get(app_name)
def extract_package_name(activity):
    return activity.split("/")[0]
""",
    "android_world/env/android_world_controller.py": """
import enum
class A11yMethod(enum.Enum):
    UIAUTOMATOR = "uiautomator"
class AndroidWorldController:
    def __init__(self, env, a11y_method):
        self._env = env
    def execute_adb_call(self, request):
        return self._env.execute_adb_call(request)
""",
    "android_world/env/interface.py": """
class AsyncAndroidEnv:
    def __init__(self, controller):
        self.controller, self.interaction_cache = controller, ""
""",
    "android_world/env/setup_device/setup.py": """
def setup_apps(env):
    global said
    env.controller.execute_adb_call(["shell", "settings", "put", "global", "apps_are_there", "1"])
    said = env.controller.execute_adb_call(["shell", "settings", "get", "global", "apps_are_there"])
""",
    "android_world/task_evals/miniwob/miniwob_base.py": """
def is_episode_terminated(env):
    return env.controller.execute_adb_call(["shell", "settings", "get", "global", "page"]).strip() not in ("null", "0")
""",
    "android_world/registry.py": """
import random
class _Task:
    complexity, app_names, start_on_home_screen = 0.3, ("settings", ""), True
    @classmethod
    def set_device_time(cls, env):
        pass
    def __init__(self, params):
        self.params, self.name = params, type(self).__name__
        self.goal = self.template.format(**params)
    def initialize_task(self, env):
        env.interaction_cache = ""
        env.controller.execute_adb_call(["root"])
    def tear_down(self, env):
        env.controller.execute_adb_call(["shell", "settings", "put", "global", "torn_down", self.name])
class BrightnessSet(_Task):
    template = "Set the brightness to {level}"
    @classmethod
    def generate_random_params(cls):
        return {"level": random.randint(1, 255)}
    def initialize_task(self, env):
        super().initialize_task(env)
        env.controller.execute_adb_call(["shell", "settings", "put", "system", "level", "0"])
    def is_successful(self, env):
        found = env.controller.execute_adb_call(["shell", "settings", "get", "system", "level"]).strip()
        return float(found == str(self.params["level"]))
class NotesCount(_Task):
    template = "How many of the {n} notes are there?"
    @classmethod
    def generate_random_params(cls):
        return {"n": random.randint(2, 99)}
    def is_successful(self, env):
        return 0.5 if env.interaction_cache == "half" else float(env.interaction_cache == str(self.params["n"]))
class NotesWrite(NotesCount):
    app_names = ("notes",)
class BrokenTask(NotesCount):
    def initialize_task(self, env):
        env.controller.execute_adb_call(["shell", "no-such-program"])
class MiniWobPage(NotesCount):
    def initialize_task(self, env):
        env.controller.execute_adb_call(["shell", "settings", "put", "global", "page", "0"])
    def is_successful(self, env):
        return float(env.controller.execute_adb_call(["shell", "settings", "get", "global", "page"]).strip() == "1")
def get_families():
    return ["android_world"]
class TaskRegistry:
    def get_registry(self, family):
        return {task.__name__: task for task in (BrightnessSet, NotesCount, NotesWrite, BrokenTask, MiniWobPage)}
""",
}
_OURS = "digirl_dist.emulator.androidworld.world"
_MODULES = ("android_world", "android_env", "dm_env", _OURS)


@contextmanager
def stand_in_package(folder: Path) -> Iterator[None]:
    """It is what is imported within a ``with``, whatever is installed."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for inner in path.relative_to(folder).parents[:-1]:  # without one, a real package would come before it
            (folder / inner / "__init__.py").touch()
    before = _forget()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()
        sys.modules.update(before)
        if _OURS in before:
            vars(androidworld)["world"] = before[_OURS]


def _forget() -> dict[str, object]:
    """Takes away the packages that were imported; returns them."""
    vars(androidworld).pop("world", None)
    names = [
        name for name in sys.modules if name in _MODULES or name.startswith(tuple(f"{each}." for each in _MODULES))
    ]
    return {name: sys.modules.pop(name) for name in names}
