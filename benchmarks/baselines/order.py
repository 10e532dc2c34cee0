"""What a recipe's worker is told, as a JSON file in its folder, and how it plays an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.stage import Tiny
from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.settings import RehearsalSettings
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Decision, Observation


@dataclass(frozen=True)
class Pace:
    """The recipe's fixed times in seconds, at the scale at which the emulators' times are."""

    clone_s: float = 0.0
    """Copying one emulator's disk before each batch, one after the other."""
    boot_s: float = 0.0
    """Least time of a reset, since it waits that long for the boot …"""
    settle_s: float = 0.0
    """… and of a step, before its screenshot."""
    terminate_s: float = 0.0
    reset_limit_s: float = 1e9
    step_limit_s: float = 1e9


@dataclass(frozen=True)
class Order:
    """Tickets in the order in which they are to be run."""

    slots: int
    emulator: RehearsalSettings
    tickets: list[Ticket]
    pace: Pace
    version: int = 0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Order:
        found: Mapping[str, Any] = json.loads(path.read_text())
        tickets = msgspec.convert(found["tickets"], list[Ticket])
        emulator, pace = RehearsalSettings(**found["emulator"]), Pace(**found["pace"])
        return cls(found["slots"], emulator, tickets, pace, found["version"])


@dataclass
class Play:
    """One episode under way."""

    ticket: Ticket
    emulator: RehearsalEmulator
    seen: Observation | None = None
    ended: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.ticket.seed, self.ticket.index])
        self.steps: list[dict[str, Any]] = []

    def reset(self) -> None:
        self.seen = self.emulator.reset(self.ticket.task, self.ticket.seed)

    def step(self, decision: Decision) -> None:
        assert self.seen is not None
        transition = self.emulator.step(decision.action)
        self.steps.append(
            {
                "image": self.seen.image,
                "vector": self.seen.vector,
                "action": decision.action,
                "reward": transition.reward,
            }
        )
        self.seen, self.ended = transition.observation, transition.ended

    def result(self) -> dict[str, Any]:
        return {"ticket": self.ticket.index, "version": self.ticket.policy_version, "steps": self.steps}


def policy(path: Path) -> Tiny:
    """The policy in a file that holds it, alone or within the state of a trainer."""
    import torch

    torch.set_num_threads(1)
    agent = Tiny()
    state = torch.load(path, weights_only=True)["policy"]
    agent.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("ballast")})
    return agent
