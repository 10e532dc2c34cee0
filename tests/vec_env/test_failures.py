"""Environments that raise, hang and die: everything is named and counted, wherever the environments run."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray_test_cluster import shared_cluster

from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.vec_env import (
    EpisodeCfg,
    EpisodeFailedError,
    ProcessLostError,
    RayDistributionCfg,
    VecEnv,
    VecEnvConfig,
)
from digirl_dist.vec_env.pool import Pool, RayPool
from digirl_dist.worker_program.environments import EnvHost, encode, from_array


class Fragile(gymnasium.Env[np.ndarray, int]):
    """Ends after ``length`` steps, unless its ``fate`` (raise, exit, hang, die) comes at step ``at`` (0: reset)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._options, self._steps, self._seed = options or {"length": 10**6}, 0, seed or 0
        self._meet_fate()
        return self._seen(), {"pid": os.getpid()}

    def step(self, action: int) -> Any:
        self._steps += 1
        self._meet_fate()
        return self._seen(), 1.0, self._steps >= self._options["length"], False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._seed, self._steps], np.float64)

    def _meet_fate(self) -> None:
        if self._options.get("at") != self._steps:
            return
        match self._options["fate"]:
            case "raise":
                raise ValueError(f"fate of {self._seed}")
            case "exit":
                raise SystemExit(3)
            case "hang":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)


class ProcessHere:
    """A process of a distributed environment, but in this one: what it is asked and answers travels as bytes."""

    def __init__(self, config: VecEnvConfig, number: int) -> None:
        self.name = f"process {number}"
        self.envs = list(range(number * config.env_num, (number + 1) * config.env_num))
        self._host = EnvHost(config.env, config.env_num)

    def send(self, request: str, asked: Any) -> None:
        self._answer = encode(self._host.answer(request, msgspec.msgpack.decode(asked, ext_hook=from_array)))

    def answer(self, limit_s: float) -> bytes:
        self.limit_s = limit_s
        return self._answer

    def close(self) -> None:
        self._host.close()


def episodes(fates: list[tuple[int, str, int]]) -> list[EpisodeCfg]:
    return [
        EpisodeCfg(seed, {"length": length, "fate": fate, "at": at}) for seed, (length, fate, at) in enumerate(fates)
    ]


def driven(env: VecEnv, path: Path, limit: int = 300) -> tuple[list[Any], list[dict[str, Any]]]:
    """Runs all episodes as a patient user does; what was seen and told, and the metrics."""
    seen: list[Any] = []

    def noted(act: Any) -> None:
        try:
            act()
            seen.append([None if one is None else one.tolist() for one in env.get_observations()])
        except (EpisodeFailedError, ProcessLostError) as error:
            seen.append(re.sub(r"process \d+", "process", str(error)))

    noted(env.reset)
    while not env.all_done:
        assert len(seen) < limit
        noted(lambda: env.step([1] * len(env.get_observations())))
        free = [number for number in range(len(env.get_observations())) if number not in env.active_task_configs]
        if free and env.episodes_left:
            noted(lambda free=free: env.reset(np.array(free)))
    env.close()
    return seen, [json.loads(line) for line in path.read_text().splitlines()]


