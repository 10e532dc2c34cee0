"""The Gymnasium emulator: which environments it takes, and what it makes of their spaces."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

from digirl_dist.emulator import BoxActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.emulator.gymnasium import GymnasiumEmulator, gymnasium_spec
from digirl_dist.errors import ActionError, EmulatorError, SettingsError
from digirl_dist.settings import GenericAgentSettings, GymnasiumSettings
from digirl_dist.tasks import Task
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack

TASK = Task("any")

USER_FILE = '''
import gymnasium
import numpy as np
from gymnasium import spaces

class Corridor(gymnasium.Env):
    """Walk right until the end."""
    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action):
        self.at = max(0, self.at + (1 if action else -1))
        ended = self.at >= self.length
        return self._seen(), float(ended), ended, False, {}

    def _seen(self):
        return np.array([self.at], np.float32)

gymnasium.register(id="Corridor-v0", entry_point="corridor_of_the_user:Corridor", max_episode_steps=4,
                   kwargs={"length": 9})
'''


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with an environment of the user's own in it."""
    (tmp_path / "corridor_of_the_user.py").write_text(USER_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    yield tmp_path
    gymnasium.registry.pop("Corridor-v0", None)


class Recorder(gymnasium.Env[Any, Any]):
    """Gives what it was built with, and remembers the last action."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], seen: Any) -> None:
        self.observation_space, self.action_space, self.seen = observation_space, action_space, seen
        self.info: dict[str, Any] = {}
        self.reward = 0.0
        self.action: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.action = action
        return self.seen, self.reward, False, False, self.info


def recorder(observations: spaces.Space[Any] | None = None, actions: Any = None, seen: Any = 0) -> Recorder:
    return Recorder(observations or spaces.Discrete(3), actions or spaces.Discrete(2), seen)


def pixels(image: bytes | None) -> np.ndarray:
    assert image is not None
    return np.asarray(Image.open(io.BytesIO(image)))


# --- which environments ----------------------------------------------------------------------------------------------


def test_a_registered_environment_is_found_by_its_id() -> None:
    spec = gymnasium_spec(GymnasiumSettings(id="CartPole-v1").factory())
    assert spec.actions == DiscreteActions(2)
    assert (spec.vector_size, spec.image_size, spec.longest) == (4, None, 500)


def shortened() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=8)


class ThreeTries(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An episode is three of the inner environment, as in meta-learning."""

    def __init__(self) -> None:
        super().__init__(shortened())

    def reset(self, **how: Any) -> Any:
        self.tries = 0
        return self.env.reset(**how)

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self.env.step(action)
        if (terminated or truncated) and self.tries < 2:
            self.tries += 1
            return self.env.reset()[0], reward, False, False, info
        return seen, reward, terminated, truncated, info


def test_only_a_time_limit_around_all_else_bounds_an_episode() -> None:
    """Episodes of an honest environment were refused as longer than the limit that its wrapper begins again."""
    assert gymnasium_spec(GymnasiumSettings(entry_point=f"{__name__}:shortened").factory()).longest == 8
    factory = GymnasiumSettings(entry_point=f"{__name__}:ThreeTries").factory()
    assert gymnasium_spec(factory).longest is None
    emulator, steps, ended = factory(), 0, False
    emulator.reset(TASK, seed=1)
    while not ended:
        ended, steps = emulator.step(steps % 2).ended, steps + 1
    assert steps > 8


@pytest.mark.component
def test_atari_gives_screenshots() -> None:
    factory = GymnasiumSettings(id="ALE/Pong-v5").factory()
    spec = gymnasium_spec(factory)
    assert (spec.actions, spec.vector_size, spec.image_size) == (DiscreteActions(6), 0, (210, 160))
    emulator = factory()
    assert pixels(emulator.reset(TASK, seed=1).image).shape == (210, 160, 3)
    emulator.close()


def test_without_ale_py_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SettingsError, match=r"digirl_dist\[atari\]"):
        GymnasiumSettings(id="ALE/Pong-v5").factory()


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"id": "CartPool-v1"}, "'CartPool-v1'.*CartPole-v1"),
        ({}, r"needs emulator\.id, as CartPole-v1, or emulator\.entry_point"),
        (
            {"id": "Pong-v5", "entry_point": "my:Env"},
            r"id=Pong-v5 and .*=my:Env name two environments: set",
        ),
        ({"id": "MiniGrid-X-v0"}, r"minigrid:MiniGrid-X-v0.*pip install minigrid.*emulator.packages=\[minigrid\]"),
        ({"id": "highway_env:X-v0"}, r"'highway_env'.*pip install highway-env.*emulator.packages=\[highway-env\]"),
        ({"id": "FlappyBird-v0"}, r"'FlappyBird-v0'.*; write flappy_bird_gymnasium:FlappyBird-v0"),
        ({"entry_point": "no_such_file:MyEnv"}, "no_such_file"),
        ({"entry_point": "corridor_of_the_user:Corridoor"}, "defines no Corridoor"),
        ({"entry_point": "corridor_of_the_user"}, "module:name"),
    ],
)
def test_what_names_no_environment_is_refused_with_the_remedy(
    chosen: dict[str, str], told: str, user_folder: Path
) -> None:
    with pytest.raises(SettingsError, match=told):
        GymnasiumSettings(**chosen).factory()


