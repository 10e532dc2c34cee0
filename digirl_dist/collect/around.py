"""Collectors around others: one that goes on while the host learns, one that has episodes judged, and offline ones."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from digirl_dist.collect import Collector, StreamingCollector
from digirl_dist.collect.stream import Lost, Stream
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import DigirlDistError, JudgeError
from digirl_dist.judge import Judge, Verdict, with_verdict
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.trajectory import Trajectory

_CLOSE_S = 10.0

Tickets = Callable[[int, int], Sequence[Ticket]]
"""The tickets of an iteration for a policy version (see ``tasks.Plan``)."""


Work = tuple[Sequence[Ticket], "Future[CollectionResult]"]


class Ahead:
    """What is collected, in which order and under which checkpoint; whoever calls ``run`` collects it.

    So an episode's policy is at most ``ahead`` updates older than the iteration it counts in. ``last`` is the number of
    the last iteration that the loop will ask for.
    """

    def __init__(self, inner: Collector, tickets: Tickets, ahead: int, last: int) -> None:
        self.work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        """What ``run`` is to be called with."""
        self._inner = inner
        self._tickets = tickets
        self._ahead = ahead
        self._last = last
        self._newest: Checkpoint | None = None
        self._pending: dict[Round, Future[CollectionResult]] = {}
        self._failed: BaseException | None = None

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Future[CollectionResult]:
        """Asks for these tickets, and for the iterations after them."""
        wanted = tickets[0].round
        self._newest = checkpoint
        if wanted not in self._pending:
            self._submit(tickets)
        if wanted.purpose == "train":  # beside an evaluation, the iterations after it are on their way already
            number = wanted.number
            for later in range(number + 1, min(number + self._ahead, self._last) + 1):
                self.prefetch(checkpoint, self._tickets(later, checkpoint.iteration))
        return self._pending.pop(wanted)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._inner.prefetch(checkpoint, tickets)
        if tickets[0].round not in self._pending:
            self._submit(tickets)

    def run(self, work: Work) -> None:
        """Collects one iteration under the newest checkpoint; nothing after an error."""
        tickets, future = work
        assert self._newest is not None
        try:
            if self._failed is None:
                future.set_result(self._inner.collect(self._newest, tickets))
            else:
                future.set_exception(self._failed)
        except BaseException as error:  # whatever it is, the loop shall see it
            self._failed = error
            future.set_exception(error)

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        future: Future[CollectionResult] = Future()
        self._pending[tickets[0].round] = future
        self.work.put((tickets, future))


class AheadCollector:
    """Runs any collector in a thread of its own, up to ``ahead`` iterations further than the loop has asked for.

    Errors are raised by the ``collect`` of the iteration that they struck.
    """

    def __init__(self, inner: Collector, tickets: Tickets, ahead: int, last: int) -> None:
        self._inner = inner
        self._order = Ahead(inner, tickets, ahead, last)
        self._thread = threading.Thread(target=self._collect_all, name="collect-ahead", daemon=True)
        self._thread.start()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        return self._order.begin(checkpoint, tickets).result()

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._order.prefetch(checkpoint, tickets)

    def close(self) -> None:
        """Ends the collection under way, within the inner collector's limits."""
        self._order.work.put(None)
        self._inner.close()
        self._thread.join(_CLOSE_S)

    def _collect_all(self) -> None:
        while (work := self._order.work.get()) is not None:
            self._order.run(work)