FATES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["raise", "exit"]), st.integers(-1, 3)), max_size=9)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fates=FATES, processes=st.integers(1, 3), each=st.integers(1, 2))
def test_environments_in_several_processes_do_what_they_do_in_one(
    fates: list[tuple[int, str, int]], processes: int, each: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = []
    for shape in ((1, processes * each), (processes, each)):
        path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
        path.touch()
        config = VecEnvConfig(Fragile, processes * each, episodes(fates), str(path))
        env = VecEnv(config)
        here = [ProcessHere(VecEnvConfig(Fragile, shape[1], []), number) for number in range(shape[0])]
        env._pool = Pool(here, 9.0)  # type: ignore[assignment]
        found.append(driven(env, path))
    assert found[0] == found[1]
    lines = found[0][1]
    assert sorted(line["episode"] for line in lines) == list(range(len(fates))), "every episode is counted once"
    for line in lines:
        length, _, at = fates[line["episode"]]
        failed = 0 <= at <= length
        assert line["steps"] == line["reward"] == (max(at - 1, 0) if failed else length)
        assert line["ended"] == ("raised" if failed else "terminated")


def test_what_raised_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    config = VecEnvConfig(Fragile, 3, episodes([(5, "raise", 1), (5, "", -1), (5, "raise", 0)]))
    with VecEnv(config) as env:
        told = r"environment 2 of process 0 raised in episode 2: ValueError: fate of 2 \(at .*test_failures.py:\d+ in"
        with pytest.raises(EpisodeFailedError, match=told):
            env.reset()
        assert [one is None for one in env.get_observations()] == [False, False, True]
        assert list(env.active_task_configs) == [0, 1]
        with pytest.raises(EmulatorError, match="environment 0 of process 0 raised in episode 0"):
            env.step([1, 1, 1])
        obs, *_ = env.step([1, 1, 1])
        assert obs[1][1] == 2, "it took both steps"


def test_a_reset_tells_which_episode_runs_where() -> None:
    tasks = episodes([(5, "", -1)] * 3)
    with VecEnv(VecEnvConfig(Fragile, 2, tasks)) as env:
        env.warm_up(3)
        _, infos = env.reset([np.int64(1), np.int64(0)])
        assert [(info["episode_index"], info["task_config"]) for info in infos] == [(0, tasks[0]), (1, tasks[1])]
        assert env.active_task_configs == {1: tasks[0], 0: tasks[1]} and env.episodes_left == 1


def test_what_cannot_be_counted_later_is_refused_before_any_environment_starts(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("an environment was made")

    with pytest.raises(TypeError, match=r"such as EpisodeCfg\(seed=0\), not 3"):
        VecEnv(VecEnvConfig(never, 1, [EpisodeCfg(0), 3]))  # type: ignore[list-item]
    with pytest.raises(TypeError):
        EpisodeCfg("a")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="metrics_path=.* is a folder"):
        VecEnv(VecEnvConfig(never, 1, [EpisodeCfg(0)], str(tmp_path)))


def test_seeds_of_numpy_and_a_folder_that_is_not_there_yet_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    tasks = [EpisodeCfg(seed, {"length": 1}) for seed in np.arange(2)]
    with VecEnv(VecEnvConfig(Fragile, 2, tasks, str(path))) as env:
        env.reset()
        env.step([0, 0])
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1]


class Reusing(Fragile):
    """Answers with one array that it changes, and takes its actions and options to pieces."""

    def __init__(self) -> None:
        self._array = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._array[:] = (options or {}).pop("length"), 0
        return self._array, {}

    def step(self, action: Any) -> Any:
        self._array[1] += action.pop("by")
        return self._array, 1.0, False, False, {}


def test_what_was_seen_stays_as_it_was_and_environments_share_no_action() -> None:
    tasks = episodes([(5, "", -1), (6, "", -1)])
    with VecEnv(VecEnvConfig(Reusing, 2, tasks)) as env:
        first, infos = env.reset()
        second, *_ = env.step([{"by": 1}] * 2)
        third, *_ = env.step([{"by": 2}] * 2)
        third[0] -= 1
    seen = [[one.tolist() for one in each] for each in (first, second, third)]
    assert seen == [[[5, 0], [6, 0]], [[5, 1], [6, 1]], [[4, 2], [6, 3]]]
    assert [info["task_config"].options["length"] for info in infos] == [5, 6]


class Licensed(Fragile):
    """There are two licences."""

    taken: ClassVar[list[int]] = []

    def __init__(self) -> None:
        if len(self.taken) == 2:
            raise SystemExit("no licence is left")
        self.taken.append(1)

    def close(self) -> None:
        self.taken.pop()
        if len(self.taken) == 1:
            raise ValueError("the licence cannot be given back")


def test_environments_that_were_made_before_another_could_not_be_are_closed() -> None:
    with pytest.raises(ValueError, match="given back"):
        VecEnv(VecEnvConfig(Licensed, 3, []))
    assert not Licensed.taken, "the one after that which could not be closed is closed, too"
    with pytest.raises(EmulatorError, match=r"cannot be made: SystemExit: no licence is left \(at .*test_failures.py"):
        Licensed.taken.extend([1, 1])
        VecEnv(VecEnvConfig(Licensed, 1, []))
    Licensed.taken.clear()
    with pytest.raises(TypeError, match="made 5, which is no Gymnasium environment"):
        VecEnv(VecEnvConfig(lambda: 5, 1, []))  # type: ignore[arg-type,return-value]


def test_environments_are_closed_whose_metrics_cannot_be_written_or_that_joined_later(tmp_path: Path) -> None:
    closed: list[int] = []

    class Counted(Fragile):
        def close(self) -> None:
            closed.append(1)

    env = VecEnv(VecEnvConfig(Counted, 2, episodes([(5, "", -1)] * 2), str(tmp_path / "metrics" / "lines")))
    env.reset()
    (tmp_path / "metrics").rmdir()
    with pytest.raises(FileNotFoundError):
        env.close()
    assert len(closed) == 2
    host = EnvHost(iter([Counted(), Counted(), Counted(), 5]).__next__)
    with pytest.raises(TypeError, match="made 5"):
        host.add([(number, (0, {})) for number in range(4)])
    assert len(closed) == 5


