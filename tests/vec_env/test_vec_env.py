"""Vectorised environments on a real Ray cluster of two nodes: the rows of section A of the acceptance list."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from process_watch import eventually
from ray_test_cluster import NODE_CPUS, NODE_GPUS, shared_cluster

from digirl_dist.child_process import environment
from digirl_dist.errors import ClusterError
from digirl_dist.vec_env import EpisodeCfg, ProcessLostError, RayDistributionCfg, VecEnv, VecEnvConfig

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.system, pytest.mark.ray]


class Walk(gymnasium.Env[np.ndarray, int]):
    """Adds actions up; the episode is over at its length, which is in the options. Tells where it runs."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - as Gymnasium has it
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(10)

    def __init__(self, log: str | None = None) -> None:
        self._log = log
        self._sum = self._seed = self._steps = 0
        self._length = 3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._seed, self._sum, self._steps = int(seed or 0), 0, 0
        self._length = (options or {}).get("length", 3)
        self._write(f"reset {seed}")
        return self._see(), self._where()

    def step(self, action: int) -> Any:
        self._sum += int(action)
        self._steps += 1
        return self._see(), float(action), self._steps >= self._length, False, self._where()

    def close(self) -> None:
        self._write("close")

    def _see(self) -> np.ndarray:
        return np.array([self._seed, self._sum, self.np_random.random()])

    def _where(self) -> dict[str, Any]:
        node = "here"
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            node = sys.modules["ray"].get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "node": node}

    def _write(self, line: str) -> None:
        if self._log is not None:
            with open(self._log, "a") as file:
                file.write(line + "\n")


@pytest.fixture
def cluster() -> Any:
    return shared_cluster()


@pytest.fixture
def opened() -> Iterator[Callable[..., VecEnv]]:
    """Makes environments that the test need not close."""
    made: list[VecEnv] = []

    def make(*arguments: Any, **options: Any) -> VecEnv:
        made.append(VecEnv(configured(*arguments, **options)))
        return made[-1]

    yield make
    for env in made:
        env.close()


def configured(
    processes: int, each: int, episodes: int, log: Path | None = None, gpus: float = 0, **options: Any
) -> VecEnvConfig:
    """``processes`` = 0: not distributed."""
    maker = partial(Walk, None if log is None else str(log))
    lengths = [2 + number % 3 for number in range(episodes)]
    tasks = [EpisodeCfg(seed, {"length": length}) for seed, length in enumerate(lengths)]
    config = VecEnvConfig(maker, each, tasks, **options)
    return config.distribute(RayDistributionCfg(processes, gpu_num_per_proc=gpus)) if processes else config


def loop(env: VecEnv, is_over: Callable[[Any], bool], limit: int = 200) -> list[tuple[int, int]]:
    """The document's loop; which environment ran which seed, in order."""
    obs, _ = env.reset()
    count = len(obs)
    seen = [(number, int(one[0])) for number, one in enumerate(obs) if one is not None]
    no_more_episode = False
    for _ in range(limit):
        obs_list, _, _, _, _ = env.step(action=[1 for _ in range(count)])
        finished = [is_over(one) for one in obs_list]
        if no_more_episode and all(finished):
            return seen
        if not no_more_episode and True in finished:
            env_ids = [number for number, is_finished in enumerate(finished) if is_finished]
            obs, _ = env.reset(env_ids)
            seen += [(number, int(one[0])) for number, one in zip(env_ids, obs, strict=True) if one is not None]
            if None in obs:
                no_more_episode = True
    raise AssertionError("the loop did not end")


def has_walked(obs: Any) -> bool:
    """As long as this test's episodes are: what the document decides by the observation."""
    return obs is None or obs[1] >= 2 + obs[0] % 3


def test_a1_actions_reach_their_environments_in_two_processes(cluster: Any, opened: Any) -> None:
    env = opened(2, 2, 9)
    obs, infos = env.reset()
    assert len(obs) == 4 and len({info["pid"] for info in infos}) == 2
    assert os.getpid() not in {info["pid"] for info in infos}
    obs, rewards, *_ = env.step([5, 6, 7, 8])
    assert [one[1] for one in obs] == [5, 6, 7, 8] == rewards