@pytest.mark.component
def test_minigrid_is_played_with_its_mission_as_the_text() -> None:
    emulator = GymnasiumSettings(id="minigrid:MiniGrid-Empty-5x5-v0").factory()()
    seen = emulator.reset(TASK, seed=0)
    assert seen.text == "get to the green goal square" and pixels(seen.image).shape == (7, 7, 3)
    assert seen.vector is not None and seen.vector.tolist() == [1, 0, 0, 0], "it looks to the right"
    assert emulator.step(2).reward == 0.0
    assert "MiniGrid-Empty-5x5-v0" in gymnasium.registry


@pytest.mark.parametrize(
    "env_id", ["Meta-Worlds/MT1", "deep-sea-treasure-v0", "not_there:X-v0", "requests/X-v0", "Numpy-v0", "json:X-v0"]
)
def test_names_a_package_that_nobody_checked_is_never_suggested(env_id: str) -> None:
    """It may be another project, or be free for somebody who waits for it."""
    with pytest.raises(SettingsError) as refusal:
        GymnasiumSettings(id=env_id).factory()
    assert "pip install" not in str(refusal.value) and "packages=[" not in str(refusal.value)
    assert "package" in str(refusal.value) or "importing json registered no environment" in str(refusal.value)


def test_names_what_is_near_and_that_a_module_registers_by_a_function(user_folder: Path) -> None:
    (user_folder / "registers_late.py").write_text("def register_envs(): pass")
    near = r"near it are Corridor-v0.*; importing corridor_of_the_user registered no environment of that name$"
    with pytest.raises(SettingsError, match=near):
        GymnasiumSettings(id="corridor_of_the_user:Corridoor-v7").factory()
    late = r"importing registers_late registered no environment of that name; it has register_envs\(\): call that at"
    with pytest.raises(SettingsError, match=late):
        GymnasiumSettings(id="registers_late:Late-v0").factory()


def test_what_a_package_needs_besides_is_named_with_how_to_get_it(user_folder: Path) -> None:
    (user_folder / "needs_more.py").write_text("import dependency_not_there.part")
    with pytest.raises(
        SettingsError, match=r"No module.*provides the module dependency_not_there here.*emulator.packages"
    ):
        GymnasiumSettings(id="needs_more:X-v0").factory()


@pytest.mark.parametrize("name", ["Ant-v5", "BipedalWalker-v3"])
def test_a_missing_physics_engine_is_one_line_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mujoco", "Box2D"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in [each for each in sys.modules if each.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(SettingsError, match=f"{name} cannot be imported: .*pip install|{name}.*swig") as refusal:
        gymnasium_spec(GymnasiumSettings(id=name).factory())
    assert "\n" not in str(refusal.value)


def test_a_class_in_a_file_of_the_working_directory_is_used(user_folder: Path) -> None:
    settings = GymnasiumSettings(entry_point="corridor_of_the_user:Corridor", kwargs={"length": 2})
    emulator = settings.factory()()
    emulator.reset(TASK, seed=0)
    assert [emulator.step(1).terminated for _ in range(2)] == [False, True]
    assert settings.tasks("default", "train") == [Task("corridor_of_the_user:Corridor")]


