"""Answers the requests of all workers in batches, and restarts the policy process after a loss."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from digirl_dist.agent import AgentFactory
from digirl_dist.errors import PolicyLostError
from digirl_dist.inference.child import PolicyProcess
from digirl_dist.inference.requests import InferenceFailure, InferenceReply, InferenceRequest
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status, WorkerStatus
from digirl_dist.user_code.packing import pack

_STOP_S = 5.0


@dataclass(frozen=True)
class Batching:
    """When a batch is decided: once ``size`` requests wait, or the oldest has waited ``wait_s`` seconds."""

    size: int
    wait_s: float


class HostPolicy(Protocol):
    """The policy of all workers. Its methods may be called from any thread and never wait long."""

    def serve(self, checkpoint: Checkpoint, in_use: Set[int]) -> None:
        """Makes this checkpoint the newest policy; of the versions already loaded, keeps those ``in_use``."""

    def ask(self, request: InferenceRequest, tell: Callable[[InferenceReply], None]) -> None:
        """Calls ``tell`` once, with the reply, in another thread; ``tell`` must not block."""

    def close(self) -> None: ...


@dataclass
class _Asked:
    request: InferenceRequest
    tell: Callable[[InferenceReply], None]
    at: float = field(default_factory=time.monotonic)
    is_repeated: bool = False


class PolicyServer:
    """Fulfils HostPolicy with a process of its own, which decides batches."""

    def __init__(
        self, agent: AgentFactory, batching: Batching, limit_s: float, log: Path, events: Events, status: Status
    ) -> None:
        self._process = PolicyProcess(pack(agent), log, limit_s)
        self._batching = batching
        self._limit_s = limit_s
        self._events = events
        self._status = status
        self._seen = status.policy = WorkerStatus("start")
        self._asked: deque[_Asked] = deque()
        self._checkpoints: dict[int, Checkpoint] = {}
        self._is_new = False
        self._closing = False
        self._something = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self._thread.start()

    def serve(self, checkpoint: Checkpoint, in_use: Set[int]) -> None:
        with self._something:
            kept = {version: known for version, known in self._checkpoints.items() if version in in_use}
            self._checkpoints = {**kept, checkpoint.iteration: checkpoint}
            self._is_new = True
            self._something.notify()

    def ask(self, request: InferenceRequest, tell: Callable[[InferenceReply], None]) -> None:
        with self._something:
            self._asked.append(_Asked(request, tell))
            self._something.notify()

    def close(self) -> None:
        with self._something:
            self._closing = True
            self._something.notify()
        self._process.close()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._closing:
            self._does("wait for requests", None)
            batch = self._next()
            try:
                if not self._closing:
                    self._bring_up_to_date()
                    self._decide(batch)
            except PolicyLostError as error:
                self._lost(str(error), batch)
            except Exception:  # a defect here must not end this thread silently
                self._lost(f"internal error, please report it: {traceback.format_exc()}", batch)
        self._process.close()

    def _next(self) -> list[_Asked]:
        """Returns the next batch; an empty one if new policies must be loaded first."""
        with self._something:
            self._something.wait_for(lambda: self._closing or self._is_new or (self._asked and self._checkpoints))
            if self._asked and not self._is_new:
                left_s = self._asked[0].at + self._batching.wait_s - time.monotonic()
                self._something.wait_for(lambda: self._closing or len(self._asked) >= self._batching.size, left_s)
            self._is_new = False
            count = min(len(self._asked), self._batching.size)
            return [self._asked.popleft() for _ in range(count)]

    def _bring_up_to_date(self) -> None:
        checkpoints = self._checkpoints
        self._does(f"load policy versions {sorted(checkpoints)}", self._limit_s)
        for version, reason in self._process.serve(checkpoints).items():
            self._events.emit("policy_refused", version=version, reason=reason)

    def _decide(self, batch: list[_Asked]) -> None:
        if not batch:
            return
        self._does(f"decide {len(batch)} actions", self._limit_s)
        places = dict(enumerate(batch))  # numbers of different workers may be the same
        requests = [replace(asked.request, number=place) for place, asked in places.items()]
        for answer in self._process.decide(requests):
            asked = places[answer.number]
            asked.tell(replace(answer, number=asked.request.number))

    def _lost(self, reason: str, batch: list[_Asked]) -> None:
        """Repeats the lost requests once. A request lost twice may be the cause, so it fails and its episode reruns."""
        if self._closing:
            return
        self._seen.last_trouble, self._seen.troubled_at = reason, time.monotonic()
        self._events.emit("policy_lost", reason=reason, requests=len(batch))
        for asked in batch:
            if asked.is_repeated:
                asked.tell(InferenceFailure(asked.request.number, reason))
        again = [asked for asked in batch if not asked.is_repeated]
        for asked in again:
            asked.is_repeated = True
        with self._something:
            self._asked.extendleft(reversed(again))

    def _does(self, doing: str, limit_s: float | None) -> None:
        self._seen.doing, self._seen.since, self._seen.limit_s = doing, time.monotonic(), limit_s