def test_a2_every_episode_starts_once_and_the_loop_ends(cluster: Any, opened: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = opened(2, 2, 9, log)
    assert sorted(seed for _, seed in loop(env, has_walked)) == list(range(9))
    resets = Counter(line for line in log.read_text().splitlines() if line.startswith("reset"))
    assert resets == {f"reset {seed}": 1 for seed in range(9)}


def test_a3_a_slot_without_an_episode_sees_none(opened: Any) -> None:
    env = opened(0, 3, 2)
    obs, _ = env.reset()
    assert [one is None for one in obs] == [False, False, True]
    obs, rewards, *_ = env.step([1, 1, 1])
    assert obs[2] is None and rewards == [1, 1, 0]


def test_a4_reset_answers_in_the_order_asked(cluster: Any, opened: Any) -> None:
    env = opened(2, 2, 9)
    obs, infos = env.reset([3, 0])
    assert [one[0] for one in obs] == [0, 1]
    again, others = env.reset([0, 3])
    assert [one[0] for one in again] == [2, 3]
    assert [info["pid"] for info in infos] == [info["pid"] for info in reversed(others)]


@pytest.mark.nightly
def test_a5_same_episodes_in_the_same_slots(cluster: Any, opened: Any) -> None:
    def run(env: VecEnv) -> tuple[Any, Any]:
        seen = loop(env, has_walked)
        return seen, [None if one is None else one.tolist() for one in env.step([0] * 4)[0]]

    first, second, local = (run(opened(*shape, 9)) for shape in ((2, 2), (2, 2), (0, 4)))
    assert first == second == local


def test_a6_what_is_wrong_is_refused_and_nothing_reset(opened: Any) -> None:
    env = opened(0, 4, 9)
    for wrong, message in (([4], "0 to 3"), ([-1], "0 to 3"), ([0, 0], "twice")):
        with pytest.raises(ValueError, match=message):
            env.reset(wrong)
    for wrong in (3, "0", ["0"], [True], {0}):
        with pytest.raises(TypeError):
            env.reset(wrong)
    assert env.episodes_left == 9
    env.reset()
    with pytest.raises(ValueError, match="3 actions for 4 environments"):
        env.step([1, 1, 1])
    with pytest.raises(TypeError):
        env.step(1)
    assert [one[1] for one in env.step([1] * 4)[0]] == [1] * 4 and env.episodes_left == 5


def test_a7_what_is_there_when_distributed_and_what_is_not(cluster: Any, opened: Any) -> None:
    for processes in (2, 0):
        env = opened(processes, 1 if processes else 2, 2)
        assert env.episodes_left == 2 and not env.all_done
        env.reset()
        assert env.episodes_left == 0 and not env.all_done
        for _ in range(3):
            env.step([1, 1])
        assert env.all_done
        members = [lambda e: e.runner, lambda e: e.simulation_app, lambda e: e.get_dt(), lambda e: e.finished()]
        for member in members:
            if processes:
                with pytest.raises(NotImplementedError):
                    member(env)
        if not processes:
            assert env.finished() and env.get_dt() == 0.05 and len(env.simulation_app) == 2


@pytest.mark.parametrize(("gpus", "processes", "numbers"), [(1, 5, ("5 GPUs", str(2 * NODE_GPUS)))])
def test_a8_more_gpus_than_there_are(cluster: Any, gpus: float, processes: int, numbers: Sequence[str]) -> None:
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        VecEnv(configured(processes, 1, 5, gpus=gpus))
    assert all(number in str(caught.value) for number in numbers) and time.monotonic() - started < 60


def test_a9_more_cpus_than_there_are(cluster: Any) -> None:
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"100 CPUs.* {2 * NODE_CPUS}\b"):
        VecEnv(configured(100, 1, 5))
    assert time.monotonic() - started < 60