def test_an_id_with_a_module_imports_it_and_keeps_its_registered_limits(user_folder: Path) -> None:
    emulator = GymnasiumSettings(id="corridor_of_the_user:Corridor-v0").factory()()
    emulator.reset(TASK, seed=0)
    assert [emulator.step(1).truncated for _ in range(4)] == [False, False, False, True]


@pytest.mark.component
@pytest.mark.parametrize(
    "settings",
    [
        GymnasiumSettings(entry_point="corridor_of_the_user:Corridor", kwargs={"length": 1}),
        GymnasiumSettings(id="corridor_of_the_user:Corridor-v0", kwargs={"length": 1}),
    ],
)
def test_a_worker_runs_the_users_environment_without_the_users_file(
    settings: GymnasiumSettings, user_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("worker")
    (elsewhere / "factory.pickle").write_bytes(pack(settings.factory()))
    script = (
        "import importlib.util, pickle\n"
        "from digirl_dist.tasks import Task\n"
        "assert importlib.util.find_spec('corridor_of_the_user') is None\n"
        "emulator = pickle.load(open('factory.pickle', 'rb'))()\n"
        "emulator.reset(Task('t'), 0)\n"
        "transition = emulator.step(1)\n"
        "print(transition.reward, transition.terminated, transition.success)\n"
    )
    package = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout.split(), ran.stderr) == (["1.0", "True", "True"], "")


def test_an_environment_that_cannot_be_built_is_a_wrong_setting() -> None:
    factory = GymnasiumSettings(id="CartPole-v1", kwargs={"lenght": 2}).factory()
    with pytest.raises(SettingsError, match="lenght"):
        gymnasium_spec(factory)


def test_where_an_environment_wants_a_tuple_the_way_to_give_it_one_is_told(user_folder: Path) -> None:
    (user_folder / "wants_a_tuple.py").write_text("def make(weights):\n    return (0.5, *()) + weights\n")
    factory = GymnasiumSettings(entry_point="wants_a_tuple:make", kwargs={"weights": [0.5]}).factory()
    with pytest.raises(SettingsError, match="emulator.kwargs has lists and no tuples: write a function"):
        gymnasium_spec(factory)


# --- actions ---------------------------------------------------------------------------------------------------------


def test_a_discrete_space_that_starts_elsewhere_still_counts_from_zero() -> None:
    env = recorder(actions=spaces.Discrete(3, start=-1))
    emulator = GymnasiumEmulator(lambda: env)
    emulator.reset(TASK, seed=0)
    emulator.step(0)
    assert env.action == -1


def test_box_actions_keep_their_shape_and_are_clipped_to_the_bounds() -> None:
    env = recorder(actions=spaces.Box(np.array([[-1, 0]], np.float32), np.array([[1, 2]], np.float32)))
    emulator = GymnasiumEmulator(lambda: env)
    assert emulator.spec.actions == BoxActions((-1.0, 0.0), (1.0, 2.0))
    emulator.reset(TASK, seed=0)
    emulator.step([0.5, 7])
    np.testing.assert_array_equal(env.action, np.array([[0.5, 2.0]], np.float32))


@pytest.mark.parametrize("wrong", [[0.0], [0.0, 0.0, 0.0], 0.0, [0.0, float("nan")], [0.0, "1"], [True, 0.0]])
def test_a_wrong_box_action_is_refused(wrong: Any) -> None:
    emulator = GymnasiumEmulator(lambda: recorder(actions=spaces.Box(-1.0, 1.0, (2,), np.float32)))
    emulator.reset(TASK, seed=0)
    with pytest.raises(ActionError, match="2 numbers within"):
        emulator.step(wrong)


@pytest.mark.parametrize("wrong", [-1, 2, 1.0, True])
def test_a_wrong_discrete_action_is_refused(wrong: Any) -> None:
    emulator = GymnasiumEmulator(recorder)
    emulator.reset(TASK, seed=0)
    with pytest.raises(ActionError, match=r"int in \[0, 2\)"):
        emulator.step(wrong)


