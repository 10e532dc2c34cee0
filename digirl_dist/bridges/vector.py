"""The emulators of one rank as a Gymnasium vector environment, under torchrun or alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from digirl_dist.assembly.parts import build_device
from digirl_dist.assembly.validate import Command, refuse_contradictions
from digirl_dist.emulator import BoxActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.failure import say
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.rank import Rank, is_of_jax, own_rank
from digirl_dist.settings import configuration
from digirl_dist.train.launch import RankContext, join_ranks, streams_of
from digirl_dist.train.streams import Stream, Streams
from digirl_dist.train.watched_emulator import Watch
from digirl_dist.trajectory import Decision


class EmulatorVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Steps streams of episodes side by side; when an episode ends, the next one starts in the same step.

    ``infos["final_obs"]`` then has the last observation of the episode that ended. Tasks and seeds are those of
    ``digirl_dist.train``; the seed given to ``reset`` is ignored.
    """

    def __init__(self, begin: Callable[[], Sequence[Stream]], spec: EmulatorSpec, max_steps: int | None) -> None:
        """Raises SettingsError for an emulator whose observations are no mere vectors, or whose actions are touches,
        before it has any ``begin``."""
        if not spec.vector_size:
            raise SettingsError("skrl and rsl_rl get observations as vectors, and this emulator has none")
        if spec.image_size is not None:
            raise SettingsError(
                "skrl and rsl_rl get observations as vectors, and this emulator has pictures, too: choose entries "
                "without them in emulator.observe, or use digirl_dist.train"
            )
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.max_steps = max_steps
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (spec.vector_size,), np.float32)
        self.single_action_space = _action_space(spec)
        self._streams = begin()
        self.num_envs = len(self._streams)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Returns the current observations, shape [n, D]: the first episodes have started already."""
        return self._seen(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Carries out ``actions``: [n] integers, or [n, A] numbers, which the emulator clips to its bounds."""
        final = np.full(self.num_envs, None, dtype=object)
        steps = []
        for number, (stream, action) in enumerate(zip(self._streams, actions.tolist(), strict=True)):
            over = stream.advance(Decision(action, 0.0), self.max_steps)
            steps.append(stream.last)
            if over:
                final[number] = stream.observation.vector
                stream.next_episode()
        rewards = np.array([step.reward for step in steps], np.float32)
        terminated, truncated = (
            np.array([getattr(step, how) for step in steps]) for how in ("terminated", "truncated")
        )
        ended = np.array([one is not None for one in final])
        infos = {"final_obs": final, "_final_obs": ended} if ended.any() else {}
        return self._seen(), rewards, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        Streams(self._streams, self.max_steps).close()

    def _seen(self) -> np.ndarray:
        return np.stack([np.asarray(stream.observation.vector, np.float32) for stream in self._streams])


@dataclass(frozen=True)
class RankedVector:
    """The environments of one rank, and what else a runner of another library needs there."""

    envs: EmulatorVector
    rank: Rank
    device: str
    """``cpu`` or ``cuda:N``, this rank's own; among ranks of JAX, ``trainer.device``."""
    group: Group | None
    """None for ranks of the JAX launcher: JAX joins them when skrl is imported."""
    folder: Path
    """The configured save_path; nothing is written there yet."""


@contextmanager
def ranked_vector(
    overrides: Sequence[str], config_name: str = "ranks", config_path: str = "config/multimachine"
) -> Iterator[RankedVector]:
    """Builds this rank's ``bsize`` emulators as ``digirl_dist.train`` does, and joins the process group.

    Works alone, under torchrun, and under the launcher of JAX. The group uses NCCL on CUDA, gloo
    otherwise. Raises SettingsError, DeviceError or PeerError.
    """
    settings = configuration.load(config_path, config_name, overrides)
    refuse_contradictions(settings, command=Command.ranks)
    with ExitStack() as stack:
        rank, device, group = own_rank(os.environ), settings.trainer.device, None
        if not is_of_jax(os.environ):
            group, device = stack.enter_context(join_ranks(settings))
        watch = stack.enter_context(Watch(partial(say, rank), settings.distributed.gate_s).kept())
        envs = _vector(RankContext(settings, build_device(settings, settings.emulator), rank, watch))
        stack.callback(envs.close)
        yield RankedVector(envs, rank, device, group, Path(settings.save_path).expanduser().resolve())


def _vector(context: RankContext) -> EmulatorVector:
    return EmulatorVector(partial(streams_of, context), context.emulator.spec, context.emulator.max_steps)


def _action_space(spec: EmulatorSpec) -> gymnasium.Space[Any]:
    match spec.actions:
        case DiscreteActions(n):
            return gymnasium.spaces.Discrete(n)
        case BoxActions(low, high):
            return gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        case ProductActions(parts):
            discrete = [part.n for part in parts if isinstance(part, DiscreteActions)]
            if len(discrete) == len(parts):
                return gymnasium.spaces.MultiDiscrete(discrete)
            raise SettingsError("skrl and rsl_rl know no actions that mix numbers and choices; use digirl_dist.train")
        case _:
            raise SettingsError("skrl and rsl_rl know no touch-screen actions; use digirl_dist.train")
