"""Collection whose episodes are judged on the host, each as soon as it has landed."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from digirl_dist.collect import Collector
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import DigirlDistError, JudgeError
from digirl_dist.judge import Judge, Verdict
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Ticket
from digirl_dist.trajectory import Trajectory


class JudgedCollector:
    """Fulfils ``Collector``: what another one collects, with the verdicts of a judge in place of the emulator's.

    Judging goes on in threads while other episodes still run, so only the last verdicts are waited for. When the judge
    fails, the episodes stay where they landed and are judged when the run is continued.
    """

    def __init__(self, collector: Collector, judge: Judge, store: Store, events: Events, status: Status) -> None:
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
        return with_verdict(trajectory, verdict.success)

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
                self._events.emit("judged", **place, success=verdict.success, said=verdict.said[:500])
                future.set_result(verdict)


def with_verdict(trajectory: Trajectory, success: bool) -> Trajectory:
    """Returns the episode with the judge's rewards: 1.0 in the last step of a success, else 0."""
    last = len(trajectory.steps) - 1
    steps = [replace(step, reward=float(success and n == last)) for n, step in enumerate(trajectory.steps)]
    return replace(trajectory, steps=steps, success=success)