def test_several_actions_at_once_are_taken_apart_and_put_together() -> None:
    space = spaces.Dict(
        move=spaces.MultiDiscrete([2, 3], start=[0, 5]),
        buttons=spaces.MultiBinary(2),
        arm=spaces.Tuple([spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(4, start=-1)]),
        level=spaces.Box(1, 3, (1,), np.int64),
    )
    env = recorder(actions=space)
    emulator = GymnasiumEmulator(lambda: env)
    choices = [DiscreteActions(n) for n in (2, 3, 2, 2, 4, 3)]
    parts = (*choices[:4], BoxActions((-1.0, -1.0), (1.0, 1.0)), *choices[4:])
    assert emulator.spec.actions == ProductActions(parts), "in the order of the space"
    emulator.reset(TASK, seed=0)
    emulator.step([1, 2, 1, 0, [0.5, 2.0], 3, 2])
    assert space.contains(env.action)
    assert env.action["arm"][0].tolist() == [0.5, 1.0] and env.action["arm"][1] == 2
    assert [env.action[key].tolist() for key in ("buttons", "level", "move")] == [[1, 0], [3], [1, 7]]
    for wrong in ([1, 2, 1, 0, [0.5, 2.0], 3], [1, 3, 1, 0, [0.5, 2.0], 3, 2], 0, [1, 2, 1, 0, 0.5, 3, 2]):
        with pytest.raises(ActionError):
            emulator.step(wrong)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([3, 2], start=[-1, 5]),
        spaces.MultiBinary([2, 2]),
        spaces.Tuple([spaces.Discrete(2)] * 2),
        spaces.Box(1.0, 1.0, (2,)),
        spaces.Box(-np.inf, np.inf, ()),
        spaces.Dict({"a.b": spaces.Discrete(2, start=-5), "c/ключ": spaces.Box(-3, 3, (2,), np.int64)}),
    ],
)
def test_an_agent_acts_and_knows_its_probability_in_any_space(space: spaces.Space[Any]) -> None:
    env = recorder(actions=space)
    emulator = GymnasiumEmulator(lambda: env)
    agent = GenericAgentSettings().build(emulator.spec)()
    seen = emulator.reset(TASK, seed=0)
    with torch.no_grad():
        [decision] = agent.act([seen], [np.random.default_rng(0)])
        told = agent.log_prob([seen, seen], [decision.action] * 2)
    emulator.step(decision.action)
    assert space.contains(env.action)
    np.testing.assert_allclose(told, [decision.log_prob] * 2, rtol=1e-4)


def test_a_box_may_have_more_whole_numbers_than_its_type_counts_above_0() -> None:
    space = spaces.Box(-128, 127, (1,), np.int8)
    env = recorder(actions=space)
    emulator = GymnasiumEmulator(lambda: env)
    emulator.reset(TASK, seed=0)
    for action, wanted in ((0, -128), (255, 127)):
        emulator.step(action)
        assert env.action.tolist() == [wanted] and space.contains(env.action)


def test_an_action_space_that_cannot_be_is_named_with_environment_and_key() -> None:
    space = spaces.Dict(walk=spaces.Discrete(2), graph=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]))
    with pytest.raises(SettingsError, match=r"Recorder: its action space\['graph'\]\[0\] Sequence.*not supported"):
        GymnasiumEmulator(lambda: recorder(actions=space))
    with pytest.raises(SettingsError, match=r"Recorder: its action space Discrete\(1099511627776\) .*1048576 choices"):
        GymnasiumEmulator(lambda: recorder(actions=spaces.Discrete(2**40)))


