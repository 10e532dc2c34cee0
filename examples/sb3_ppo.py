"""Stable-Baselines3's PPO, as it is, with environments on two SSH workers: python examples/sb3_ppo.py [steps] [words]

Without overrides, the workers are localhost ones behind real SSH servers (dry_run=true); with worker_ips=[…], yours.
"""

from __future__ import annotations

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from digirl_dist.bridges.fleet_vector import fleet_vector_env
from digirl_dist.bridges.sb3 import Sb3VecEnv

EMULATOR = ["emulator=gymnasium", "emulator.id=CartPole-v1"]


def train(steps: int, overrides: list[str], callback: BaseCallback | None = None) -> float:
    """Returns the mean return of the newest 100 episodes."""
    with fleet_vector_env(8, [*EMULATOR, *overrides]) as envs:
        sizes = {"n_steps": 32, "batch_size": 256, "n_epochs": 20}
        rates = {"gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
        ppo = PPO("MlpPolicy", VecMonitor(Sb3VecEnv(envs)), **sizes, **rates, seed=0, device="cpu")
        ppo.learn(steps, callback=callback)
        returns = [episode["r"] for episode in ppo.ep_info_buffer or ()]
        return sum(returns) / len(returns)


if __name__ == "__main__":
    has_steps = sys.argv[1:] and sys.argv[1].isdecimal()
    steps, words = (int(sys.argv[1]), sys.argv[2:]) if has_steps else (50_000, sys.argv[1:])
    print(train(steps, words or ["dry_run=true"]))