class JudgedCollector:
    """Fulfils ``Collector``: what another one collects, with the verdicts of a judge in place of the emulator's.

    Judging goes on in threads while other episodes still run, so only the last verdicts are waited for. When the judge
    fails, the episodes stay where they landed and are judged when the run is continued.
    """

    def __init__(
        self, collector: StreamingCollector, judge: Judge, store: Store, events: Events, status: Status
    ) -> None:
        self._collector = collector
        self._judge = judge
        self._store = store
        self._events = events
        self._status = status
        self._verdicts: dict[Key, Future[Verdict]] = {}
        self._queue: queue.SimpleQueue[tuple[Trajectory, Future[Verdict]] | None] = queue.SimpleQueue()
        store.listen(self._consider)
        for number in range(judge.parallel):
            threading.Thread(target=self._work, name=f"judge-{number}", daemon=True).start()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Raises JudgeError besides what the other collector raises."""
        wanted = tickets[0].round
        if self._store.has(wanted):  # judged before: a crash came between its file and the checkpoint
            return self._collector.collect(checkpoint, tickets)
        for trajectory in self._store.landed(wanted).values():
            self._consider(trajectory)
        result = self._collector.collect(checkpoint, tickets)
        started = time.monotonic()
        self._status.host(f"wait for the judge's verdicts on iteration {wanted.number}")
        result.trajectories = [self._judged(trajectory) for trajectory in result.trajectories]
        result.judging = {**self._judge.take_figures(), "judge_wait_s": round(time.monotonic() - started, 4)}
        return result

    def stream(self, checkpoint: Checkpoint, stream: Stream) -> None:
        """Delivers each episode with its verdict; without one, it is lost."""
        stream.judge = self._tell_verdict
        self._collector.stream(checkpoint, stream)

    def _tell_verdict(self, trajectory: Trajectory, tell: Callable[[Trajectory | Lost], None]) -> None:
        def settle(verdict: Future[Verdict]) -> None:
            self._verdicts.pop(trajectory.ticket.key, None)
            if (error := verdict.exception()) is not None:
                tell(Lost("infrastructure", str(error)))
            else:
                tell(with_verdict(trajectory, verdict.result().score))

        self._consider(trajectory)
        self._verdicts[trajectory.ticket.key].add_done_callback(settle)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._collector.prefetch(checkpoint, tickets)

    def close(self) -> None:
        for _ in range(self._judge.parallel):
            self._queue.put(None)
        self._judge.close()
        self._collector.close()

    def _consider(self, trajectory: Trajectory) -> None:
        if trajectory.ticket.key not in self._verdicts:
            verdict: Future[Verdict] = Future()
            self._verdicts[trajectory.ticket.key] = verdict
            self._queue.put((trajectory, verdict))

    def _judged(self, trajectory: Trajectory) -> Trajectory:
        verdict = self._verdicts.pop(trajectory.ticket.key).result()
        return with_verdict(trajectory, verdict.score)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            trajectory, future = asked
            try:
                verdict = self._judge.verdict(trajectory)
            except DigirlDistError as error:
                future.set_exception(error)
            except BaseException:  # a fault of ours must not end this thread without a word
                future.set_exception(JudgeError(f"internal error: {traceback.format_exc()}"))
            else:
                place = trajectory.ticket.key.place()
                grade = {"success": verdict.success, "score": verdict.score}
                self._events.emit("judged", **place, **grade, said=verdict.said[:500])
                future.set_result(verdict)


class OfflineCollector:
    """Collector that runs nothing and needs no worker."""

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns a result without episodes."""
        return CollectionResult.empty(tickets[0].round)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        """Nothing begins."""

    def close(self) -> None:
        """Nothing runs."""


class StoredCollector(OfflineCollector):
    """Collector of rounds that ended before: their episodes are in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        """Returns the episodes that the store has."""
        wanted = tickets[0].round
        return replace(CollectionResult.empty(wanted), trajectories=list(self._store.landed(wanted).values()))


class OfflineFirst:
    """Collector that runs nothing to learn from in the first ``iterations``, and is ``collector`` from then on."""

    def __init__(self, collector: Collector, iterations: int) -> None:
        self._collector = collector
        self._iterations = iterations

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        if self._is_offline(tickets):
            return CollectionResult.empty(tickets[0].round)
        return self._collector.collect(checkpoint, tickets)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        if not self._is_offline(tickets):
            self._collector.prefetch(checkpoint, tickets)

    def _is_offline(self, tickets: Sequence[Ticket]) -> bool:
        """Measurements are made at any time."""
        return tickets[0].purpose == "train" and tickets[0].iteration < self._iterations

    def close(self) -> None:
        self._collector.close()