# --- observations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 1), (5, 7)])
def test_images_keep_every_pixel(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    emulator = GymnasiumEmulator(lambda: recorder(spaces.Box(0, 255, shape, np.uint8), seen=image))
    assert (emulator.spec.image_size, emulator.spec.vector_size) == ((5, 7), 0)
    np.testing.assert_array_equal(pixels(emulator.reset(TASK, seed=0).image), image.squeeze())


@pytest.mark.parametrize(
    ("space", "frames"),
    [
        (spaces.Box(0, 255, (3, 20, 24), np.uint8), [(slice(None),)]),
        (spaces.Box(0, 255, (1, 20, 24), np.uint8), [(0,)]),
        (spaces.Box(0, 255, (4, 20, 24), np.uint8), [(number,) for number in range(4)]),
        (spaces.Box(0, 255, (20, 24, 4), np.uint8), [(slice(None), slice(None), number) for number in range(4)]),
        (spaces.Box(0, 255, (2, 20, 24, 3), np.uint8), [(0,), (1,)]),
        (spaces.Box(0.0, 1.0, (20, 24, 3), np.float32), [(slice(None),)]),
        (spaces.Box(-1.0, 1.0, (4, 20, 24), np.float32), [(number,) for number in range(4)]),
    ],
)
def test_images_of_other_forms_are_shown_whole(space: spaces.Box, frames: list[Any]) -> None:
    """Channel-first, stacked, of floats: all pixels, several frames side by side."""
    space.seed(0)
    seen = space.sample()
    emulator = GymnasiumEmulator(lambda: recorder(space, seen=seen))
    shown = pixels(emulator.reset(TASK, seed=0).image)
    assert emulator.spec.vector_size == 0 and emulator.spec.image_size == shown.shape[:2] == (20, 24 * len(frames))
    scaled = seen.astype(np.float64)
    if space.dtype != np.uint8:
        scaled = (scaled - space.low.min()) / (space.high.max() - space.low.min()) * 255
    for number, index in enumerate(frames):
        one = scaled[index]
        one = one.transpose(1, 2, 0) if one.ndim == 3 and one.shape[0] == 3 else one
        np.testing.assert_allclose(shown[:, 24 * number : 24 * (number + 1)], one, atol=0.51)


def test_several_images_are_shown_side_by_side() -> None:
    space = spaces.Dict(
        front=spaces.Box(0, 255, (4, 6, 3), np.uint8), sensors=spaces.Dict(depth=spaces.Box(0, 255, (5, 3), np.uint8))
    )
    seen = {"front": np.full((4, 6, 3), 9, np.uint8), "sensors": {"depth": np.full((5, 3), 7, np.uint8)}}
    emulator = GymnasiumEmulator(lambda: recorder(space, seen=seen))
    shown = pixels(emulator.reset(TASK, seed=0).image)
    assert emulator.spec == EmulatorSpec(DiscreteActions(2), 0, (5, 9)) and shown.shape == (5, 9, 3)
    assert (shown[:4, :6] == 9).all() and (shown[4, :6] == 0).all() and (shown[:, 6:] == 7).all()


WRONG = [
    (np.array([0.0, np.nan], np.float32), "speed of its observation holds NaN or infinite values"),
    (np.zeros(3, np.float32), r"speed of its observation has the shape \(3,\) in place of \(2,\)"),
    (np.array(["a", "b"]), "speed of its observation holds <U1 in place of numbers"),
    (None, "speed of its observation holds object in place of numbers"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_a_wrong_value_is_named_with_environment_and_key(value: Any, message: str) -> None:
    space = spaces.Dict(speed=spaces.Box(-9, 9, (2,), np.float32), picture=spaces.Box(0, 255, (4, 4, 3), np.uint8))
    env = recorder(space, seen={"speed": value, "picture": np.zeros((4, 4, 3), np.uint8)})
    with pytest.raises(EmulatorError, match=f"Recorder: {message}"):
        GymnasiumEmulator(lambda: env).reset(TASK, seed=0)


PICTURE = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"picture": PICTURE}, "speed of its observation is missing"),
        ({"speed": 7, "picture": PICTURE}, "speed of its observation is 7, which is not in Discrete"),
        ({"speed": 1, "picture": np.zeros((4, 5, 3), np.uint8)}, "picture of its observation has the shape"),
    ],
)
def test_a_missing_or_misshapen_entry_is_named(seen: dict[str, Any], told: str) -> None:
    space = spaces.Dict(speed=spaces.Discrete(3), picture=spaces.Box(0, 255, (4, 4, 3), np.uint8))
    with pytest.raises(EmulatorError, match=f"Recorder: {told}"):
        GymnasiumEmulator(lambda: recorder(space, seen=seen)).reset(TASK, seed=0)


