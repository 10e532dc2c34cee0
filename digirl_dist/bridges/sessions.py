"""Sessions with environments on workers that have only sshd, spread evenly: one program and one channel per worker."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from digirl_dist.bridges.remote import Machine, Remote
from digirl_dist.errors import EmulatorError, WorkerError
from digirl_dist.settings import LimitSettings
from digirl_dist.types import Json, Natural

_MOST_BYTES = 64 << 20
"""Of one answer."""


class _Told(msgspec.Struct):
    session: Natural
    answer: str = ""
    error: str | None = None


_TOLD = msgspec.msgpack.Decoder(_Told)


class _Program:
    """The program of one worker that has its sessions, and the thread that reads what it sends."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.lost: WorkerError | None = None
        self.told: dict[int, queue.Queue[_Told | WorkerError]] = {}
        """What has come for each session: at most the one answer that it waits for."""
        self._lock = threading.Lock()
        threading.Thread(target=self._read, name=f"sessions-{remote.name}", daemon=True).start()

    def open(self, number: int) -> queue.Queue[_Told | WorkerError]:
        with self._lock:
            return self.told.setdefault(number, queue.Queue(1))

    def write(self, message: Mapping[str, Json]) -> None:
        """Raises WorkerError, and so does everything from then on."""
        if self.lost is not None:
            raise self.lost
        try:
            self.remote.write(message)
        except WorkerError as error:
            self._lose(error)
            raise

    def _read(self) -> None:
        try:
            while True:
                told = self.remote.frame(math.inf, _TOLD, _MOST_BYTES)
                if (waiting := self.told.get(told.session)) is not None:
                    waiting.put_nowait(told)
        except queue.Full:
            self._lose(WorkerError(self.remote.name, "it answers what nobody asked"))
        except WorkerError as error:
            self._lose(error)

    def _lose(self, error: WorkerError) -> None:
        with self._lock:
            self.lost = error
            for waiting in list(self.told.values()):  # who is told closes its session at once
                with suppress(queue.Full):
                    waiting.put_nowait(error)
        self.remote.close()


class Session:
    """One environment on a worker, which may be lost."""

    def __init__(self, program: _Program, number: int, variables: Mapping[str, str]) -> None:
        self.worker = program.remote.name
        self.program = program
        self._number = number
        self._variables = dict(variables)
        self._told = program.open(number)

    def say(self, message: str, limit_s: float) -> str:
        """Returns the environment's answer. Raises WorkerError or EmulatorError if there is none."""
        self.program.write({"session": self._number, "variables": self._variables, "say": message})
        try:
            told = self._told.get(timeout=limit_s)
        except queue.Empty:
            raise WorkerError(self.worker, f"an environment did not answer within {limit_s:g} s") from None
        if isinstance(told, WorkerError):
            raise told
        if told.error is not None:
            raise EmulatorError(f"an environment of worker {self.worker} is lost: {told.error}")
        return told.answer

    def close(self) -> None:
        self.program.told.pop(self._number, None)
        with suppress(WorkerError):  # it is gone as it is
            self.program.write({"session": self._number})


class Sessions:
    """Opens sessions on the worker that has the fewest, and has lost the fewest."""

    def __init__(self, found: Sequence[Machine], packed: bytes, limits: LimitSettings, seed: int) -> None:
        """``packed``: what makes a ``worker_program.sessions.Session`` on a worker of environment variables."""
        self.limits = limits
        self.seeds = itertools.count(seed + 1)
        self.moved: list[str] = []
        """The reason of each loss, after which an episode was repeated elsewhere."""
        self._packed = packed
        self._machines = {machine.name: machine for machine in found}
        self._programs: dict[str, _Program] = {}
        self._losses: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @property
    def workers(self) -> dict[str, int]:
        """The number of sessions on each worker that is there."""
        return {name: self._count(name) for name in list(self._machines)}

    def open(self, variables: Mapping[str, str]) -> Session:
        """Raises WorkerError if no worker is left."""
        with self._lock:
            while self._machines:
                name = min(self._machines, key=lambda each: self._count(each) + self._losses[each])
                try:
                    program = self._programs.get(name)
                    if program is None or program.lost is not None:
                        program = self._programs[name] = _Program(self._machines[name].start(self._packed, "sessions"))
                    return Session(program, next(self._numbers), variables)
                except WorkerError as error:
                    self.moved.append(str(error))
                    self._machines.pop(name).connection.close()
            raise WorkerError("the fleet", f"no worker is left: {'; '.join(self.moved[-5:])}")

    def lose(self, session: Session, error: Exception) -> None:
        """Notes that a session is lost, perhaps with its worker."""
        session.close()
        with self._lock:
            self.moved.append(f"{session.worker}: {error}")
            self._losses[session.worker] += 1
            machine = self._machines.get(session.worker)
            if machine is not None and session.program.lost is not None and not machine.connection.answers():
                self._machines.pop(session.worker).connection.close()

    def close(self) -> None:
        """Ends all sessions. Whoever asks for another one is told that no worker is left."""
        with self._lock:
            self._machines.clear()
            for program in self._programs.values():
                program.remote.close()

    def _count(self, name: str) -> int:
        program = self._programs.get(name)
        return 0 if program is None or program.lost is not None else len(program.told)
