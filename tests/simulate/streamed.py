"""A simulated run whose hosts ask for rollouts by key, in place of iterations to learn from."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from digirl_dist.collect.leases import Lost
from digirl_dist.collect.stream import Request, Rollout, Stream
from digirl_dist.errors import CollectionError
from digirl_dist.tasks import Task
from simulate.run import SimulatedRun
from simulate.scenario import Scenario
from simulate.store import MemoryLog
from simulate.world import Violation


class StreamedRun(SimulatedRun):
    """Every host asks for the same keys, and again for those that were lost, until all have an episode."""

    def __init__(self, scenario: Scenario, keep_trace: bool = False) -> None:
        super().__init__(scenario, keep_trace)
        count = scenario.schedule.rollout_size * scenario.schedule.iterations
        self._requests = [Request(Task("t"), 7919 * number, f"k{number}") for number in range(count)]
        self._log = MemoryLog(self._touches)
        self._delivered: dict[str, str] = {}
        """Key and episode."""

    def _work(self) -> None:
        pool, checkpoint = self.host.collector, SimpleNamespace(iteration=self.hosts)
        stream = Stream(pool, self._log, self._first_page())
        pool.act_with(checkpoint)  # type: ignore[arg-type]
        open_ = self._asked(stream, self._requests)
        while open_:
            pool.turn()
            over = [one for one in open_ if one.done()]
            open_ = [one for one in open_ if not one.done()] + self._asked(stream, self._lost(over))
        pool.close()
        stream.broke("infrastructure", CollectionError("closed"))

    def _asked(self, stream: Stream, requests: list[Request]) -> list[Rollout]:
        return stream.ask(requests) if requests else []

    def _lost(self, over: list[Rollout]) -> list[Request]:
        """Notes what was delivered; returns what is to be asked for again."""
        lost = []
        for rollout in over:
            found: Any = rollout.result()
            if isinstance(found, Lost):
                lost += [one for one in self._requests if one.key == rollout.key]
                continue
            before = self._delivered.setdefault(str(rollout.key), found.episode_id)
            if before != found.episode_id:
                raise Violation("exactly once", f"{rollout.key} has two episodes: {before}, {found.episode_id}")
        return lost

    def _first_page(self) -> int:
        """As ``Fleet`` finds it."""
        store, leased = self.disk.store, [grant.key.iteration for grant in self.disk.ledger.known()]
        return max([wanted.number for wanted in (*store.files, *store.episodes)] + leased, default=-1) + 1

    def _check(self) -> None:
        store = self.disk.store
        homes = Counter(one.episode_id for file in store.files.values() for one in file)
        if store.unfinished():
            raise Violation("exactly once", f"pages without a file: {store.unfinished()}")
        if sorted(homes) != sorted(self._delivered.values()) or set(homes.values()) != {1}:
            raise Violation("exactly once", f"{homes} is not what was delivered: {self._delivered}")
