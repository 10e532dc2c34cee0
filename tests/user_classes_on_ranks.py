"""What the tests of ranks and launches run, as a user would write it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from user_classes import Coin, Counter

from digirl_dist.emulator import EmulatorSpec
from digirl_dist.parallel.rank import own_rank
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Decision, Observation
from examples.corridor import Corridor


class Gated(Counter):
    """Counts only while the file ``gate`` exists; until then a reset waits, and says so in ``gate``.waiting."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self._gate = Path(gate)

    def reset(self, task: Task, seed: int) -> Observation:
        self._gate.with_suffix(".waiting").touch()
        while not self._gate.exists():
            time.sleep(0.05)
        return super().reset(task, seed)


class Moody(Coin):
    """Acts by what this very instance has done before, and by the process's generator; or fails in one of many ways."""

    def __init__(self, spec: EmulatorSpec, fails: str = "") -> None:
        super().__init__(spec)
        self._acts = 0
        self._fails = fails
        if fails == "made":
            raise TypeError("nobody can make me")

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        if self._fails == "exits":
            sys.exit("I leave")
        if self._fails == "acts":
            raise ZeroDivisionError("division by zero")
        self._acts += 1
        luck = float(torch.rand(())) < 0.5
        return [Decision(int((self._acts // 4 % 2 == 0) == luck), 0.0) for _ in observations]


class Fragile(Counter):
    """Cannot be reset with about half of the seeds."""

    def reset(self, task: Task, seed: int) -> Observation:
        if self.suffers(seed):
            raise RuntimeError(f"no way to begin with seed {seed}")
        return super().reset(task, seed)

    @staticmethod
    def suffers(seed: int) -> bool:
        return seed >> 4 & 1 == 1


class Away(Fragile):
    """Cannot be reset with those while the file is there that says why."""

    def __init__(self, down: str, length: int = 3) -> None:
        super().__init__(length)
        self._down = Path(down)

    def reset(self, task: Task, seed: int) -> Observation:
        if self._down.exists() and self.suffers(seed):
            raise RuntimeError(self._down.read_text())
        return Counter.reset(self, task, seed)


class Faulty(Coin):
    """Cannot learn on rank 1."""

    def __init__(self, spec: EmulatorSpec, log: str) -> None:
        super().__init__(spec)
        self._log = log

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        if os.environ.get("RANK") == "1":
            Path(self._log).touch()
            raise RuntimeError("the second rank is broken")
        return super().log_prob(observations, actions)


class Recorded(Corridor):
    """Writes down which rank made one, and where it is reset; can be slow or broken where a test wants it."""

    made = 0

    def __init__(self, log: str, evaluation_s: float = 0.0, breaks_on: int = -1) -> None:
        super().__init__(length=5)
        Recorded.made += 1
        self._rank = str(own_rank(os.environ).rank)
        # After those whose spaces and test tasks are read, and that of the only slot.
        self._evaluates = Recorded.made == 4
        self._evaluation_s = evaluation_s
        self._breaks = self._rank == str(breaks_on)
        self._log = log
        self._write("made")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if self._evaluates:
            time.sleep(self._evaluation_s)
            self._evaluation_s = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._breaks:
            raise RuntimeError("the corridor has collapsed")
        return super().step(action)

    def _write(self, what: str) -> None:
        with open(self._log, "a") as file:
            file.write(f"{what} {self._rank}\n")
