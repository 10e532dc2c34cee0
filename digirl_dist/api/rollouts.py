"""Rollouts of a fleet, one by one and in groups that start alike; and functions of the caller's process that act."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from digirl_dist.agent.contract import ActsAsNamed
from digirl_dist.api.endpoint import Endpoint
from digirl_dist.api.episodes import Episode
from digirl_dist.collect.leases import Lost
from digirl_dist.collect.rollout_log import RolloutLog
from digirl_dist.collect.stream import Request, Rollout, Stream
from digirl_dist.emulator.starts import unlike_starts
from digirl_dist.errors import CollectionError
from digirl_dist.settings import Success
from digirl_dist.tasks import Share, Task, emulator_seeds
from digirl_dist.trajectory import Decision, NoDecision, Observation

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import OpenFleet
    from digirl_dist.storage.checkpoint import Checkpoint

Act = Callable[[Sequence[Observation]], Sequence[Any]] | Endpoint
"""A function that returns a Decision for each observation, or an action, which then counts as certain:
log-probability 0. Or an endpoint."""

_LOOK_S = 0.5


@dataclass(frozen=True)
class Group(Sequence[Episode]):
    """The episodes of one task from one start, and why others of them are missing."""

    task: Task
    seed: int
    episodes: Sequence[Episode]
    missing: Sequence[Lost] = ()

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, place: Any) -> Any:
        return self.episodes[place]


class FunctionAgent(ActsAsNamed):
    """An agent that is a function of the caller's process.

    It has no weights: what it acts with is the caller's.
    """

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> list[Decision | NoDecision]:
        answer: Any = self.acting(observations)
        if isinstance(answer, Iterable) and getattr(answer, "ndim", None) != 0:  # one number of NumPy or torch is none
            return [one if isinstance(one, Decision | NoDecision) else Decision(one, 0.0) for one in answer]
        return cast(list[Decision | NoDecision], answer)  # which ``contract.decisions`` refuses


class Rollouts:
    """What an open fleet was asked for."""

    def __init__(self, fleet: OpenFleet, first_page: int) -> None:
        self._context = context = fleet.context
        self._pool = fleet.pool
        self._seed = context.settings.seed
        self._draws = np.random.default_rng([self._seed, first_page])
        is_judged = context.settings.success is not Success.environment
        self.stream = Stream(self._pool, RolloutLog(context.folder.rollouts), first_page, Episode.of, is_judged)
        self._unlike: set[str] = set()
        """Tasks of which members of a group started differently."""
        self._newest: Checkpoint | None = None
        self._lock = threading.RLock()

    def ask(self, checkpoint: Checkpoint, requests: Sequence[Request], as_page: bool = False) -> list[Rollout]:
        """Returns a rollout for each (see ``Stream.ask``). Those that begin from now on act with the checkpoint."""
        with self._lock:
            self.act_with(checkpoint)
            return self.stream.ask(requests, as_page)

    def act_with(self, checkpoint: Checkpoint) -> None:
        """Has what begins from now on act with the checkpoint, unless a newer one came before."""
        with self._lock:
            if self._newest is not None and checkpoint.iteration <= self._newest.iteration:
                return
            self._newest = checkpoint
            self._pool.act_with(checkpoint)
            self._pool.attend()

    def seed(self, share: Share, label: str | None) -> int:
        """Returns an emulator seed: always the same one for a label, else the next."""
        with self._lock:
            rng = self._draws
            if label is not None:
                digest = hashlib.blake2b(label.encode(), digest_size=8).digest()
                rng = np.random.default_rng([self._seed, int.from_bytes(digest, "big")])
            return emulator_seeds(rng, 1, share)[0]

    def slots(self) -> int:
        """Returns how many slots the workers have brought so far."""
        return sum(len(worker.slots) for worker in dict(self._context.status.workers).values())

    def close(self) -> None:
        self._pool.close()
        self.stream.broke("infrastructure", CollectionError("the fleet was closed"))

    def groups(
        self,
        tasks: Iterable[Task],
        ask: Callable[[int, Task], Sequence[Rollout]],
        ahead: int,
        until: threading.Event,
    ) -> Iterator[Group]:
        """Yields the groups of the tasks in the order in which they are complete, until ``until`` is set.

        Those under way, and those that the caller has not taken yet, have at most ``ahead`` + 1 times as many rollouts
        as there are slots.
        """
        ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        forming: dict[Rollout, _Forming] = {}
        asked, more, size = enumerate(tasks), True, 1
        self._pool.goes_on += 1
        try:
            while not until.is_set():
                while more and (not forming or len(forming) + size <= (ahead + 1) * self.slots()):
                    if (following := next(asked, None)) is None:
                        more = False
                        self._pool.goes_on -= 1
                        break
                    members = ask(*following)
                    size = len(members)
                    group = _Forming(following[1], size)
                    for member in members:
                        forming[member] = group
                        member.add_done_callback(ready.put)
                if not forming:
                    return
                try:
                    rollout: Rollout = ready.get(timeout=_LOOK_S)
                except queue.Empty:  # slots may have come
                    continue
                group = forming[rollout]
                group.results.append(rollout)
                if len(group.results) == group.size:
                    self._look_at_starts(made := group.made())
                    yield made
                    for member in group.results:
                        del forming[member]
        finally:
            self._pool.goes_on -= more
            for unfinished in forming:
                unfinished.cancel()

    def _look_at_starts(self, group: Group) -> None:
        """Reports once for each task that members of a group started differently."""
        for task, reason in unlike_starts(group.episodes, self._context.device.spec.steady).items():
            if task not in self._unlike:
                self._context.events.emit("starts_differ", task=task, reason=reason)
            self._unlike.add(task)


@dataclass(eq=False)
class _Forming:
    """A group under way."""

    task: Task
    size: int
    results: list[Rollout] = field(default_factory=list)

    def made(self) -> Group:
        found = [(rollout.ticket, rollout.result()) for rollout in sorted(self.results, key=lambda one: one.ticket.key)]
        episodes = [one for _, one in found if isinstance(one, Episode)]
        return Group(self.task, found[0][0].seed, episodes, [one for _, one in found if isinstance(one, Lost)])
