"""Many worker programs in one process, whose emulators pass time on one clock instead of sleeping in a process each.

Beside the emulators' processes everything is the worker program's own: its link, its folder, the rollout, the policy.
``python -m benchmarks.many_workers SLOTS FOLDER...`` prints ``ready`` and serves until its stdin ends.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import SlotLimits, StartJob
from digirl_dist.rollout.emulator_process import Pipe, plain
from digirl_dist.rollout.slot import Slot, State
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json
from digirl_dist.user_code.packing import unpack_file
from digirl_dist.worker_program.link import SocketLink
from digirl_dist.worker_program.program import Program
from digirl_dist.worker_program.spool import FileBlobs

_LIMIT_S = 3600.0


class Clock:
    """Sends what is due, when it is due, from a thread of its own."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Pipe, Any]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, after_s: float, pipe: Pipe, answer: Any) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + after_s, next(self._numbers), pipe, answer))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, pipe, answer = heapq.heappop(self._due)
            try:
                pipe.send(answer)
            except OSError:
                pass  # its slot was closed meanwhile


class ClockSlot(Slot):
    """A slot whose emulator tells the clock how long it would have slept."""

    def __init__(self, index: int, device: Mapping[str, Any], clock: Clock) -> None:
        super().__init__(index, Path(), SlotLimits(), Path())
        ours, theirs = socket.socketpair()
        self.pipe, self._answers = Pipe(ours), Pipe(theirs)
        self._clock = clock
        self._slept = 0.0
        self._emulator = RehearsalEmulator(**device, sleep=self._sleep)
        self._enter(State.idle, "", float("inf"))

    def _sleep(self, seconds: float) -> None:
        self._slept += seconds

    def reset(self, task: Task, seed: int, is_excused: bool = False) -> None:
        self._slept = 0.0
        self._answer_later("reset", self._emulator.reset(task, seed))

    def step(self, action: Json) -> None:
        self._slept = 0.0
        self._answer_later("step", self._emulator.step(action))

    def _answer_later(self, request: str, answer: Observation | Transition) -> None:
        self._enter(State.asked, request, _LIMIT_S)
        self._clock.send(self._slept, self._answers, ("done", plain(answer), self._slept))


class ManyProgram(Program):
    """A worker program with slots of that clock."""

    def __init__(self, folder: JobFolder, clock: Clock) -> None:
        super().__init__(folder, SocketLink(folder), FileBlobs(folder), orphan_s=600.0, package="")
        self._clock = clock

    def _new_slots(self, job: StartJob, count: int) -> list[Slot]:
        device = unpack_file(self._blobs.file(job.emulator)).keywords
        return [ClockSlot(number, device, self._clock) for number in range(count)]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    clock = Clock()
    for name in sys.argv[1:]:
        folder = JobFolder(Path(name))
        folder.create()
        os.chdir(folder.root)  # the program listens on a path relative to it
        program = ManyProgram(folder, clock)
        threading.Thread(target=program.run, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