class OfOldGym(Recorder):
    """An environment written for the Gym of before 2022, whose observation can be taken for a pair."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, True, {}


def test_an_environment_of_the_old_gym_is_named() -> None:
    emulator = GymnasiumEmulator(lambda: OfOldGym(spaces.Box(0, 1, (2,)), spaces.Discrete(2), None))
    with pytest.raises(EmulatorError, match="OfOldGym: its reset returns no observation and info"):
        emulator.reset(TASK, seed=0)
    with pytest.raises(EmulatorError, match="OfOldGym: its step returns no observation, reward, terminated"):
        emulator.step(0)


@pytest.mark.parametrize("reward", [None, "much", np.ones(2), float("-inf"), float("nan")])
def test_a_reward_that_is_no_number_is_named(reward: Any) -> None:
    env = recorder(seen=1)
    env.reward = reward
    with pytest.raises(EmulatorError, match="Recorder: its reward is "):
        GymnasiumEmulator(lambda: env).step(0)


@pytest.mark.parametrize("space", [None, "Box", object()])
@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
def test_what_is_no_space_is_named_with_its_environment(kind: str, space: object) -> None:
    env = Recorder(spaces.Discrete(3), spaces.Discrete(2), 0)
    setattr(env, kind, space)
    with pytest.raises(SettingsError, match=rf"^Recorder: its {kind} is .* \(builtins\), not a space of gymnasium$"):
        gymnasium_spec(lambda: GymnasiumEmulator(lambda: env))


def test_all_that_an_environment_lacks_is_said_at_once() -> None:
    class Empty(gymnasium.Env[Any, Any]):
        observation_space = spaces.Discrete(2)

    said = r"Empty: lacks reset\(\*, seed=None, .* and step\(action\) -> .*; its action_space is None"
    with pytest.raises(SettingsError, match=said):
        gymnasium_spec(lambda: GymnasiumEmulator(Empty))


class Unclosable(Recorder):
    def close(self) -> None:
        raise ValueError("it is stuck")


def test_an_environment_that_cannot_be_closed_is_refused_in_one_line() -> None:
    env = Unclosable(spaces.Discrete(3), spaces.Discrete(2), 0)
    with pytest.raises(SettingsError, match="cannot be built: ValueError: it is stuck"):
        gymnasium_spec(lambda: GymnasiumEmulator(lambda: env))


class Mission(spaces.Space[str]):
    """A space of a package's own, as MiniGrid's: of strings, and not flattenable."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


@pytest.mark.parametrize("name", ["mission", "told"])
def test_texts_of_a_packages_own_spaces_are_read(name: str) -> None:
    env = recorder(spaces.Dict({name: Mission(), "direction": spaces.Discrete(4)}), seen={name: "go", "direction": 2})
    seen = GymnasiumEmulator(lambda: env).reset(TASK, seed=0)
    assert seen.text == "go" and seen.vector is not None and seen.vector.tolist() == [0, 0, 1, 0]


def test_everything_that_is_no_image_is_flattened() -> None:
    space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float64)])
    emulator = GymnasiumEmulator(lambda: recorder(space, seen=(1, np.array([[0.1, 0.2], [0.3, 0.4]]))))
    vector = emulator.reset(TASK, seed=0).vector
    assert vector is not None and vector.dtype == np.float32
    np.testing.assert_allclose(vector, [0, 1, 0, 0.1, 0.2, 0.3, 0.4], rtol=1e-6)


def test_a_dict_is_taken_apart_into_text_image_and_vector() -> None:
    space = spaces.Dict(
        screenshot=spaces.Box(0, 255, (4, 6, 3), np.uint8), goal=spaces.Text(50), direction=spaces.Discrete(2)
    )
    seen = {"screenshot": np.full((4, 6, 3), 9, np.uint8), "goal": "open the door", "direction": 1}
    emulator = GymnasiumEmulator(lambda: recorder(space, seen=seen))
    assert (emulator.spec.image_size, emulator.spec.vector_size) == ((4, 6), 2)
    observation = emulator.reset(Task("t", instruction="not this"), seed=0)
    assert observation.text == "open the door"
    assert pixels(observation.image).shape == (4, 6, 3)
    np.testing.assert_array_equal(observation.vector, np.array([0, 1], np.float32))


def test_without_text_of_its_own_an_environment_shows_the_instruction() -> None:
    emulator = GymnasiumEmulator(recorder)
    assert emulator.reset(Task("t", instruction="balance"), seed=0).text == "balance"
    assert emulator.step(0).observation.text == "balance"


