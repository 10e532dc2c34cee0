"""An emulator and an agent as a user would write them, in a file that no worker has."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from digirl_dist.agent.contract import ActsAlone
from digirl_dist.emulator import DeviceActions, DiscreteActions, EmulatorSpec
from digirl_dist.errors import ActionError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Decision, Observation, Transition


class Counter:
    """Counts to ``length``; action 1 is rewarded. What a task's params say, it suffers."""

    spec = EmulatorSpec(DiscreteActions(2), vector_size=2)

    def __init__(self, length: int = 3, step_s: float = 0.0) -> None:
        self._length = length
        self._step_s = step_s
        self._params: dict[str, Any] = {}
        self._at = 0
        self._seed = 0

    @staticmethod
    def tasks(task_set: str, split: str) -> list[Task]:
        return [Task("count", f"count for {split}")]

    def reset(self, task: Task, seed: int) -> Observation:
        self._params, self._at, self._seed = task.params, 0, seed
        self._suffer("reset")
        return self._see()

    def step(self, action: Any) -> Transition:
        if action not in (0, 1):
            raise ActionError(f"{action!r} is neither 0 nor 1")
        self._suffer("step")
        time.sleep(self._step_s)
        self._at += 1
        ended = self._at >= self._length
        return Transition(self._see(), float(action), terminated=ended, success=ended and action == 1)

    def close(self) -> None:
        if "closed" in self._params:
            with open(self._params["closed"], "a") as file:
                file.write("closed\n")

    def _see(self) -> Observation:
        text = os.urandom(8).hex() if self._params.get("drifts") else "x" * self._params.get("letters", 0) or "count"
        return Observation(text, None, np.array([self._at, self._seed % 7], np.float32))

    def _suffer(self, where: str) -> None:
        """Hang or die once: the file named by ``once`` says whether it has happened."""
        once = self._params.get("once")
        if self._params.get("at") != where or (once and not _first(once)):
            return
        match self._params["suffers"]:
            case "hang":
                time.sleep(3600)
            case "dawdle":
                time.sleep(1.2)
            case "pause":
                time.sleep(0.1)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                ctypes.string_at(0)
            case "raise":
                raise RuntimeError("the device is on fire")


def _first(path: str) -> bool:
    """Whether this process, of all that ask, is the one that makes the file."""
    try:
        open(path, "x").close()
    except FileExistsError:
        return False
    return True


class Coin(nn.Module):
    """A biased coin: one weight, and an agent all the same."""

    feature_size = 2

    def __init__(self, spec: EmulatorSpec) -> None:
        super().__init__()
        assert isinstance(spec.actions, DiscreteActions)
        self.logits = nn.Parameter(torch.zeros(spec.actions.n))

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        log_probs = self.logits.log_softmax(-1).cpu().numpy()
        drawn = [int(np.argmax(log_probs + rng.gumbel(size=log_probs.shape))) for rng in rngs]
        return [Decision(action, float(log_probs[action])) for action in drawn]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        return self.logits.log_softmax(-1)[torch.tensor(actions)]

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        vectors = np.stack([seen.vector for seen in observations if seen.vector is not None])
        return torch.tensor(vectors, device=self.logits.device)


class FairCoin(ActsAlone):
    """A coin without weights: a worker that tosses it needs no torch, which takes a second to import."""

    def __init__(self, spec: EmulatorSpec) -> None:
        assert isinstance(spec.actions, DiscreteActions)
        self._sides = spec.actions.n

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision(int(rng.integers(self._sides)), -math.log(self._sides)) for rng in rngs]


class Chores:
    """A chore for each thing that may be wrong with one, which its params name."""

    spec = EmulatorSpec(DeviceActions(), vector_size=1)

    def reset(self, task: Task, seed: int) -> Observation:
        self._wrong, self._at = task.params.get("wrong"), 0
        if self._wrong == "hangs":
            time.sleep(3600)
        start = float(os.urandom(1)[0]) if self._wrong == "drifts" else seed
        self._seen = Observation(task.id, None, np.array([start], np.float32))
        return self._seen

    def step(self, action: Any) -> Transition:
        self._at += 1
        if self._wrong == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        won = self._wrong == "free" or (action["type"] == "tap" and self._wrong != "barred")
        ends = won or (self._wrong == "clock" and self._at == 2)
        return Transition(self._seen, 0.125 if self._wrong == "gift" else float(won), terminated=ends, success=won)

    def oracle(self) -> Any:
        return {"type": "tap", "x": 0.5, "y": 0.5}

    def close(self) -> None:
        """There is nothing to release."""


class Nothing:
    """An algorithm that learns nothing, but counts."""

    def __init__(self, agent: Any) -> None:
        self.updates = 0
        self.agent = agent

    def update(self, fresh: Sequence[Any], replay: Sequence[Any]) -> dict[str, float]:
        self.updates += 1
        with torch.no_grad():
            self.agent.logits += 0.01
        return {"fresh": float(len(fresh)), "replay": float(len(replay))}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]


class HeavyCoin(Coin):
    """A coin that weighs ``megabytes``."""

    def __init__(self, spec: EmulatorSpec, megabytes: int) -> None:
        super().__init__(spec)
        self.ballast = nn.Parameter(torch.zeros(megabytes * 250_000))


def ends_the_process(_: Any) -> bool:
    """Was written for a script."""
    sys.exit(0)


def acted_as_wanted(trajectory: Any) -> bool:
    """Judges by what the task's params say."""
    return bool(trajectory.steps[1].action == trajectory.ticket.task.params["wanted"])


def half(_: Any) -> float:
    """A grade."""
    return 0.5


def notes_each_and_fails_at_the_fourth(trajectory: Any) -> bool:
    """Writes whom it was asked about to the file of the variable ASKED; fails while there is no file beside it."""
    with open(os.environ["ASKED"], "a+") as file:
        file.write(f"{trajectory.ticket.key.name}\n")
        file.seek(0)
        if len(file.readlines()) == 4 and not os.path.exists(os.environ["ASKED"] + ".repaired"):
            raise ConnectionError("the fourth time")
    return bool(trajectory.ticket.index % 2)


def second_action_is_one(trajectory: Any) -> bool:
    """A judgement that the emulator does not make."""
    return bool(trajectory.steps[1].action == 1)
