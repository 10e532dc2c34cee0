"""Emulators that this process steps itself, episode after episode, a fixed number of steps at a time.

For environments that are quick and do not hang: ``watched_emulator`` names one that does, and ends its rank at last.
The episodes do not depend on how many steps an iteration has. A run that is continued begins new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from digirl_dist.agent import Actor, contract
from digirl_dist.emulator import Emulator
from digirl_dist.emulator.episode_limits import MOST_STEPS, check_observation, check_reward
from digirl_dist.emulator.starts import REMEDY, start_alike
from digirl_dist.errors import AgentError, EmulatorError, TrajectoryError, on_error
from digirl_dist.tasks import Share, Task, Ticket, emulator_seeds
from digirl_dist.trajectory import Decision, NoDecision, Observation, Step, Trajectory, recorded


@dataclass
class Collected:
    """The steps of one iteration, as fragments and as the whole episodes that ended."""

    fragments: list[Trajectory] = field(default_factory=list)
    """Every step of the iteration; a fragment ends with its episode, or with the iteration."""
    episodes: list[Trajectory] = field(default_factory=list)
    """The episodes that ended in the iteration, with their steps of earlier iterations."""


class Stream:
    """One emulator and its episodes. Task, seed and randomness of episode n follow from ``seed``, ``slot``, ``first``
    and n; ``first`` is the iteration in which the stream begins.

    ``group_size`` episodes in a row share task and seed, and so start alike. An episode that nothing else ends is
    truncated after ``MOST_STEPS`` steps. ``say`` reports the first such episode, and the first that started unlike its
    group.
    """

    def __init__(
        self,
        emulator: Emulator,
        tasks: Sequence[Task],
        name: str,
        slot: int,
        seed: int,
        first: int = 0,
        group_size: int = 1,
        share: Share = "train",
        say: Callable[[str], object] = str,
        steady: bool = True,
    ) -> None:
        """``steady`` is that of the emulator's spec."""
        self._emulator = emulator
        self._tasks = tasks
        self._name = name
        self._slot = slot
        self._seed = seed
        self._first = first
        self._group_size = group_size
        self._share = share
        self._say = say
        self._steady = steady
        self.has_endless = False
        """Whether an episode was truncated because nothing else ended it."""
        self._fragment_start = 0
        self._group_start: tuple[int, Observation] | None = None
        """The newest group that was begun, and how."""
        self._has_unlike = False
        with on_error(emulator.close):  # nobody else has the emulator yet
            self.observation = self._begin(0)

    def advance(self, decision: Decision | NoDecision, max_steps: int | None, version: int | None = None) -> bool:
        """Carries out one action, of a policy version, and returns whether the episode is over.

        Raises AgentError for NoDecision and for a log-probability that is no number, EmulatorError for a reward or an
        observation that no episode may have.
        """
        if isinstance(decision, NoDecision):
            raise AgentError(decision.reason)
        transition = self._emulator.step(deepcopy(decision.action))
        is_cut = len(self._steps) + 1 >= (max_steps or MOST_STEPS)
        step = recorded(self.observation, decision, transition, is_cut, version)
        if max_steps is None and is_cut and not (transition.terminated or transition.truncated):
            self._note_endless()
        if not math.isfinite(step.log_prob):
            raise AgentError(
                f"task {self._task.id}: the agent says that the log-probability of its action is {decision.log_prob}"
            )
        self.observation = self._own(transition.observation, transition.reward)
        self._steps.append(step)
        self._success = transition.success
        if len(self._steps) == 1:
            self._compare_start(step)
        return step.ended

    def _compare_start(self, step: Step) -> None:
        group = self._episode // self._group_size
        if self._group_start is None or self._group_start[0] != group:
            self._group_start = (group, step.observation)
        elif not (self._has_unlike or start_alike(self._group_start[1], step.observation, self._steady)):
            self._has_unlike = True
            self._say(
                f"task {self._task.id}: two episodes of seed {self._episode_seed} started differently; {REMEDY}\n"
            )

    def _note_endless(self) -> None:
        if not self.has_endless:
            self._say(
                f"task {self._task.id}: an episode was truncated, since it had no end after {MOST_STEPS} steps; "
                "set max_steps, or give the environment a TimeLimit\n"
            )
        self.has_endless = True

    @property
    def last(self) -> Step:
        """The newest step of this episode."""
        return self._steps[-1]

    def episode(self, iteration: int) -> Trajectory:
        """Returns the episode from its start to its newest step."""
        return self._trajectory(iteration, self._steps)

    def fragment(self, iteration: int) -> Trajectory | None:
        """Returns the steps since the last call, None if there were none."""
        steps, self._fragment_start = self._steps[self._fragment_start :], len(self._steps)
        return self._trajectory(iteration, steps) if steps else None

    def next_episode(self) -> None:
        """Resets the emulator for the next episode."""
        self.observation = self._begin(self._episode + 1)

    def close(self) -> None:
        """Closes the emulator."""
        self._emulator.close()

    def _begin(self, episode: int) -> Observation:
        group, member = divmod(episode, self._group_size)
        # None ends with 0: NumPy's seeding takes no notice of zeros at the end.
        start = np.random.default_rng([self._seed, self._slot, self._first, group, 1])
        self._task = self._tasks[int(start.integers(len(self._tasks)))]
        (self._episode_seed,) = emulator_seeds(start, 1, self._share)
        self.rng = np.random.default_rng([self._seed, self._slot, self._first, group, 2 + member])
        self._episode = episode
        self._steps: list[Step] = []
        self._fragment_start = 0
        self._success = False
        return self._own(self._emulator.reset(deepcopy(self._task), self._episode_seed))

    def _own(self, seen: Observation, reward: float = 0.0) -> Observation:
        """Returns an observation that the emulator cannot change any more; in other processes, a pipe sees to that.

        Raises EmulatorError for what a slot would refuse.
        """
        try:
            numbers = None if seen.vector is None else np.array(seen.vector, np.float32).reshape(-1)
            check_observation(own := Observation(seen.text, seen.image, numbers, tuple(seen.earlier)))
            check_reward(reward)
        except (TrajectoryError, TypeError, ValueError) as error:
            raise EmulatorError(f"task {self._task.id}: {error}") from error
        return own

    def _trajectory(self, iteration: int, steps: Sequence[Step]) -> Trajectory:
        name = f"{self._name}-{self._slot}-{self._first}-{self._episode:06d}"
        return Trajectory(
            Ticket(iteration, 0, self._task, self._episode_seed, iteration),
            name,
            self._name,
            self._slot,
            list(steps),
            self.observation,
            self._success,
        )


class Streams:
    """The streams of one rank, whose actions are decided in one batch."""

    def __init__(self, streams: Sequence[Stream], max_steps: int | None) -> None:
        self._streams = streams
        self._max_steps = max_steps

    def collect(self, actor: Actor, iteration: int, steps: int) -> Collected:
        """Makes ``steps`` steps in every emulator."""
        found = Collected()
        for _ in range(steps):
            decisions = contract.decisions(
                actor, [stream.observation for stream in self._streams], [stream.rng for stream in self._streams]
            )
            for stream, decision in zip(self._streams, decisions, strict=True):
                if stream.advance(decision, self._max_steps, iteration):
                    found.episodes.append(stream.episode(iteration))
                    self._end_fragment(stream, iteration, found)
                    stream.next_episode()
        for stream in self._streams:
            self._end_fragment(stream, iteration, found)
        return found

    def close(self) -> None:
        """Closes all emulators, then raises what the last that could not be closed raised."""
        with ExitStack() as stack:
            for stream in self._streams:
                stack.callback(stream.close)

    def _end_fragment(self, stream: Stream, iteration: int, found: Collected) -> None:
        if (fragment := stream.fragment(iteration)) is not None:
            found.fragments.append(fragment)