def test_a_cluster_is_left_also_where_ctrl_c_ends_the_wait_for_its_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    left: list[str] = []
    actor = SimpleNamespace(close=SimpleNamespace(remote=lambda: None))
    member: Any = SimpleNamespace(actor=actor, close=lambda: left.append("process"))
    pool: Any = RayPool.__new__(RayPool)
    Pool.__init__(pool, [member], 1.0)
    pool._cluster = SimpleNamespace(close=lambda: left.append("cluster"))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert left == ["process", "cluster"]


def test_closed_environments_say_so(tmp_path: Path) -> None:
    env = VecEnv(VecEnvConfig(Fragile, 2, episodes([(5, "", -1)] * 2)))
    env.close()
    for act in (env.reset, env.warm_up, lambda: env.step([0, 0])):
        with pytest.raises(SettingsError, match="these environments are closed"):
            act()


def test_metrics_stay_in_their_file_when_the_program_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with VecEnv(VecEnvConfig(Fragile, 1, episodes([(5, "", -1)]), "new/metrics.jsonl")) as env:
        env.reset()
        monkeypatch.chdir("/")
    assert json.loads((tmp_path / "new" / "metrics.jsonl").read_text())["ended"] == "closed"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: VecEnvConfig("CartPole-v1", 1, []), "such as gymnasium_env.*, not 'CartPole-v1'"),  # type: ignore[arg-type]
        (lambda: VecEnvConfig(Fragile, 2.5, []), "env_num=2.5 is no whole number"),  # type: ignore[arg-type]
        (lambda: RayDistributionCfg("2"), "proc_num='2' is no whole number"),  # type: ignore[arg-type]
        (lambda: RayDistributionCfg(2, gpu_num_per_proc=1.5), "gpu_num_per_proc=1.5: .* whole number beyond 1"),
        (lambda: RayDistributionCfg(2, cpu_num_per_proc=float("nan")), "cpu_num_per_proc=nan: 0 or more"),
        (lambda: RayDistributionCfg(2, step_limit_s=0), "step_limit_s=0: more than 0 seconds"),
        (lambda: RayDistributionCfg(2, step_limit_s=float("inf")), "step_limit_s=inf: .* at most 100,000,000"),
        (lambda: RayDistributionCfg(2, start_limit_s="9"), "start_limit_s='9' is no number"),  # type: ignore[arg-type]
    ],
)
def test_numbers_that_are_none_are_named(make: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        make()


def test_an_observation_that_cannot_travel_is_told_of_its_environment_alone() -> None:
    class Odd(Fragile):
        def _seen(self) -> Any:
            return object() if self._seed else np.zeros(2)

    with VecEnv(VecEnvConfig(Odd, 2, episodes([(5, "", -1)] * 2))) as env:
        env._pool = Pool([process := ProcessHere(VecEnvConfig(Odd, 2, []), 0)], 9.0)  # type: ignore[assignment]
        with pytest.raises(EpisodeFailedError, match="environment 1 .* its observation: object cannot travel"):
            env.reset()
        assert ([one is None for one in env.get_observations()], process.limit_s > 9.0) == ([False, True], True)


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_raises_hangs_and_kills_on_a_cluster_are_named_and_counted(tmp_path: Path) -> None:
    shared_cluster()
    path = tmp_path / "metrics.jsonl"
    fates = [(2, "raise", 1), (4, "", -1), (9, "die", 2), (3, "", -1), (2, "", -1), (9, "hang", 0), (1, "", -1)]
    config = VecEnvConfig(partial(Fragile), 1, episodes(fates), str(path))
    where = RayDistributionCfg(4, gpu_num_per_proc=0, cpu_num_per_proc=0.5, step_limit_s=20)
    seen, lines = driven(VecEnv(config.distribute(where)), path)
    ended = {line["episode"]: (line["ended"], line["steps"]) for line in lines}
    assert len(lines) == 7 and ended == {
        0: ("raised", 0),
        1: ("terminated", 4),
        2: ("lost", 1),
        3: ("terminated", 3),
        4: ("terminated", 2),
        5: ("lost", 0),
        6: ("terminated", 1),
    }
    told = [each for each in seen if isinstance(each, str)]
    assert any("environment 0 of process raised in episode 0: ValueError" in each for each in told)
    assert any("with environments 2 was lost: it is gone" in each for each in told)
    assert any("was lost: it did not answer within 20 s" in each for each in told)
