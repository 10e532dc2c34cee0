"""Steps per second over Ray beside SSH, RLlib's env runners and TorchRL's collector: one device, policy, two processes.

The device takes its time as devices do (20 ms a step); with environments of microseconds the peers, which write nothing
down, are faster. RLlib and TorchRL come with the extra ``peers``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from benchmarks.measure import MINIATURE, measure, sized, waiting_for
from benchmarks.stage import Machine, Ours, Stage, WatchedFleet, median, rounded, show, stage
from digirl_dist.emulator.rehearsal import RehearsalEmulator, rehearsal_spec, rehearsal_tasks
from digirl_dist.ray_cluster.connect import LOCAL, connect
from digirl_dist.ray_cluster.connection import RayConnector, RayWorkerSpec
from digirl_dist.settings import LimitSettings, PushDtype, RayCollectorSettings, RehearsalSettings
from digirl_dist.settings.plugins import values

STEPS, EPISODES, ROUNDS, PROCESSES = sized((20, 16, 5, 2), (3, 2, 1, 1))
DEVICE = RehearsalSettings(
    reset_s=0.1, reset_sigma=0, step_s=0.02, step_sigma=0, steps=STEPS, steps_sigma=0, image_size=[]
)
PEERS = {"rllib": "tree", "torchrl": "torchrl"}
"""Name -> a module without which it cannot be measured; in miniature a peer that is not installed is left out."""
Round = Callable[[int], float]
"""Collects the round of that number under new weights; steps per second."""


class Device(gymnasium.Env[np.ndarray, int]):
    """The rehearsal emulator as a Gymnasium environment, for the peers."""

    def __init__(self, config: Any = None) -> None:
        self._emulator = RehearsalEmulator(**values(DEVICE))
        self._resets = 0
        actions: Any = rehearsal_spec(DEVICE.image_size).actions
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions.n)  # type: ignore[assignment] # its integers are NumPy's

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._resets += 1
        return self._emulator.reset(rehearsal_tasks()[0], self._resets).vector, {}

    def step(self, action: int) -> Any:
        done = self._emulator.step(int(action))
        return done.observation.vector, done.reward, done.terminated, done.truncated, {}


class OursOnRay(Ours):
    """The same collector with its workers on Ray."""

    def _fleet(
        self, folder: Path, machines: Sequence[Machine], weight: tuple[int, int], dtype: PushDtype
    ) -> WatchedFleet:
        job = self._job(DEVICE, folder)
        workers = [(RayWorkerSpec(f"ray-{n}", 1, str(folder / f"jobs-{n}")), job) for n in range(PROCESSES)]
        self.slots = PROCESSES
        connector = RayConnector(connect(LOCAL, 60.0), RayCollectorSettings(num_cpus=0.1), self._limits)
        return WatchedFleet(workers, connector, self._limits, dtype)


def main() -> None:
    with stage() as here:
        with waiting_for("Ray"):
            cluster = connect(LOCAL, 60.0)
        here.stack.callback(cluster.close)
        systems: dict[str, Round] = {"ray": _ours_on_ray(here), "ssh": _ours_over_ssh(here)}
        peers = [name for name in PEERS if not MINIATURE or find_spec(PEERS[name])]
        for name in peers:
            with waiting_for(name):
                systems[name] = here.stack.enter_context({"rllib": _rllib, "torchrl": _torchrl}[name]())
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for number in range(1, ROUNDS + 1):
            for name, collect in systems.items():
                with waiting_for(f"round {number} of {name}"):
                    rates[name].append(collect(number))
    ratios = {name: [ours / other for ours, other in zip(rates["ray"], rates[name], strict=True)] for name in rates}
    compared = {name: ratios[name] for name in peers}
    compared["best"] = [min((ratios[name][k] for name in peers), default=1.0) for k in range(ROUNDS)]
    show(
        "ray",
        {f"vs_{name}": (median(each), ">=1.0") for name, each in compared.items()},
        {
            "vs_ssh": round(median(ratios["ssh"]), 4),
            "steps_per_second": {name: rounded(each) for name, each in rates.items()},
            "ideal": round(PROCESSES * STEPS / (DEVICE.reset_s + STEPS * DEVICE.step_s), 2),
            "steps_of_an_episode": STEPS,
            "episodes_of_a_round": EPISODES,
            "rllib_policy": "one hidden layer of 4, the smallest it builds",
            "includes": "new weights for every round; of ours also the files on disk",
        },
    )


def _ours_on_ray(here: Stage) -> Round:
    return _round_of(here, OursOnRay(here.folder / "ray", [], LimitSettings()))


def _ours_over_ssh(here: Stage) -> Round:
    machines = [Machine(address, 1, DEVICE) for address in here.serve(PROCESSES)]
    return _round_of(here, Ours(here.folder / "ssh", machines, LimitSettings()))


def _round_of(here: Stage, ours: Ours) -> Round:
    here.stack.callback(ours.close)
    ours.warm_up()
    return lambda number: STEPS * EPISODES / ours.iteration(number, EPISODES)[1]


@contextmanager
def _rllib() -> Iterator[Round]:
    """Each runner samples its share of whole episodes, as PPO does with ``batch_mode="complete_episodes"``."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config: Any = PPOConfig().environment(Device)  # type: ignore[no-untyped-call]
    config = config.env_runners(
        num_env_runners=PROCESSES, num_cpus_per_env_runner=0.1, batch_mode="complete_episodes"
    ).rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[4]))
    runners: Any = config.build_algo().env_runner_group

    def collect(number: int) -> float:
        started = time.monotonic()
        runners.sync_weights()
        found = runners.foreach_env_runner(
            lambda runner: runner.sample(num_episodes=EPISODES // PROCESSES), local_env_runner=False
        )
        steps = sum(len(episode) for episodes in found for episode in episodes)
        return float(steps / (time.monotonic() - started))

    collect(0)
    try:
        yield collect
    finally:
        runners.stop()


@contextmanager
def _torchrl() -> Iterator[Round]:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import GymWrapper

    policy = TensorDictModule(_Sampler(), in_keys=["observation"], out_keys=["action"])
    frames = STEPS * EPISODES
    collector = MultiSyncCollector(
        [lambda: GymWrapper(Device())] * PROCESSES, policy, frames_per_batch=frames, total_frames=-1
    )
    batches = iter(collector)

    def collect(number: int) -> float:
        started = time.monotonic()
        collector.update_policy_weights_()
        return float(next(batches).numel() / (time.monotonic() - started))

    collect(0)
    try:
        yield collect
    finally:
        collector.shutdown()


class _Sampler(nn.Module):
    """A linear policy that draws, in one-hot form, as TorchRL has discrete actions."""

    def __init__(self) -> None:
        super().__init__()
        actions: Any = rehearsal_spec(DEVICE.image_size).actions
        self.logits = nn.Linear(4, actions.n)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = torch.distributions.OneHotCategorical(logits=self.logits(observation)).sample()  # type: ignore[no-untyped-call]
        return drawn.long()


if __name__ == "__main__":
    measure(main, minutes=30)
