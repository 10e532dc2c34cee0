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

from digirl_dist.assembly.parts import build_environment
from digirl_dist.bridges.remote import Remote, machines
from digirl_dist.emulator.gymnasium_senses import leaves
from digirl_dist.errors import EmulatorError, SettingsError, WorkerError
from digirl_dist.settings import LimitSettings, configuration
from digirl_dist.user_code.packing import pack
from digirl_dist.worker_program.environments import Hosted, native, plain


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
        self._members = list(members)
        self._limits = limits
        self._seeds = np.random.SeedSequence(seed)
        self._lost: list[str] = []
        self._last: list[Any] = [None] * num_envs
        for number in range(num_envs):
            self._members[number % len(self._members)].envs.append(number)
        self._ask("add", {number: [] for number in range(num_envs)})

    @property
    def workers(self) -> dict[str, list[int]]:
        """The numbers of the environments of each worker that is there."""
        return {member.name: list(member.envs) for member in self._members}

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
        begun = plain(every) if every else None
        asks = zip(mask, self._seeds_of(seed), strict=True)
        asked = {number: [each, begun] if wanted else None for number, (wanted, each) in enumerate(asks)}
        infos: dict[str, Any] = {}
        for number, result in sorted(self._ask("reset", asked).items()):
            if result is not None:
                self._last[number], info = result
                infos = self._add_info(infos, info, number)
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
        told = dict(enumerate(plain(action) for action in iterate(self.action_space, actions)))
        if len(told) != self.num_envs:
            raise ValueError(f"{len(told)} actions for {self.num_envs} environments")
        rewards = np.zeros(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for number, (seen, reward, ends, cut, final, info) in sorted(self._ask("step", told).items()):
            before, self._last[number] = self._last[number], seen
            rewards[number], terminated[number], truncated[number] = reward, ends, cut
            if ends or cut:
                info["final_obs"], info["final_info"] = final or (before, {"lost": info.get("lost")})
            infos = self._add_info(infos, info, number)
        return self._seen(), rewards, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        for member in self._members:
            member.close()

    def _ask(self, what: str, asked: Mapping[int, Any]) -> dict[int, Any]:
        """Asks all workers at once; what those cannot answer that are lost, the others begin anew."""
        if self.closed:
            raise ClosedEnvironmentError(f"{what} of environments that were closed")
        results: dict[int, Any] = {}
        sent, homeless = [], []
        for member in list(self._members):
            try:
                member.send(what, [asked[number] for number in member.envs])
                sent.append(member)
            except WorkerError as error:
                homeless += self._lose(member, error)
        raised: list[EmulatorError] = []
        for member in sent:
            try:
                results |= dict(zip(member.envs, self._answers(member, what, len(member.envs)), strict=True))
            except EmulatorError as error:
                raised.append(error)  # once the others' answers are read
            except WorkerError as error:
                homeless += self._lose(member, error)
        if raised:
            raise raised[0]
        if homeless:
            results |= self._rehouse(what, {number: asked[number] for number in homeless})
        return results

    def _answers(self, member: Remote, what: str, count: int) -> list[Any]:
        """Returns what a worker answers for its environments. Raises WorkerError for what no program of ours says."""
        answers = member.answer(self._limits.boot_s if what == "add" else self._limits.reset_s)
        try:
            if len(answers) != count:
                raise ValueError(f"{len(answers)} answers for {count} environments")
            return [_understood(what, each) for each in answers]
        except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError) as error:  # NumPy's for odd types
            raise WorkerError(member.name, f"it sends no frames of ours: {error}") from error

    def _lose(self, member: Remote, error: WorkerError) -> list[int]:
        self._members.remove(member)
        self._lost.append(str(error))
        member.close()
        return member.envs

    def _rehouse(self, what: str, asked: Mapping[int, Any]) -> dict[int, Any]:
        """Makes environments anew on the workers that are left. Raises WorkerError if none is."""
        results: dict[int, Any] = {}
        left = list(asked)
        while left:
            if not self._members:
                raise WorkerError("the fleet", f"no worker is left: {'; '.join(self._lost)}")
            member = min(self._members, key=lambda each: len(each.envs))
            share = left[: -(-len(left) // len(self._members))]
            try:
                drawn = [[int(each.generate_state(1)[0] >> 1)] for each in self._seeds.spawn(len(share))]
                begun = [asked[number] if what == "reset" else None for number in share]
                member.send("add", [own or new for own, new in zip(begun, drawn, strict=True)])
                answers = self._answers(member, "add", len(share))
                results |= {
                    number: _as(what, asked[number], answer, self._lost[-1])
                    for number, answer in zip(share, answers, strict=True)
                }
            except WorkerError as error:
                left += self._lose(member, error)
                continue
            member.envs += share
            left = left[len(share) :]
        return results

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


def _understood(what: str, answer: Any) -> Any:
    """Returns what a worker's program answers for one environment, as the environment told it.

    Of a step (observation, reward, terminated, truncated, last observation and info or None, info), otherwise
    (observation, info), or None of one that was not reset.
    """
    match answer:
        case None if what == "reset":
            return None
        case [seen, dict() as info] if what != "step":
            return native(seen), _natives(info)
        case [seen, float() as reward, bool() as ends, bool() as cut, final, dict() as info] if what == "step":
            last = None if final is None else _understood("add", final)
            return native(seen), reward, ends, cut, last, _natives(info)
    raise ValueError(f"the answer to {what} is none")


def _natives(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: native(value) for key, value in info.items()}


def _as(what: str, asked: Any, first: Any, lost: str) -> Any:
    """The answer to a reset or a step, of an environment that was made anew meanwhile."""
    if what != "step" and asked is not None:
        return first  # nothing was under way
    seen, info = first[0], {**first[1], "lost": lost}
    return (seen, 0.0, False, True, None, info) if what == "step" else (seen, info)


@contextmanager
def fleet_vector_env(
    num_envs: int, overrides: Sequence[str], config_name: str = "host", config_path: str = "config/multimachine"
) -> Iterator[FleetVectorEnv]:
    """Installs the package on the workers of a configuration, and makes its Gymnasium environment there.

    With ``dry_run=true``, the workers are localhost ones behind real SSH servers. Raises SettingsError or WorkerError.
    """
    settings = configuration.load(config_path, config_name, overrides)
    make = build_environment(settings.emulator)
    hosted = pack(partial(Hosted, make))
    with machines(settings) as found:
        members = [machine.start(hosted) for machine in found]
        env = FleetVectorEnv(make, num_envs, members, settings.limits, settings.seed)
        with closing(env):
            yield env
