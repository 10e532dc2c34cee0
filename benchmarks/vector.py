"""Steps of CartPole and Pong as ``digirl_dist.train`` makes them, beside the vector environments of others.

The worth of a step is told in processor time of all processes, so that it does not matter how many cores are free, and
the steps per second beside it. Random actions, episodes begin anew by themselves. EnvPool steps in C++ what the others
step in Python; EnvPool and TorchRL are measured where they are installed. Each has the environment's own frames and
rules: four frames a step, and 210 x 160 pixels in color, which ours encodes as they are stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import psutil

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import Values, median, show, stage
from digirl_dist.assembly.parts import build_device
from digirl_dist.emulator import DiscreteActions
from digirl_dist.parallel.rank import Rank
from digirl_dist.settings import configuration
from digirl_dist.train.launch import RankContext, stream_of
from digirl_dist.train.watched_emulator import Watch
from digirl_dist.trajectory import Decision

ENVS, ROUNDS = sized((8, 5), (2, 1))
Step = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Game:
    """An environment, how many actions it has, and its options in EnvPool, whose own are others."""

    name: str
    actions: int
    steps: int
    extra: str | None = None
    envpool: str = ""
    options: tuple[tuple[str, Any], ...] = ()


GAMES = (
    Game("CartPole-v1", 2, sized(500, 5), envpool="CartPole-v1"),
    Game(
        "ALE/Pong-v5",
        6,
        sized(60, 2),
        "ale_py",
        "Pong-v5",
        (
            *(("stack_num", 1), ("img_height", 210), ("img_width", 160), ("gray_scale", False), ("noop_max", 1)),
            *(("repeat_action_probability", 0.25), ("use_fire_reset", False), ("full_action_space", False)),
        ),
    ),
)


@contextmanager
def _ours(game: Game) -> Iterator[Step]:
    told = [f"emulator.id={game.name}", f"bsize={ENVS}"]
    settings = configuration.load("config/multimachine", "ranks", told)
    with ExitStack() as stack:
        watch = stack.enter_context(Watch(sys.stderr.write, 3600.0).kept())
        context = RankContext(settings, build_device(settings, settings.emulator), Rank(), watch)
        assert context.emulator.spec.actions == DiscreteActions(game.actions)
        streams = [stack.enter_context(closing(stream_of(context, slot))) for slot in range(ENVS)]

        def step(actions: np.ndarray) -> None:
            for stream, action in zip(streams, actions.tolist(), strict=True):
                if stream.advance(Decision(action, 0.0), context.emulator.max_steps):
                    stream.next_episode()

        yield step


@contextmanager
def _gymnasium(mode: str, game: Game) -> Iterator[Step]:
    if game.extra == "ale_py":
        import ale_py

        gymnasium.register_envs(ale_py)
    with closing(gymnasium.make_vec(game.name, ENVS, vectorization_mode=mode)) as envs:
        envs.reset(seed=0)
        yield envs.step


@contextmanager
def _envpool(game: Game) -> Iterator[Step]:
    import envpool  # type: ignore[import-not-found]

    with closing(envpool.make_gymnasium(game.envpool, num_envs=ENVS, **dict(game.options))) as envs:
        envs.reset()
        yield envs.step


@contextmanager
def _torchrl(game: Game) -> Iterator[Step]:
    import torch
    from torchrl.envs import GymEnv, ParallelEnv  # type: ignore[import-not-found]

    with closing(ParallelEnv(ENVS, partial(GymEnv, game.name, categorical_action_encoding=True))) as envs:
        state = [envs.reset()]

        def step(actions: np.ndarray) -> None:
            _, state[0] = envs.step_and_maybe_reset(state[0].set("action", torch.from_numpy(actions)))

        yield step


PEERS: dict[str, Callable[[Game], Any]] = {
    "ours": _ours,
    "sync": partial(_gymnasium, "sync"),
    "async": partial(_gymnasium, "async"),
    **({"envpool": _envpool} if find_spec("envpool") else {}),
    **({"torchrl": _torchrl} if find_spec("torchrl") else {}),
}


def main() -> None:
    values: Values = {}
    detail: dict[str, object] = {"environments": ENVS}
    with stage():
        for game in GAMES:
            if game.extra is not None and find_spec(game.extra) is None:
                detail[game.name] = f"not measured: {game.extra} is missing"
                continue
            found = {peer: _measured(peer, game) for peer in PEERS}
            values[f"{game.name}_vs_async"] = (found["async"][0] / found["ours"][0], ">=1")
            detail[game.name] = {
                peer: {"cpu_us_per_step": round(cpu, 1), "steps_per_s": round(rate)}
                for peer, (cpu, rate) in found.items()
            }
    show("vector", values, detail)


def _measured(peer: str, game: Game) -> tuple[float, float]:
    """Returns microseconds of processor time for a step of one environment, and such steps per second: medians."""
    rng, costs, rates = np.random.default_rng(0), [], []
    with waiting_for(f"{game.steps} steps of {game.name} by {peer}"), PEERS[peer](game) as step:
        step(np.zeros(ENVS, np.int64))
        for _ in range(ROUNDS):
            spent, started = _spent(), time.monotonic()
            for _ in range(game.steps):
                step(rng.integers(0, game.actions, ENVS))
            rates.append(game.steps * ENVS / (time.monotonic() - started))
            costs.append((_spent() - spent) / (game.steps * ENVS) * 1e6)
    return median(costs), median(rates)


def _spent() -> float:
    """Returns the processor seconds so far of this process and those below it."""
    below = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in below)


if __name__ == "__main__":
    measure(main, minutes=15)