def test_an_observation_without_fixed_size_or_of_endless_size_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"Recorder: its observation space, .* no fixed size"):
        GymnasiumEmulator(lambda: recorder(spaces.Sequence(spaces.Discrete(2)), seen=(1,)))
    with pytest.raises(SettingsError, match=r"Recorder: at of .* would be a vector of 1099511627776 numbers"):
        GymnasiumEmulator(lambda: recorder(spaces.Dict(at=spaces.Discrete(2**40)), seen={"at": 1}))


def test_an_empty_observation_has_no_vector() -> None:
    assert GymnasiumEmulator(lambda: recorder(spaces.Box(0, 1, (0,)), seen=np.zeros(0))).spec.vector_size == 0


SIDES = (4, 4)


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.Box(0, 1, SIDES, np.uint8), np.eye(4, dtype=np.uint8)),
        (spaces.Box(0, 2, (19, 19), np.uint8), np.eye(19, dtype=np.uint8) * 2),
        (spaces.Box(0, 1, (6, 7, 3), np.uint8), np.ones((6, 7, 3), np.uint8)),
        (spaces.Box(1, 255, SIDES, np.uint8), np.full(SIDES, 255, np.uint8)),
        (spaces.Box(0, 1, SIDES, bool), np.eye(4, dtype=bool)),
        (spaces.Box(-1, 1, SIDES, np.int8), -np.eye(4, dtype=np.int8)),
        (spaces.Box(-np.inf, np.inf, (4, 4, 3), np.float32), np.ones((4, 4, 3), np.float32)),
    ],
)
def test_a_board_that_is_no_picture_by_its_bounds_is_numbers(space: spaces.Box, seen: np.ndarray) -> None:
    emulator = GymnasiumEmulator(lambda: recorder(space, seen=seen))
    shown = emulator.reset(TASK, seed=0)
    assert emulator.spec == EmulatorSpec(DiscreteActions(2), seen.size, None) and shown.image is None
    assert shown.vector is not None and shown.vector.tolist() == seen.astype(np.float32).ravel().tolist()


BYTES, UNIT = spaces.Box(0, 255, SIDES, np.uint8), spaces.Box(0.0, 1.0, (4, 4, 3), np.float32)


@pytest.mark.parametrize(
    ("space", "seen", "complaint"),
    [
        (BYTES, np.full(SIDES, 0.5), "has fractions, and its space says whole numbers from 0 to 255; correct"),
        (BYTES, np.full(SIDES, 300), "has values from 300 to 300, and its space says 0 to 255; correct"),
        (BYTES, np.full(SIDES, -1, np.int8), "has values from -1 to -1"),
        (UNIT, np.full((4, 4, 3), 200, np.uint8), "has values from 200 to 200, and its space says 0 to 1"),
        (UNIT, np.full((4, 4, 3), 255.0), "has values from 255 to 255"),
        (spaces.Discrete(3), -1, r"is -1, which is not in Discrete\(3\)"),
        (spaces.Discrete(3, start=5), 2, "is 2, which is not in Discrete"),
        (spaces.MultiDiscrete([3, 2]), np.array([-1, 0]), r"is \[-1, 0\], which is not in MultiDiscrete"),
        (spaces.Discrete(3), 0.5, "is 0.5, which is not in Discrete"),
        (spaces.MultiBinary(2), np.array([0, 7]), r"is \[0, 7\], which is not in MultiBinary"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([1e300, 0]), "has a value beyond float32"),
    ],
)
def test_values_that_their_space_denies_are_named_where_they_would_be_lost(
    space: spaces.Space[Any], seen: Any, complaint: str
) -> None:
    with pytest.raises(EmulatorError, match=f"Recorder: its observation {complaint}"):
        GymnasiumEmulator(lambda: recorder(space, seen=seen)).reset(TASK, seed=0)


def test_values_beyond_their_bounds_that_are_not_lost_are_taken() -> None:
    seen = GymnasiumEmulator(lambda: recorder(spaces.Box(-1, 1, (2,)), seen=np.array([3.0, -7.0]))).reset(TASK, seed=0)
    assert seen.vector is not None and seen.vector.tolist() == [3, -7]
    overshot = GymnasiumEmulator(lambda: recorder(UNIT, seen=np.full((4, 4, 3), 1.05))).reset(TASK, seed=0)
    assert (pixels(overshot.image) == 255).all()


