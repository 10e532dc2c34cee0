"""The record of one episode, as plain data."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from copy import deepcopy
from ctypes import c_float
from dataclasses import dataclass, replace

import numpy as np

from digirl_dist.tasks import Ticket
from digirl_dist.types import Json

Goal = Mapping[str, Json]
"""A goal that an emulator saw met: the ``params`` of every task that asks for it, or ``{"instruction": its words}``."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The agent's observation at one step.

    ``text`` is the instruction (or any text). ``image`` is a screenshot as PNG or JPEG bytes, encoded once on the
    worker and stored unchanged. ``vector`` is a float32 array of shape [n]. Unused parts stay empty. ``earlier`` has
    the screenshots before this one, oldest first, for agents that are shown them; files have each once, and
    ``seen_at`` puts them together again.
    """

    text: str = ""
    image: bytes | None = None
    vector: np.ndarray | None = None
    earlier: Sequence[bytes] = ()

    def __repr__(self) -> str:
        """Sizes in place of pictures, which would fill the terminal."""
        image = None if self.image is None else f"<{len(self.image):,} bytes>"
        vector = None if self.vector is None else f"<float32 {list(self.vector.shape)}>"
        return f"Observation({self.text!r:.200}, image={image}, vector={vector})"


@dataclass(frozen=True, eq=False)
class Transition:
    """An emulator's answer to one action.

    ``success`` is the emulator's own judgement of the episode so far. ``achieved`` are goals that this action met, the
    task's or others, each by changes that the episode made itself (see ``algorithm/hindsight.py``).
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool = False
    success: bool = False
    achieved: Sequence[Goal] = ()

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True)
class Decision:
    """An agent's answer to one observation: a JSON action and the natural log of its probability (density).

    An agent that speaks in tokens, which are the action's ``tokens``, also gives the log-probability of each of them.
    ``log_prob`` is then their sum. A chat endpoint gives its tokens beside the action, and those of the prompt.
    """

    action: Json
    log_prob: float
    token_log_probs: Sequence[float] = ()
    tokens: Sequence[int] = ()
    prompt_tokens: Sequence[int] = ()
    policy_version: int | None = None
    """The version that acted, if that is not its episode's."""


@dataclass(frozen=True)
class NoDecision:
    """An agent's failure to decide, for example because its server was down. The episode must run again."""

    reason: str


@dataclass(frozen=True, eq=False)
class Step:
    """One row of a trajectory: observation, action, reward, and the goals that the action met.

    ``token_log_probs`` has the log-probability of each of the action's ``tokens``; it is empty where the agent does not
    speak in tokens, or its server does not report them. ``tokens`` are those of a chat endpoint's answer, and
    ``prompt_tokens`` of what it read, where its server reports them.
    """

    observation: Observation
    action: Json
    log_prob: float
    reward: float
    terminated: bool
    truncated: bool
    achieved: Sequence[Goal] = ()
    token_log_probs: Sequence[float] = ()
    tokens: Sequence[int] = ()
    prompt_tokens: Sequence[int] = ()
    policy_version: int | None = None
    """The version that acted, if that is not the episode's: with inference on the host, it may change within one."""

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


MOST_EARLIER = 8


def float32(number: float) -> float:
    """Returns the number as files have it. One that is too large becomes infinite, which is refused with its step."""
    return c_float(number).value  # a fraction of what NumPy takes


def recorded(
    seen: Observation, decision: Decision, transition: Transition, is_cut: bool, version: int | None = None
) -> Step:
    """Returns the step as it will be read back, so that a run that was continued learns from the very same numbers.

    ``is_cut``: the episode may have no further step, and is truncated unless it ended by itself. ``version``: the one
    that acted, if that is not the decision's.
    """
    return Step(
        seen,
        decision.action,
        float32(decision.log_prob),
        float32(transition.reward),
        transition.terminated,
        transition.truncated or (is_cut and not transition.terminated),
        [deepcopy(dict(goal)) for goal in transition.achieved],
        array("f", decision.token_log_probs),
        array("i", decision.tokens),
        array("i", decision.prompt_tokens),
        decision.policy_version if version is None else version,
    )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode from reset to end, with its origin."""

    ticket: Ticket
    episode_id: str
    worker: str
    slot: int
    steps: Sequence[Step]
    final_observation: Observation
    success: bool

    @property
    def observations(self) -> list[Observation]:
        """What was seen before each step, and after the last one."""
        return [*(step.observation for step in self.steps), self.final_observation]

    @property
    def is_offline(self) -> bool:
        """Whether it is offline data: its iteration is below 0, so it is no episode that this run has collected."""
        return self.ticket.iteration < 0

    @property
    def versions(self) -> list[int]:
        """The policy version that acted in each step."""
        own = self.ticket.policy_version
        return [own if step.policy_version is None else step.policy_version for step in self.steps]

    @property
    def reward(self) -> float:
        """Undiscounted return of the episode."""
        return float(sum(step.reward for step in self.steps))


def seen_at(episode: Trajectory, place: int) -> Observation:
    """Returns what was seen before a step, or after the last one, with the screenshots before it.

    Where these are not there any more, as in what was read from a file, the episode has ``MOST_EARLIER`` of them.
    """
    seen = episode.steps[place].observation if place < len(episode.steps) else episode.final_observation
    if seen.image is None or seen.earlier:
        return seen
    before = (step.observation.image for step in episode.steps[max(0, place - MOST_EARLIER) : place])
    return replace(seen, earlier=tuple(image for image in before if image is not None))
