"""Steps of CartPole as ``digirl_dist.train`` makes them, beside the vector environments of others.

The worth of a step is told in processor time of all processes, so that it does not matter how many cores are free, and
the steps per second beside it. Random actions, episodes begin anew by themselves. EnvPool steps in C++ what the others
step in Python; EnvPool and TorchRL are measured where they are installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import psutil

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import median, show, stage
from digirl_dist.bridges.vector import ranked_vector

ENVS, STEPS, ROUNDS = sized((8, 500, 5), (2, 5, 1))
NAME = "CartPole-v1"
Step = Callable[[np.ndarray], Any]


@contextmanager
def _ours() -> Iterator[Step]:
    with ranked_vector([f"emulator.id={NAME}", f"bsize={ENVS}"]) as here:
        here.envs.reset(seed=0)
        yield here.envs.step


@contextmanager
def _gymnasium(mode: str) -> Iterator[Step]:
    with closing(gymnasium.make_vec(NAME, ENVS, vectorization_mode=mode)) as envs:
        envs.reset(seed=0)
        yield envs.step


@contextmanager
def _envpool() -> Iterator[Step]:
    import envpool  # type: ignore[import-not-found]

    with closing(envpool.make_gymnasium(NAME, num_envs=ENVS)) as envs:
        envs.reset()
        yield envs.step


@contextmanager
def _torchrl() -> Iterator[Step]:
    import torch
    from torchrl.envs import GymEnv, ParallelEnv  # type: ignore[import-not-found]

    with closing(ParallelEnv(ENVS, partial(GymEnv, NAME, categorical_action_encoding=True))) as envs:
        state = [envs.reset()]

        def step(actions: np.ndarray) -> None:
            _, state[0] = envs.step_and_maybe_reset(state[0].set("action", torch.from_numpy(actions)))

        yield step


PEERS: dict[str, Callable[[], Any]] = {
    "ours": _ours,
    "sync": partial(_gymnasium, "sync"),
    "async": partial(_gymnasium, "async"),
    **({"envpool": _envpool} if find_spec("envpool") else {}),
    **({"torchrl": _torchrl} if find_spec("torchrl") else {}),
}


def main() -> None:
    with stage():
        found = {peer: _measured(peer) for peer in PEERS}
    told = {peer: {"cpu_us_per_step": round(cpu, 1), "steps_per_s": round(rate)} for peer, (cpu, rate) in found.items()}
    show("vector", {"vs_async": (found["async"][0] / found["ours"][0], ">=1")}, {**told, "environments": ENVS})


def _measured(peer: str) -> tuple[float, float]:
    """Returns microseconds of processor time for a step of one environment, and such steps per second: medians."""
    rng, costs, rates = np.random.default_rng(0), [], []
    with waiting_for(f"{STEPS} steps of {NAME} by {peer}"), PEERS[peer]() as step:
        step(np.zeros(ENVS, np.int64))
        for _ in range(ROUNDS):
            spent, started = _spent(), time.monotonic()
            for _ in range(STEPS):
                step(rng.integers(0, 2, ENVS))
            rates.append(STEPS * ENVS / (time.monotonic() - started))
            costs.append((_spent() - spent) / (STEPS * ENVS) * 1e6)
    return median(costs), median(rates)


def _spent() -> float:
    """Returns the processor seconds so far of this process and those below it."""
    below = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in below)


if __name__ == "__main__":
    measure(main, minutes=15)