def test_a_vector_of_open_size_is_refused() -> None:
    class Open(spaces.Box):
        """As of packages whose arrays have any size."""

    space = Open(0, 9, (3,), np.float32)
    space._shape = (-1,)
    with pytest.raises(SettingsError, match="Recorder: its observation space, .* has no fixed size"):
        GymnasiumEmulator(lambda: recorder(space, seen=np.zeros(3)))


@pytest.mark.parametrize("observe", [[], ["a", "z"]])
def test_a_vector_has_the_order_of_gymnasiums_flatten(observe: list[str]) -> None:
    """Which sorts the keys of a dict alone."""
    number, inner = spaces.Box(-9, 9, (1,), np.float32), spaces.Dict(y=spaces.Discrete(2), b=spaces.Discrete(2))
    space = spaces.Dict(z=number, a=spaces.Tuple([number, inner]))
    seen = {"z": np.ones(1, np.float32), "a": (np.full(1, 2, np.float32), {"y": 0, "b": 1})}
    found = GymnasiumEmulator(lambda: recorder(space, seen=seen), observe=observe).reset(TASK, seed=0).vector
    assert found is not None and [1, 2, 1, 0, 0, 1] == list(found) == list(spaces.flatten(space, seen))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "space", [spaces.Box(-9, 9, (1,), np.float32), spaces.Tuple([spaces.Box(-9, 9, (1,), np.float32)])]
)
def test_entries_of_an_observation_that_has_none_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(SettingsError, match=r"emulator\.observe: no entry 'typo'; this environment's has none"):
        GymnasiumEmulator(lambda: recorder(space, seen=np.zeros(1)), observe=["typo"])


# --- success ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["success", "is_success"])
def test_the_environments_own_judgement_counts_before_the_return(name: str) -> None:
    env = recorder()
    env.info, env.reward = {name: np.bool_(False)}, 5.0
    emulator = GymnasiumEmulator(lambda: env)
    emulator.reset(TASK, seed=0)
    assert emulator.step(0).success is False
    env.info = {name: True}
    assert emulator.step(0).success is True


def test_an_environment_that_names_its_successes_has_no_others() -> None:
    """A truncated episode of it, of which its info says nothing, is no success for the sign of its return."""
    env = recorder()
    env.info, env.reward = {"is_success": True}, 1.0
    emulator = GymnasiumEmulator(lambda: env)
    emulator.reset(TASK, seed=0)
    assert emulator.step(0).success
    env.info = {}
    emulator.reset(TASK, seed=1)
    assert emulator.step(0).success is False


@pytest.mark.parametrize("others", [None, True, np.zeros(3)])
def test_an_info_whose_achieved_is_no_list_reports_no_goals(others: Any) -> None:
    env = recorder()
    env.info = {"achieved": others}
    emulator = GymnasiumEmulator(lambda: env)
    emulator.reset(TASK, seed=0)
    assert emulator.step(0).achieved == ()


def test_a_success_that_is_said_once_holds_until_the_episode_ends_or_another_word() -> None:
    env = recorder()
    emulator = GymnasiumEmulator(lambda: env, touch=lambda action, size: 0)
    tap = {"type": "tap", "x": 0.5, "y": 0.5}

    def judged(action: Json, **info: bool) -> bool:
        env.info = info
        return emulator.step(action).success

    emulator.reset(TASK, seed=0)
    assert [judged(tap), judged(tap, success=True), judged(tap), judged({"type": "done"})] == [False, True, True, True]
    env.info = {}
    emulator.reset(TASK, seed=1)
    assert [judged(tap), judged(tap, success=True), judged(tap, success=False), judged(tap)] == [
        False,
        True,
        False,
        False,
    ]
    env.reward = 1.0
    other = GymnasiumEmulator(lambda: env, touch=lambda action, size: 0)
    other.reset(TASK, seed=0)
    assert other.step(tap).success and other.step({"type": "done"}).success, "its return says so at the end as before"


def test_the_return_above_the_limit_is_a_success_and_is_counted_anew_each_episode() -> None:
    env = recorder()
    env.reward = 2.0
    emulator = GymnasiumEmulator(lambda: env, success_reward=3.0)
    for _ in range(2):
        emulator.reset(TASK, seed=0)
        assert [emulator.step(0).success for _ in range(2)] == [False, True]
