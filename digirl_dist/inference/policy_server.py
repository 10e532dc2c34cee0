"""Answers the requests of all workers in batches, and restarts the policy process after a loss."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, cast

from digirl_dist.agent.contract import ActsAsNamed
from digirl_dist.child_process import environment, last_lines, opened_log
from digirl_dist.errors import PolicyLostError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceFailure, InferenceReply, InferenceRequest
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status, WorkerStatus
from digirl_dist.threads import SerialQueue, after, fulfil
from digirl_dist.types import T

_END_S = 5.0


class PolicyProcess:
    """The policy process, used by one thread except for ``close``. A request after PolicyLostError starts a new one."""

    def __init__(self, packed_agent: bytes, log: Path, limit_s: float, newest: bool = False) -> None:
        """``newest``: that version acts for all episodes."""
        self._packed_agent = packed_agent
        self._words = ["newest"] if newest else []
        self._log = log
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._serving: Mapping[int, Checkpoint] = {}

    def serve(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, str]:
        """Makes exactly these versions act; returns those that cannot be loaded, with the reason."""
        if self._connection is None:
            self._start()
        if checkpoints == self._serving:
            return {}
        missing: dict[int, str] = self._ask("serve", dict(checkpoints), "load a policy")
        self._serving = dict(checkpoints)
        return missing

    def decide(self, requests: Sequence[InferenceRequest]) -> list[InferenceReply]:
        """Returns one reply per request, in any order."""
        answers: list[InferenceReply] = self._ask("decide", list(requests), f"decide {len(requests)} actions")
        return answers

    def close(self) -> None:
        """Kills the process. A request running in another thread then raises PolicyLostError."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait(_END_S)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, opened_log(self._log) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "digirl_dist.inference.policy_process", str(theirs.fileno()), *self._words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
            )
        self._connection, self._serving = Connection(ours.detach()), {}
        with suppress(OSError), after(self._limit_s, self._process.kill):  # what has ended, the first request reports
            self._connection.send_bytes(self._packed_agent)

    def _ask(self, request: str, content: Any, doing: str) -> Any:
        """Sends a request and returns its reply. Raises PolicyLostError if the process ends or exceeds the limit.

        A process that is stuck is killed at the limit, because neither sending nor receiving ends by itself.
        """
        assert self._connection is not None
        assert self._process is not None
        deadline = time.monotonic() + self._limit_s
        try:
            with after(self._limit_s, self._process.kill):
                self._connection.send((request, content))
                return self._connection.recv()
        except (EOFError, OSError):
            if time.monotonic() >= deadline:
                reason = f"did not {doing} within {self._limit_s:.0f} s"
            else:
                reason = f"ended while it had to {doing}{last_lines(self._log)}"
        self._connection.close()
        self._connection = None
        self.close()
        raise PolicyLostError(f"the host's policy process {reason}")


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

    def rest(self) -> None:
        """Notes that nothing is asked until the next ``serve``. It may wait for what is still being answered."""

    def close(self) -> None: ...


@dataclass
class _Asked:
    request: InferenceRequest
    tell: Callable[[InferenceReply], None]
    at: float = field(default_factory=time.monotonic)
    is_repeated: bool = False


class InThisProcess:
    """Acts in place of a ``PolicyProcess``: for a caller's own function, which nothing can carry elsewhere.

    Nothing can end a function that hangs, either. What it was asked fails at the limit, and so does all that it is
    asked until it returns: it is never called twice at a time.
    """

    def __init__(self, agent: ActsAsNamed, limit_s: float) -> None:
        self._agent = agent
        self._policies = LocalPolicies(lambda: cast(Any, agent), newest=True)
        self._limit_s = limit_s
        self._serving: Mapping[int, Checkpoint] = {}
        self._renew()

    def serve(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, str]:
        """Raises PolicyLostError, as ``decide``."""
        if checkpoints != self._serving:
            self._within_limit(partial(self._load, checkpoints), "return")
            self._serving = dict(checkpoints)
        return {}

    def decide(self, requests: Sequence[InferenceRequest]) -> list[InferenceReply]:
        """Returns one reply per request. Raises PolicyLostError if the function does not return in time."""
        return self._within_limit(partial(self._decide, requests), f"decide {len(requests)} actions")

    def close(self) -> None:
        """Nothing of it outlives the caller."""
        self._queue.close(at_once=True)

    def _renew(self, _: Exception | None = None) -> None:
        """Where the machine refused a thread, it may give one to what is asked next."""
        self._queue = SerialQueue("act", self._renew)

    def _within_limit(self, work: Callable[[], T], doing: str) -> T:
        done: Future[T] = Future()
        self._queue.do(partial(fulfil, done, work))
        if not wait([done], self._limit_s).done:
            done.cancel()
            raise PolicyLostError(f"the function that acts did not {doing} within {self._limit_s:g} s")
        return done.result()

    def _load(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        self._policies.serve(checkpoints[max(checkpoints)], set())
        self._agent.came(max(checkpoints))

    def _decide(self, requests: Sequence[InferenceRequest]) -> list[InferenceReply]:
        self._policies.ask(requests)
        return self._policies.answers()


class PolicyServer:
    """Fulfils HostPolicy by a thread that decides batches, in a process of their own or in this one."""

    def __init__(
        self, process: PolicyProcess | InThisProcess, batching: Batching, limit_s: float, events: Events, status: Status
    ) -> None:
        self._process = process
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

    def rest(self) -> None:
        """Changes nothing: the policy's memory is the trainer's device's."""

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
            return [self._asked.popleft() for _ in range(min(len(self._asked), self._batching.size))]

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
