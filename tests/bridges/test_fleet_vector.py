"""A vector environment on two workers over real SSH: it does what one in this process does, and outlives a worker."""

from __future__ import annotations

import io
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from process_watch import descendants_with, eventually

from digirl_dist.bridges import remote
from digirl_dist.bridges.fleet_vector import FleetVectorEnv, fleet_vector_env
from digirl_dist.errors import EmulatorError, SettingsError, WorkerError
from digirl_dist.settings import LimitSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.worker_program.environments import EnvHost, encode, from_array, write_frame

CARTPOLE = ["dry_run=true", "emulator=gymnasium", "emulator.id=CartPole-v1"]
PROGRAM = Path("digirl_dist.worker_program.environments")

NUMBERS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text()
ARRAYS = arrays.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?"]), arrays.array_shapes(min_dims=0, min_side=0))
KEYS = st.text() | st.integers(-(2**60), 2**60)
THINGS = st.recursive(NUMBERS | ARRAYS, lambda inner: st.tuples(inner, inner) | st.dictionaries(KEYS, inner))

GRAPH = spaces.Graph(spaces.Discrete(2), None)


def travelled(thing: Any) -> Any:
    return msgspec.msgpack.decode(encode(thing), ext_hook=from_array, strict=False)


@pytest.mark.component
@given(THINGS)
def test_what_travels_comes_as_it_was(thing: Any) -> None:
    np.testing.assert_equal(travelled(thing), thing)


def test_a_scalar_can_be_looked_up_as_in_gymnasiums_own_vector_environments() -> None:
    assert {2: "right"}[travelled(np.int64(2))] == "right"


def test_texts_travel_alone_and_in_arrays() -> None:
    assert travelled(np.str_("left")) == "left"
    np.testing.assert_array_equal(travelled(np.array([["a", "b"]])), np.array([["a", "b"]]))


def test_infos_that_cannot_travel_are_left_out() -> None:
    class Odd(gymnasium.Env[Any, Any]):
        def reset(self, **_: Any) -> Any:
            return 0, {"rng": 2**64, "object": object(), "steps": 3, 2: "two"}

        def step(self, action: Any) -> Any:
            raise NotImplementedError

    [[_, info, *_]] = msgspec.msgpack.decode(encode(EnvHost(Odd).answer("add", [(0, ())])))
    assert info == {"steps": 3, "2": "two"}


@pytest.mark.parametrize(
    ("seen", "acts", "told"),
    [
        (
            spaces.Dict({"net": spaces.Graph(spaces.Discrete(2), None)}),
            spaces.Discrete(2),
            r"observation space\['net'\]",
        ),
        (spaces.Discrete(2), spaces.Tuple([spaces.Graph(spaces.Discrete(2), None)]), r"action space\[0\] Graph"),
        (spaces.Discrete(2), spaces.Dict(), r"action space Dict\(\) is empty"),
    ],
)
def test_a_space_that_cannot_be_is_named_with_environment_and_key(seen: Any, acts: Any, told: str) -> None:
    class Odd(gymnasium.Env[Any, Any]):
        observation_space, action_space = seen, acts

    with pytest.raises(SettingsError, match=f"^Odd: its {told}"):
        FleetVectorEnv(Odd, 2, [], LimitSettings())


def an_array(*content: Any, kind: int = 1) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(kind, msgspec.msgpack.encode(content))


NO_ARRAYS = {
    "objects": an_array("O", [2], bytes(16)),
    "too short": an_array("<f4", [9], b"x"),
    "no type": an_array("<f4,", [2], bytes(8)),
    "a shape of texts": an_array("<f4", ["2"], bytes(8)),
    "no texts": an_array("<U1", [1], b"\xff\xff\xff\xff"),
    "another kind": an_array("<f4", [2], bytes(8), kind=2),
    "nothing": msgspec.msgpack.Ext(1, b""),
}


@pytest.mark.parametrize("wrong", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError, SyntaxError), match=r"."):
        travelled(wrong)


