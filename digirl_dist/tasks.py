"""What the agent is asked to do, and the tickets that say which episodes an iteration consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A value that ``json`` can write: None, bool, int, float, str, list or dict of these."""


@dataclass(frozen=True)
class Task:
    """One thing to do. ``params`` are read by the emulator that judges it (JSON values only)."""

    id: str
    instruction: str = ""
    params: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Ticket:
    """The right to run one episode. Decided on the host, so what is collected does not depend on who runs it."""

    iteration: int
    index: int
    task: Task
    seed: int
    policy_version: int

    @property
    def key(self) -> tuple[int, int]:
        """Names the ticket in its run."""
        return self.iteration, self.index

    def to_json(self) -> dict[str, Json]:
        task = {"id": self.task.id, "instruction": self.task.instruction, "params": self.task.params}
        return {
            "iteration": self.iteration,
            "index": self.index,
            "task": task,
            "seed": self.seed,
            "policy_version": self.policy_version,
        }

    @classmethod
    def from_json(cls, value: dict[str, Json]) -> Ticket:
        return cls(**{**value, "task": Task(**value["task"])})


@dataclass(frozen=True)
class Plan:
    """Chooses the tickets of an iteration from a task set; a pure function of seed and iteration.

    ``order`` is ``random`` (tasks drawn with replacement) or ``sequential`` (the set is walked through across
    iterations and the whole fleet, so that it is covered without repeats).
    """

    tasks: Sequence[Task]
    rollout_size: int
    seed: int
    order: str = "random"

    def tickets(self, iteration: int, policy_version: int) -> list[Ticket]:
        import numpy as np

        rng = np.random.default_rng([self.seed, iteration])
        first = iteration * self.rollout_size
        if self.order == "sequential":
            chosen = [(first + k) % len(self.tasks) for k in range(self.rollout_size)]
        else:
            chosen = rng.integers(len(self.tasks), size=self.rollout_size).tolist()
        seeds = rng.integers(2**31, size=self.rollout_size).tolist()
        return [
            Ticket(iteration, index, self.tasks[task], seed, policy_version)
            for index, (task, seed) in enumerate(zip(chosen, seeds, strict=True))
        ]