def test_a10_a_killed_process_is_named_and_the_others_work(cluster: Any, opened: Any) -> None:
    env = opened(2, 2, 9)
    _, infos = env.reset()
    os.kill(infos[2]["pid"], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(ProcessLostError, match="process 1 with environments 2, 3"):
        env.step([1] * 4)
    assert time.monotonic() - started < 60
    obs, *_ = env.step([1] * 4)
    assert [one is None for one in obs] == [False, False, True, True]
    assert [one[1] for one in obs[:2]] == [2, 2]
    with pytest.raises(ProcessLostError, match="process 1"):
        env.reset([3, 1])
    assert env.episodes_left == 4 and env.step([1] * 4)[0][1][0] == 4, "it was given no episode, and the other began"


def test_a11_none_is_found_among_arrays(opened: Any) -> None:
    env = opened(0, 2, 3)
    obs, _ = env.reset()
    assert isinstance(obs[0], np.ndarray) and None not in obs
    obs, _ = env.reset()
    assert isinstance(obs[0], np.ndarray) and None in obs and None in env.step([1, 1])[0]


def test_a12_one_line_of_metrics_an_episode(opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    env = opened(0, 4, 9, metrics_path=str(path))
    loop(env, has_walked)
    env.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["episode"] for line in lines) == list(range(9))
    assert all(line["steps"] == line["reward"] == 2 + line["episode"] % 3 for line in lines)


def test_a13_closing_closes_everything(cluster: Any, opened: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ZeroDivisionError), VecEnv(configured(2, 2, 9, log)) as env:
        _, infos = env.reset()
        raise ZeroDivisionError
    env.close()
    assert log.read_text().count("close") == 4
    eventually(lambda: not any(psutil.pid_exists(info["pid"]) for info in infos), 10, "the end of the processes")


def test_environments_that_cannot_be_made_name_their_process(cluster: Any) -> None:
    with pytest.raises(
        ClusterError, match=r"process \d did not start: .* SystemExit: no licence \(at .*test_vec_env.py"
    ):
        VecEnv(VecEnvConfig(no_licence, 1, []).distribute(RayDistributionCfg(2, 0, cpu_num_per_proc=0.5)))


def no_licence() -> Any:
    sys.exit("no licence")


def test_what_ray_carries_is_as_from_one_process_and_what_cannot_travel_is_refused_before_any_step(
    cluster: Any, opened: Any
) -> None:
    env = opened(2, 1, 4)
    obs, _ = env.reset()
    obs[0] -= 1
    with pytest.raises(TypeError, match="lock cannot travel"):
        env.step([1, threading.Lock()])
    assert [one[1] for one in env.step([1, 1])[0]] == [1, 1]


@pytest.mark.nightly
def test_environments_of_one_program_share_its_cluster_until_the_last_of_them_is_closed(tmp_path: Path) -> None:
    program = """
import gc, os, sys, time
from digirl_dist.errors import ClusterError
from digirl_dist.vec_env import *
def opened(**where):
    config = VecEnvConfig(gymnasium_env("CartPole-v1"), 1, [EpisodeCfg(0)] * 2)
    return VecEnv(config.distribute(RayDistributionCfg(1, 0, head_address="local", cpu_num_per_proc=0.1, **where)))
train, measure = opened(working_dir="."), opened()
train.reset(), measure.reset()
try: opened(working_dir="/")
except ClusterError as error: print(error)
train.close()
print("alive", measure.step([0])[1], flush=True)
measure.close()
import ray
print(ray.is_initialized(), [name for name in os.environ if name.startswith("RAY_AUTH")])
forgotten = opened()
forgotten.me = forgotten
del forgotten
from threading import enumerate
from ray._private.gc_collect_manager import PythonGCThread
[collector] = [each for each in enumerate() if isinstance(each, PythonGCThread)]
gc.disable()
collector._gc_collect_func, collector._min_gc_interval = gc.collect, 0
collector.trigger_gc()
deadline = time.monotonic() + 60
while ray.is_initialized() and time.monotonic() < deadline: time.sleep(0.1)
print(ray.is_initialized(), flush=True)
lost = opened()
lost.reset()
ray.shutdown()
try: lost.step([0])
except ProcessLostError as error: print(error)
print(ray.is_initialized())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200
    )
    told = [
        "working_dir=/ cannot be copied to the nodes, because this program is in the Ray cluster already, without it",
        "alive [1.0]",
        "False []",
        "False",
        "process 0 with environments 0 was lost: this program has left the Ray cluster",
        "False",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(told) and all(map(str.startswith, lines, told)), done.stdout + done.stderr


@pytest.mark.nightly
def test_a14_a15_four_processes_on_two_nodes_with_half_a_gpu_each(cluster: Any, opened: Any) -> None:
    _, infos = opened(4, 1, 4, gpus=0.5).reset()
    assert len({info["pid"] for info in infos}) == 4 and len({info["node"] for info in infos}) == 2


def test_a15_a_distribution_is_one_of_ray() -> None:
    config = configured(0, 1, 4)
    with pytest.raises(TypeError, match="dict"):
        config.distribute({"proc_num": 2})  # type: ignore[arg-type]
    assert config.distribute(RayDistributionCfg(2)).distribution is not None and config.distribution is None


@pytest.mark.nightly
def test_a16_a_wrong_address_is_named() -> None:
    """At the limits as they are; more in tests/ray_cluster/test_connect.py."""
    program = (
        "import sys\nfrom digirl_dist.vec_env import *\n"
        "config = VecEnvConfig(gymnasium_env('CartPole-v1'), 1, [EpisodeCfg(0)])\n"
        "try: VecEnv(config.distribute(RayDistributionCfg(1, 0, head_address=sys.argv[1], start_limit_s=5)))\n"
        "except RuntimeError as error: print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        silent = f"127.0.0.1:{other.getsockname()[1]}"
        for address, reason in (("127.0.0.1:1", "cannot be used"), (silent, "did not let us in within 5 s")):
            done = subprocess.run(
                [sys.executable, "-c", program, address],
                env=environment(), capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert f"the Ray cluster at {address} {reason}" in done.stdout, done.stderr


@pytest.mark.nightly
def test_the_document_s_loop_runs_as_written(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, "examples/vec_env.py"],
        cwd=ROOT, env={**environment(), "RAY_ADDRESS": cluster.address}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Total time:" in done.stdout, done.stderr
