"""Tasks, and the tickets that define an iteration's episodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from digirl_dist.types import Json, Natural

if TYPE_CHECKING:
    import numpy as np

Purpose = Literal["train", "evaluate", "measure"]
"""The purpose of an episode: training, the evaluation of a policy version during it, or a measurement of one."""

_LETTERS: dict[str, str] = {"train": "t", "evaluate": "e", "measure": "m"}


class Round(NamedTuple):
    """The extent of one ``collect``: an iteration of training, or a round of measuring a policy version."""

    number: Natural
    """The iteration; for an evaluation, the policy version; for a measurement, the round, counted from 0."""
    purpose: Purpose = "train"
    measured: Natural = 0
    """The policy version of a measurement."""


class Key(NamedTuple):
    """Identifies a ticket in its run."""

    iteration: Natural
    """The number of the ticket's round."""
    number: Natural
    """The index of the ticket in its round."""
    purpose: Purpose = "train"
    measured: Natural = 0
    """The policy version of a measurement."""

    @property
    def round(self) -> Round:
        return Round(self.iteration, self.purpose, self.measured)

    @property
    def name(self) -> str:
        """The key as one word: ``t12.5``, ``e14.5``, or ``m14.0.5`` for ticket 5 of round 0 of measuring policy 14."""
        of = f"{self.measured}." if self.purpose == "measure" else ""
        return f"{_LETTERS[self.purpose]}{of}{self.iteration}.{self.number}"

    def place(self) -> dict[str, Json]:
        """Returns the ticket as events name it."""
        told: dict[str, Json] = {"iteration": self.iteration, "ticket": self.number, "purpose": self.purpose}
        return {**told, "measured": self.measured} if self.purpose == "measure" else told


_ORDER_STREAM = 1
"""Separates the random draws of orders from those of seeds."""

Share = Literal["train", "validate", "test"]
"""A share of the emulator seeds: training, the evaluations that choose the best checkpoint, or final measurements."""

SEEDS: dict[Share, range] = {
    "train": range(2**30),
    "validate": range(2**30, 3 * 2**29),
    "test": range(3 * 2**29, 2**31),
}
"""Disjoint, so no measurement meets an instance that was trained on, whatever the run's ``seed``."""

_SEED_STREAMS: dict[Share, tuple[int, ...]] = {"train": (), "validate": (2,), "test": (3,)}
"""Separate the draws of the shares, so that seeds of equal rank have nothing in common either."""


def emulator_seeds(rng: np.random.Generator, count: int, share: Share) -> list[int]:
    """Draws ``count`` emulator seeds of one share."""
    seeds: list[int] = rng.integers(SEEDS[share].start, SEEDS[share].stop, size=count).tolist()
    return seeds


@dataclass(frozen=True)
class Task:
    """One task. The emulator that judges it reads ``params`` (JSON values only)."""

    id: str
    instruction: str = ""
    params: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Ticket:
    """The definition of one episode. The host decides all of it, so the episode does not depend on the worker."""

    iteration: int
    index: int
    task: Task
    seed: int
    policy_version: int
    attempt: int = 0
    """How often the ticket was leased before; distinguishes the files of two attempts."""
    purpose: Purpose = "train"

    @property
    def key(self) -> Key:
        measured = self.policy_version if self.purpose == "measure" else 0
        return Key(self.iteration, self.index, self.purpose, measured)

    @property
    def round(self) -> Round:
        return self.key.round

    @property
    def asks(self) -> str:
        """A digest of the task and its seed, by which a later process tells whether it asks for the same episode."""
        task = self.task
        told = json.dumps([task.id, task.instruction, task.params, self.seed]).encode()
        return hashlib.blake2b(told, digest_size=8).hexdigest()

    def misfit(self, wanted: Ticket) -> str:
        """Returns in what an episode of this ticket is not the one that ``wanted`` asks for; empty if it is.

        Attempts do not matter.
        """
        pairs = {
            "ticket": (self.key, wanted.key),
            "seed": (self.seed, wanted.seed),
            "task": (self.task.id, wanted.task.id),
            "instruction": (self.task.instruction, wanted.task.instruction),
            "policy version": (self.policy_version, wanted.policy_version),
        }
        for name, (found, asked) in pairs.items():
            if found != asked:
                return f"it is the episode of another {name}: {found!r:.200} instead of {asked!r:.200}"
        if self.task.params not in (wanted.task.params, json.loads(json.dumps(wanted.task.params))):  # as files have it
            return "it is the episode of a task with other params"
        return ""


@dataclass(frozen=True)
class Plan:
    """Chooses the tickets of an iteration from a task set; a pure function of seed and iteration.

    The tickets of all iterations, over the whole fleet, pass through the set again and again, so each pass covers it
    without repeats. ``order`` is ``sequential`` (as the set is written) or ``random`` (reshuffled for each pass).
    ``group_size``, which must divide ``rollout_size``, is the number of consecutive tickets that share task and seed:
    they start alike, and the agent acts differently in each. Emulator seeds come from one share of all that there are.
    """

    tasks: Sequence[Task]
    rollout_size: int
    seed: int
    order: str = "random"
    group_size: int = 1
    share: Share = "train"
    purpose: Purpose = "train"

    def tickets(self, iteration: int, policy_version: int) -> list[Ticket]:
        import numpy as np

        rng = np.random.default_rng([self.seed, iteration, *_SEED_STREAMS[self.share]])
        groups = self.rollout_size // self.group_size
        seeds = emulator_seeds(rng, groups, self.share)
        starts = [
            start for start in zip(self._chosen(iteration, groups), seeds, strict=True) for _ in range(self.group_size)
        ]
        return [
            Ticket(iteration, index, task, seed, policy_version, purpose=self.purpose)
            for index, (task, seed) in enumerate(starts)
        ]

    def _chosen(self, iteration: int, count: int) -> list[Task]:
        places = [divmod(iteration * count + k, len(self.tasks)) for k in range(count)]
        orders = {number: self._pass(number) for number, _ in places}
        return [self.tasks[orders[number][place]] for number, place in places]

    def _pass(self, number: int) -> Sequence[int]:
        """Returns the indices of all tasks in the order of one pass."""
        if self.order == "sequential":
            return range(len(self.tasks))
        import numpy as np

        shuffled: list[int] = (
            np.random.default_rng([self.seed, number, _ORDER_STREAM]).permutation(len(self.tasks)).tolist()
        )
        return shuffled
