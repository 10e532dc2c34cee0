"""Collection on this machine: the same slots and rollout as on a worker, with no connection between."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from digirl_dist.agent import AgentFactory
from digirl_dist.checkpoint import Checkpoint
from digirl_dist.collect.account import Account
from digirl_dist.emulator import EmulatorFactory
from digirl_dist.emulator.slot import Slot, SlotLimits
from digirl_dist.errors import HarvestError
from digirl_dist.events import Events
from digirl_dist.fleet.leases import Leases
from digirl_dist.harvest import Harvest
from digirl_dist.rollout import Acting, Failed, Finished, Happening, Rollout, SlotChanged
from digirl_dist.status import Status
from digirl_dist.store import Store
from digirl_dist.tasks import Ticket
from digirl_dist.travel import pack
from digirl_dist.worker.policies import Policies

NAME = "local"
_TURN_S = 0.5


@dataclass(frozen=True)
class InlineJob:
    """What is run: the agent and the emulator, in how many slots, within which limits."""

    agent: AgentFactory
    emulator: EmulatorFactory
    slots: int
    limits: SlotLimits
    max_steps: int | None


class InlineCollector:
    """Runs every ticket in emulator processes of this machine."""

    def __init__(self, job: InlineJob, attempts: int, store: Store, events: Events, status: Status) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="digirl-dist-")
        folder = Path(self._folder.name)
        packed = folder / "emulator"
        packed.write_bytes(pack(job.emulator))
        self._policies = Policies(job.agent)
        slots = [Slot(k, packed, job.limits, folder / f"slot-{k}.log") for k in range(job.slots)]
        self._rollout = Rollout(NAME, slots, self._policies, job.max_steps)
        self._attempts = attempts
        self._store = store
        self._events = events
        self._status = status

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Harvest:
        iteration = tickets[0].iteration
        account = Account(iteration)
        account.trajectories.update(self._store.landed(iteration))
        account.outcome(NAME).slots = len(self._rollout.slots)
        leases = Leases(tickets, set(account.trajectories), self._attempts)
        if leases.open:
            self._policies.load(checkpoint.iteration, checkpoint.state())
            self._policies.retire({ticket.policy_version for ticket in tickets})
            self._rollout.idle("barrier")
            self._rollout.lease(leases.take(NAME, leases.open))
        self._status.host(f"collect iteration {iteration}")
        while leases.open:
            self._look(iteration, leases)
            for happening in self._rollout.turn(_TURN_S):
                self._account_for(happening, account, leases)
            if not self._rollout.in_service():
                reasons = "; ".join(f"slot {slot.index}: {slot.reason}" for slot in self._rollout.slots)
                raise HarvestError(f"no emulator can be run on this machine: {reasons}")
        account.outcome(NAME).slot_seconds = self._rollout.spent()
        self._rollout.idle("update")
        self._status.host(f"store iteration {iteration} and learn from it")
        return account.harvest()

    def _look(self, iteration: int, leases: Leases) -> None:
        """Keep the picture of who waits for whom up to date."""
        here = self._status.worker(NAME)
        here.doing, here.heard_at = "run episodes", time.time()
        here.slots = [asdict(wait) for wait in self._rollout.waits()]
        self._status.collecting(iteration, leases.open)

    def close(self) -> None:
        self._rollout.close()
        self._folder.cleanup()

    def _account_for(self, happening: Happening, account: Account, leases: Leases) -> None:
        match happening:
            case Acting(slot, _):
                account.acting(NAME, slot)
            case SlotChanged(slot, state, reason):
                self._events.emit("slot", worker=NAME, slot=slot, state=state, reason=reason)
            case Failed(ticket, slot, reason):
                leases.fail(NAME, ticket.index, reason)
                account.outcome(NAME).retried += 1
                self._events.emit("episode_retried", worker=NAME, slot=slot, ticket=ticket.index, reason=reason)
                self._rollout.lease(leases.take(NAME, 1))
            case Finished(trajectory, started_at, ended_at, _):
                self._store.land(trajectory)
                leases.land(trajectory.ticket.index)
                account.trajectories[trajectory.ticket.index] = trajectory
                account.ended(NAME, ended_at - started_at, 0.0)
                account.outcome(NAME).episodes += 1
                self._events.emit("episode", worker=NAME, ticket=trajectory.ticket.index, success=trajectory.success)