@pytest.mark.parametrize("odd", [object(), np.array([object()]), 2**64, "\ud800"])
def test_what_cannot_travel_is_named(odd: Any) -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        encode(odd)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_two_workers_do_what_one_process_does_and_one_of_them_may_die() -> None:
    local = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    rng = np.random.default_rng(0)
    with fleet_vector_env(8, CARTPOLE) as fleet:
        assert fleet.workers == {"localhost-0": [0, 2, 4, 6], "localhost-1": [1, 3, 5, 7]}
        np.testing.assert_array_equal(fleet.reset(seed=3)[0], local.reset(seed=3)[0])
        for _ in range(60):
            actions = rng.integers(2, size=8)
            (*ours, our_infos), (*theirs, their_infos) = fleet.step(actions), local.step(actions)
            for own, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(own, other)
            assert lists(our_infos) == lists(their_infos)
        before = fleet.step(rng.integers(2, size=8))[0]
        next(one for one in descendants_with(PROGRAM) if not one.children()).kill()  # others are the shells around it
        seen, rewards, terminated, truncated, infos = fleet.step(rng.integers(2, size=8))
        lost = np.flatnonzero(infos["_lost"])
        assert len(lost) == 4 and truncated[lost].all() and not terminated[lost].any() and not rewards[lost].any()
        for number in lost:
            np.testing.assert_array_equal(infos["final_obs"][number], before[number])
            assert (np.abs(seen[number]) <= 0.05).all(), "the next episode begins"
        assert [len(envs) for envs in fleet.workers.values()] == [8]
        assert fleet.step(rng.integers(2, size=8))[1].tolist() == [1.0] * 8
        left = descendants_with(PROGRAM)
    assert left
    eventually(lambda: not any(one.is_running() for one in left), 30, "the end of the programs")


def lists(told: Any) -> Any:
    """The same without arrays, which have no truth value."""
    match told:
        case dict():
            return {key: lists(value) for key, value in told.items()}
        case tuple() | list():
            return [lists(each) for each in told]
        case np.ndarray():
            return lists(list(told)) if told.dtype == object else told.tolist()
    return told


class Told(gymnasium.Env[Any, Any]):
    """Observes seed and options of its reset; a step ends every episode, and infos tell which it is."""

    observation_space, action_space = spaces.MultiDiscrete([100, 100]), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.array([seed or 0, (options or {}).get("level", 0)]), {"options": str(options)}

    def step(self, action: Any) -> Any:
        return np.array([9, 9]), 1.0, True, False, {"episode": {"r": 5.0}}


class Here:
    """A worker in this process, which may end; what it is told and answers goes through frames."""

    def __init__(self, name: str, make: Any = Told) -> None:
        self.name, self.is_lost = name, False
        self.envs: list[int] = []
        self._hosted = EnvHost(make)

    def send(self, request: str, asked: Any) -> None:
        if self.is_lost:
            raise WorkerError(self.name, "its link was lost")
        told = msgspec.msgpack.decode(write_frame({"do": request, "with": asked})[4:], ext_hook=from_array)
        self._answer = encode(self._hosted.answer(told["do"], told["with"]))

    def answer(self, limit_s: float) -> bytes:
        return self._answer

    def close(self) -> None:
        self._hosted.close()


def fleet_of(num_envs: int, *workers: Any) -> Any:
    return FleetVectorEnv(Told, num_envs, workers, LimitSettings())


