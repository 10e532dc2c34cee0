"""What happens in one simulated run, all of it drawn from a seed: the machines, the settings, the faults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from typing import get_args

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.protocol.messages import HostMessage, WorkerMessage
from digirl_dist.settings import LimitSettings
from simulate.faults import KINDS, Fault
from simulate.host import Schedule

LIMITS = LimitSettings(
    boot_s=5.0,
    reset_s=5.0,
    step_s=2.0,
    quarantine_s=10.0,
    lease_s=40.0,
    episode_attempts=8,
    silence_s=6.0,
    start_s=8.0,
    stuck_s=12.0,
    back_off_s=0.5,
    back_off_max_s=8.0,
    steady_s=5.0,
    no_worker_s=60.0,
    orphan_s=20.0,
)
"""Short, so that a run sees many of them pass."""

_HORIZON_S = 25.0
_MESSAGES = [kind.__name__ for kind in (*get_args(HostMessage), *get_args(WorkerMessage))]


@dataclass(frozen=True)
class MachineTraits:
    """Mean seconds of what a machine does, and how its link is."""

    slots: int
    episode_s: float
    reset_s: float
    boot_s: float
    load_s: float
    connect_s: float
    latency_s: float
    jitter_s: float
    rate: float


@dataclass(frozen=True)
class Scenario:
    """One run. A smaller one of the same seed has the same machines, tickets and faults as far as it has them."""

    seed: int
    machines: tuple[MachineTraits, ...]
    schedule: Schedule
    faults: tuple[Fault, ...]

    def smaller(
        self,
        workers: int | None = None,
        tickets: int | None = None,
        iterations: int | None = None,
        faults: Collection[int] | None = None,
    ) -> Scenario:
        """Returns the run with so many workers, tickets in an iteration and iterations, and these faults alone."""
        machines = self.machines[:workers]
        left = [fault for fault in self.faults if fault.worker < len(machines)]
        kept = tuple(fault for fault in left if faults is None or fault.number in faults)
        size, number = tickets or self.schedule.rollout_size, iterations or self.schedule.iterations
        schedule = replace(self.schedule, rollout_size=size, iterations=number)
        return replace(self, machines=machines, schedule=schedule, faults=kept)


def draw(seed: int, workers: int | None = None, slots: int | None = None) -> Scenario:
    """Returns the run of this seed; ``workers`` and ``slots`` replace what it would draw."""
    rng = Random(f"scenario {seed}")
    count = rng.choice((1, 2, 2, 3, 3, 4)) if workers is None else workers
    machines = tuple(_machine(Random(f"machine {seed} {number}"), slots) for number in range(count))
    faults = tuple(_fault(Random(f"fault {seed} {number}"), number, count) for number in range(rng.randrange(7)))
    return Scenario(seed, machines, _schedule(rng, seed), faults)


def _machine(rng: Random, slots: int | None) -> MachineTraits:
    return MachineTraits(
        slots=rng.randint(1, 3) if slots is None else slots,
        episode_s=rng.choice((0.3, 1.0, 1.0, 4.0)),
        reset_s=rng.choice((0.0, 0.1, 1.0)),
        boot_s=rng.choice((0.0, 0.5, 3.0)),
        load_s=rng.choice((0.0, 0.0, 0.5)),
        connect_s=rng.choice((0.02, 0.5)),
        latency_s=rng.choice((0.0, 0.005, 0.1)),
        jitter_s=rng.choice((0.0, 0.01, 0.3)),
        rate=rng.choice((1e8, 1e6, 2e5)),
    )


def _schedule(rng: Random, seed: int) -> Schedule:
    return Schedule(
        limits=LIMITS,
        rules=DispatchRules(rng.randrange(3), rng.random() < 0.7),
        iterations=rng.randint(1, 4),
        rollout_size=rng.randint(2, 10),
        ahead=rng.choice((0, 0, 1, 2)),
        evaluate_every=rng.choice((0, 0, 1, 2)),
        evaluation_episodes=rng.randint(1, 4),
        update_s=rng.choice((0.0, 0.2, 3.0)),
        seed=seed,
    )


def _fault(rng: Random, number: int, workers: int) -> Fault:
    kind = rng.choice(sorted(KINDS))
    at = _HORIZON_S * rng.random() ** 2
    on = (rng.choice(_MESSAGES), rng.choice((1, 1, 2, 3, 5))) if rng.random() < 0.5 else None
    seconds = rng.choice((0.1, 1.0, 3.0, 9.0, 15.0, 30.0))
    return Fault(number, kind, rng.randrange(workers), at, seconds, on, rng.random() < 0.5)
