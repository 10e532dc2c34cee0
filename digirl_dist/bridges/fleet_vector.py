"""A Gymnasium vector environment whose environments are on machines that have only sshd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from msgspec import structs

from digirl_dist.assembly.parts import build_environment
from digirl_dist.bridges.remote import Remote, machines
from digirl_dist.emulator.gymnasium_spaces import leaves
from digirl_dist.errors import EmulatorError, SettingsError, WorkerError
from digirl_dist.settings import LimitSettings, configuration
from digirl_dist.user_code.packing import pack
from digirl_dist.vec_env.pool import Answers, Pool
from digirl_dist.worker_program.environments import EnvHost, Result


class FleetVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments, spread evenly over workers. An episode that ends is followed by the next one in the
    same step (``AutoresetMode.SAME_STEP``), and ``infos`` has its ``final_obs`` and ``final_info``.

    The environments of a worker that is lost are made anew on the others: their episodes end truncated, with
    ``infos["lost"]`` telling why, and next ones begin. Nothing that a worker sends is unpickled.
    """

    def __init__(
        self, make: Any, num_envs: int, members: Sequence[Remote], limits: LimitSettings, seed: int = 0
    ) -> None:
        """Raises SettingsError for a space that cannot be, WorkerError if no worker can make them, EmulatorError if one
        raises."""
        if num_envs < 1:
            raise SettingsError(f"num_envs={num_envs} must be at least 1")
        self.num_envs = num_envs
        env = make()
        self.spec, self.metadata = env.spec, {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        env.close()
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        _refuse_unsupported(name, "observation", self.single_observation_space)
        _refuse_unsupported(name, "action", self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool = Pool(members, limits.reset_s)
        self._boot_s = limits.boot_s
        self._seeds = np.random.SeedSequence(seed)
        self._lost: list[str] = []
        self._last: list[Any] = [None] * num_envs
        for number in range(num_envs):
            members[number % len(members)].envs.append(number)
        self._ask("add", dict.fromkeys(range(num_envs), ()), limits.boot_s)

    @property
    def workers(self) -> dict[str, list[int]]:
        """The numbers of the environments of each worker that is there."""
        return {member.name: list(member.envs) for member in self._pool.members}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in each environment, with ``seed``, ``seed`` + 1 and so on. Raises WorkerError.

        ``options`` are those of each environment's ``reset``; as in Gymnasium, ``reset_mask`` among them is for this
        one: an array of bools, those of the environments to reset.
        """
        every = dict(options or {})
        mask = every.pop("reset_mask", np.ones(self.num_envs, bool))
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != bool or not np.any(mask):
            raise ValueError(f"reset_mask is no array of {self.num_envs} bools, some of them true: {mask!r}")
        seeds = self._seeds_of(seed)
        asked = {number: (seeds[number], every or None) for number in range(self.num_envs) if mask[number]}
        infos: dict[str, Any] = {}
        for number, result in sorted(self._ask("reset", asked).items()):
            self._last[number] = result.observation
            infos = self._add_info(infos, result.info, number)
        return self._seen(), infos

    def _seeds_of(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + number for number in range(self.num_envs)]
        seeds = [None if each is None else int(each) for each in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        return seeds

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Takes one action per environment. Raises WorkerError naming every worker if none is left."""
        chosen = dict(enumerate(iterate(self.action_space, actions)))
        if len(chosen) != self.num_envs:
            raise ValueError(f"{len(chosen)} actions for {self.num_envs} environments")
        rewards = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for number, result in sorted(self._ask("advance", chosen).items()):
            before, self._last[number] = self._last[number], result.observation
            rewards[number], terminated[number], truncated[number] = result.reward, result.terminated, result.truncated
            info = dict(result.info)
            if result.terminated or result.truncated:
                info["final_obs"], info["final_info"] = result.final or (before, {"lost": info.get("lost")})
            infos = self._add_info(infos, info, number)
        return self._seen(), rewards, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        self._pool.close()

    def _ask(self, request: str, asked: Mapping[int, Any], limit_s: float | None = None) -> dict[int, Result]:
        """Asks all workers at once; the environments of those that are lost begin anew on the others."""
        if self.closed:
            raise ClosedEnvironmentError(f"{request} of environments that were closed")
        answers = self._pool.ask(request, asked, limit_s)
        results = answers.results | self._rehoused(request, asked, self._noted(answers))
        for number, result in results.items():
            if result.raised:
                raise EmulatorError(f"environment {number} raised: {result.raised}")
        return results

    def _noted(self, answers: Answers) -> list[int]:
        """Returns the environments of the workers that were lost."""
        self._lost += [reason for _, reason in answers.lost]
        return [number for member, _ in answers.lost for number in member.envs]

    def _rehoused(self, request: str, asked: Mapping[int, Any], left: list[int]) -> dict[int, Result]:
        """Makes environments again on the workers that are left. Raises WorkerError if none is."""
        results: dict[int, Result] = {}
        while left:
            if not self._pool.members:
                raise WorkerError("the fleet", f"no worker is left: {'; '.join(self._lost)}")
            member = min(self._pool.members, key=lambda each: len(each.envs))
            count = -(-len(left) // len(self._pool.members))
            share, left = left[:count], left[count:]
            drawn = [(int(each.generate_state(1)[0] >> 1), None) for each in self._seeds.spawn(len(share))]
            own = [asked.get(number) if request == "reset" else None for number in share]
            member.envs += share
            episodes = {number: own or new for number, own, new in zip(share, own, drawn, strict=True)}
            answers = self._pool.ask("add", episodes, self._boot_s)
            left += self._noted(answers)
            results |= {
                number: self._begun(request, number in asked, first) for number, first in answers.results.items()
            }
        return results

    def _begun(self, request: str, is_asked: bool, first: Result) -> Result:
        """Returns the answer to a reset or a step of an environment that was made again meanwhile."""
        if request != "advance" and is_asked:
            return first  # no episode was under way
        return structs.replace(first, info={**first.info, "lost": self._lost[-1]}, truncated=request == "advance")

    def _seen(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, self.num_envs)
        try:
            return concatenate(self.single_observation_space, self._last, empty)
        except (KeyError, TypeError, ValueError) as error:
            raise EmulatorError(f"an observation is not of {self.single_observation_space}: {error}") from error


def _refuse_unsupported(environment: str, what: str, space: spaces.Space[Any]) -> None:
    """Raises SettingsError for graphs, and for actions without parts."""
    parts = dict(leaves(space, ()))
    if not parts and what == "action":
        raise SettingsError(f"{environment}: its action space {space} is empty")
    for key, part in parts.items():
        if isinstance(part, spaces.Graph):
            place = "".join(f"[{name!r}]" for name in key)
            raise SettingsError(
                f"{environment}: its {what} space{place} {part} is not supported in a vector environment"
            )


@contextmanager
def fleet_vector_env(
    num_envs: int, overrides: Sequence[str], config_name: str = "host", config_path: str = "config/multimachine"
) -> Iterator[FleetVectorEnv]:
    """Installs the package on the workers of a configuration, and makes its Gymnasium environment there.

    With ``dry_run=true``, the workers are localhost ones behind real SSH servers. Raises SettingsError or WorkerError.
    """
    settings = configuration.load(config_path, config_name, overrides)
    make = build_environment(settings.emulator)
    hosted = pack(partial(EnvHost, make))
    with machines(settings) as found:
        members = [machine.start(hosted) for machine in found]
        with closing(FleetVectorEnv(make, num_envs, members, settings.limits, settings.seed)) as env:
            yield env