def test_resets_and_infos_are_those_of_gymnasiums_own() -> None:
    fleet = fleet_of(3, Here("a"), Here("b"))
    local = SyncVectorEnv([Told] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    some = {"level": 5, "reset_mask": np.array([True, False, True])}
    resets: list[Any] = [(3, None), (None, {"level": 7}), ([4, None, 6], some), (8, {"level": np.int64(2)})]
    for seed, options in resets:
        own = None if options is None else dict(options)  # Gymnasium's takes the mask out of it
        assert lists(fleet.reset(seed=seed, options=options)) == lists(local.reset(seed=seed, options=own))
    assert lists(fleet.step(np.zeros(3, int))) == lists(local.step(np.zeros(3, int)))
    assert lists(fleet.reset(seed=np.int64(8))) == lists(local.reset(seed=8))


def test_a_worker_that_is_lost_in_a_reset_costs_neither_seed_nor_options() -> None:
    lost = Here("b")
    fleet = fleet_of(4, Here("a"), lost)
    fleet.reset(seed=1)
    lost.is_lost = True
    mask = np.array([True, True, True, False])
    seen, infos = fleet.reset(seed=20, options={"level": 3, "reset_mask": mask})
    assert seen[:3].tolist() == [[20, 3], [21, 3], [22, 3]]
    assert infos["_lost"].tolist() == [False, False, False, True], "it was to go on: why it begins anew is told"
    assert fleet.workers == {"a": [0, 2, 1, 3]}


SEEN = an_array("<f4", [2], bytes(8))
NO_ANSWERS: dict[str, Any] = {
    "nothing": None,
    "a number": 3,
    "a text for a reward": [SEEN, {}, "much", False, False, None, ""],
    "a number for an end": [SEEN, {}, 1.0, 7, False, None, ""],
    "half a last observation": [SEEN, {}, 1.0, True, False, [1], ""],
    "a number for a last observation": [SEEN, {}, 1.0, True, False, 1, ""],
    "a list for an info": [SEEN, [], 1.0, False, False, None, ""],
    "a text for a last info": [SEEN, {}, 1.0, True, False, [SEEN, "x"], ""],
    **{f"an array: {name}": [wrong, {}, 1.0, False, False, None, ""] for name, wrong in NO_ARRAYS.items()},
}


@pytest.mark.parametrize("told", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_an_answer_that_is_none_costs_its_worker_and_no_more(told: Any) -> None:
    class Lies(Here):
        def answer(self, limit_s: float) -> bytes:
            return encode([told]) if self.is_lying else super().answer(limit_s)

        is_lying = False

    liar = Lies("liar")
    fleet = fleet_of(2, Here("honest"), liar)
    fleet.reset(seed=3)
    liar.is_lying = True
    _, _, terminated, truncated, infos = fleet.step([0, 0])
    assert fleet.workers == {"honest": [0, 1]} and truncated[1] and not terminated[1]
    assert infos["lost"][1].startswith("worker liar: it sends no frames of ours")


def test_what_does_not_fit_the_environments_is_refused_before_any_is_asked() -> None:
    fleet = fleet_of(2, Here("a"))
    for wrong in ([0], [0, 1, 1]):
        with pytest.raises(ValueError, match=f"{len(wrong)} actions for 2 environments"):
            fleet.step(wrong)
        with pytest.raises(ValueError, match=f"{len(wrong)} seeds for 2 environments"):
            fleet.reset(seed=wrong)
    for mask in ([True], np.array([1, 0]), np.array([False, False]), "yes"):
        with pytest.raises(ValueError, match="reset_mask is no array of 2 bools"):
            fleet.reset(options={"reset_mask": mask})
    fleet.close()
    with pytest.raises(ClosedEnvironmentError):
        fleet.step([0, 1])
    with pytest.raises(SettingsError, match="num_envs=0 must be at least 1"):
        fleet_of(0)


def said(frame: bytes) -> remote.Remote:
    """A program on worker w1 that has said this."""
    source: Any = SimpleNamespace(read_exactly=lambda size, _: stream.read(size), write=lambda data: None)
    stream = io.BytesIO(frame)
    return remote.Remote("w1", source)


NO_FRAMES = {"deep": b"\x91" * 100_000 + b"\xc0", "no": b"\xc1", "text": b"\xa1x", "bare": b"\x07", "empty": b"\x80"}


@pytest.mark.unit
@pytest.mark.parametrize("content", NO_FRAMES.values(), ids=NO_FRAMES)
def test_a_frame_that_is_none_is_the_worker_s_fault(content: bytes) -> None:
    with pytest.raises(WorkerError, match="w1: it sends no frames of ours"):
        said(len(content).to_bytes(4, "big") + content).answer(1.0)


@pytest.mark.unit
def test_an_error_without_end_is_told_in_part() -> None:
    with pytest.raises(EmulatorError, match="an environment of worker w1 raised: …") as raised:
        said(write_frame({"error": "no " * 10_000_000})).answer(1.0)
    assert len(str(raised.value)) < 100_000


@pytest.mark.unit
def test_who_was_interrupted_is_not_told_afterwards_what_others_asked() -> None:
    stream = io.BytesIO(write_frame({"results": "before"}) + write_frame({"results": "now"}))
    interruptions = [KeyboardInterrupt]

    def read(size: int, _: float) -> bytes:
        if interruptions:
            raise interruptions.pop()
        return stream.read(size)

    source: Any = SimpleNamespace(read_exactly=read, write=lambda data: None)
    program = remote.Remote("w1", source)
    program.send("step", [])
    with pytest.raises(KeyboardInterrupt):
        program.answer(1.0)
    program.send("reset", [])
    assert msgspec.msgpack.decode(program.answer(1.0)) == "now"


def test_other_emulators_are_refused() -> None:
    with pytest.raises(SettingsError, match="has emulator=gymnasium, not phone"), fleet_vector_env(2, ["dry_run=true"]):
        pass


class Won(gymnasium.Env[Any, Any]):
    """Ends in success after two steps; infos tell how far it is."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return np.zeros(2, np.float32), {"level": (options or {}).get("level", 0)}

    def step(self, action: Any) -> Any:
        self._steps += 1
        won = self._steps == 2
        return np.ones(2, np.float32), 1.0, won, False, {"is_success": won, "deep": {"steps": self._steps}}


def test_sb3_gets_the_infos_and_options_that_it_gets_from_environments_in_its_own_process() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    from digirl_dist.bridges.sb3 import Sb3VecEnv

    lost = Here("b", Won)
    ours = Sb3VecEnv(FleetVectorEnv(Won, 2, [Here("a", Won), lost], LimitSettings()))  # type: ignore[list-item]
    told = []
    for envs in (ours, vec_env.DummyVecEnv([Won, Won])):
        envs.set_options({"level": 3})
        envs.reset()
        told.append([list(envs.reset_infos)])
        for _ in range(2):
            envs.step_async(np.zeros(2, int))
            told[-1].append(envs.step_wait()[3])
        told[-1].append(envs.reset_infos)
    assert lists(told[0]) == lists(told[1])
    assert lists(told[0][0]) == [{"level": 3}] * 2 and told[0][2][0]["is_success"]
    lost.is_lost = True
    ours.step_async(np.zeros(2, int))
    _, _, ended, infos = ours.step_wait()
    assert ended.tolist() == [False, True] and "its link was lost" in infos[1]["lost"]
    ours.set_options([{"level": 1}, {"level": 2}])
    with pytest.raises(ValueError, match="share one mapping"):
        ours.reset()


def test_sb3_reads_and_calls_single_environments_as_in_its_own_vector_environment() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from digirl_dist.bridges.sb3 import Sb3VecEnv

    makers = [partial(gymnasium.make, "CartPole-v1")] * 3
    ours = Sb3VecEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    theirs = DummyVecEnv(makers)
    for name in ("observation_space", "action_space", "gravity", "render_mode"):
        assert ours.get_attr(name) == theirs.get_attr(name) and ours.get_attr(name, [1]) == theirs.get_attr(name, [1])
    for envs in (ours, theirs):
        envs.set_attr("gravity", 3.0, indices=[1])
        assert envs.get_attr("gravity") == [9.8, 3.0, 9.8]
        assert [str(space) for space in envs.env_method("get_wrapper_attr", "action_space", indices=1)] == [
            "Discrete(2)"
        ]
        assert envs.env_is_wrapped(TimeLimit) == [True] * 3 and envs.env_is_wrapped(Autoreset, 0) == [False]
    far = Sb3VecEnv(FleetVectorEnv(Won, 2, [Here("a", Won)], LimitSettings()))  # type: ignore[list-item]
    assert far.get_attr("observation_space") == [Won.observation_space] * 2
    assert far.get_attr("action_space", 1) == [Won.action_space] and far.env_is_wrapped(TimeLimit) == [False] * 2
    for call in (lambda: far.get_attr("level"), lambda: far.set_attr("level", 1), lambda: far.env_method("render")):
        with pytest.raises(AttributeError, match="in environments of other processes and machines"):
            call()
    assert not far.has_attr("level")


def test_sb3_s_monitor_keeps_what_an_environment_tells_also_where_its_worker_is_lost(tmp_path: Path) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    from digirl_dist.bridges.sb3 import Sb3VecEnv

    lost = Here("b", Won)
    ours = Sb3VecEnv(FleetVectorEnv(Won, 2, [Here("a", Won), lost], LimitSettings()))  # type: ignore[list-item]
    watched = vec_env.VecMonitor(ours, str(tmp_path / "log"), info_keywords=("is_success", "level"))
    watched.reset()
    lost.is_lost = True
    infos = watched.step(np.zeros(2, int))[3]
    assert infos[1]["episode"]["is_success"] is None and "level" not in infos[1]
    with pytest.raises(KeyError):
        infos[0]["nobody tells this"]
    assert (tmp_path / "log.monitor.csv").read_text().splitlines()[-1].endswith(",,")


@pytest.mark.system
def test_workers_that_were_reached_are_left_where_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told, lock = [], threading.Lock()

    def first_alone(address: Any, ssh: Any) -> Any:
        with lock:
            if told:
                raise WorkerError("localhost-1", "it cannot be reached")
            told.append("reached")
            link = connect(address, ssh)
        close = link.close
        monkeypatch.setattr(link, "close", lambda: (told.append("left"), close()))
        return link

    monkeypatch.setattr(remote, "connect", first_alone)
    with pytest.raises(WorkerError, match="it cannot be reached"), fleet_vector_env(2, CARTPOLE):
        pass
    assert told == ["reached", "left"]


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.long
@pytest.mark.timeout(900)
def test_sb3_s_ppo_solves_cartpole_on_two_workers_of_which_one_dies() -> None:
    callbacks = pytest.importorskip("stable_baselines3.common.callbacks")
    from examples.sb3_ppo import train

    class Killer(callbacks.BaseCallback):  # type: ignore[misc,name-defined]
        killed_at = 0

        def _on_step(self) -> bool:
            if not self.killed_at and self.num_timesteps >= 12_000:
                Killer.killed_at = self.num_timesteps
                next(one for one in descendants_with(PROGRAM) if not one.children()).kill()
            return True

    assert train(40_000, ["dry_run=true"], Killer()) > 195, "CartPole counts as solved from there"
    assert Killer.killed_at
