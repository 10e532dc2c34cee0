"""One worker's processor time per step, by part, with 8 demo phones and with 8 MiniWoB++ browsers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import show, stage
from digirl_dist.agent.plugins.device import DeviceAgentSettings
from digirl_dist.emulator.plugins import EmulatorPlugin
from digirl_dist.emulator.plugins.miniwob import MiniwobSettings
from digirl_dist.emulator.plugins.phone import PhoneSettings
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceRequest
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.rollout.rollout import Finished, Rollout
from digirl_dist.rollout.slot import Slot, slot_limits
from digirl_dist.settings import LimitSettings
from digirl_dist.tasks import Ticket
from digirl_dist.types import Json
from digirl_dist.user_code.packing import pack
from digirl_dist.worker_program.spool import Spool

SLOTS = sized(8, 1)
DEVICES: dict[str, tuple[EmulatorPlugin, int]] = {
    "phone": (PhoneSettings(), sized(400, 2)),
    "miniwob": (MiniwobSettings(), sized(200, 1)),
}
"""The emulators, and the episodes that each is measured with."""
GOALS = {"phone": "<=5", "miniwob": "<=45"}


class Parts:
    """Processor seconds of this thread by part; each part's own, without those of parts within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        before, self._within = self._within, 0.0
        started = time.thread_time()
        try:
            yield
        finally:
            took = time.thread_time() - started
            self.seconds[name] += took - self._within
            self._within = before + took


class TimedPolicies(LocalPolicies):
    def __init__(self, factory: Any, parts: Parts) -> None:
        super().__init__(factory)
        self._parts = parts

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        self._parts.seconds["batches"] += 1
        with self._parts.of("policy"):
            super().ask(requests)


class TimedSlot(Slot):
    def __init__(self, parts: Parts, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parts = parts

    def answer(self) -> tuple[Any, float] | None:
        with self._parts.of("pipe"):
            return super().answer()

    def step(self, action: Json) -> None:
        with self._parts.of("pipe"):
            super().step(action)


def main() -> None:
    with stage() as here:
        found = {name: _measured(here.folder / name, *device) for name, device in DEVICES.items()}
    show(
        "worker",
        {f"{name}_ms_per_step": (sum(parts.values()), GOALS[name]) for name, (parts, _) in found.items()},
        {name: {"ms_per_step": parts, **others} for name, (parts, others) in found.items()} | {"slots": SLOTS},
    )


def _measured(folder: Path, settings: EmulatorPlugin, episodes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns milliseconds of processor time per step by part, and other figures."""
    parts = Parts()
    tasks = settings.tasks("default", "train")
    with ExitStack() as stack:
        rollout, spool = _worker(folder, settings, parts)
        stack.callback(rollout.close)
        wanted = [Ticket(1, number, tasks[number % len(tasks)], number, 1) for number in range(SLOTS + episodes)]
        rollout.lease(wanted[:SLOTS])
        _collect(rollout, spool, parts, SLOTS)  # so that emulators have started, and libraries are loaded
        parts.seconds.clear()
        of_emulators, started, own = _of_children(), time.monotonic(), time.process_time()
        rollout.lease(wanted[SLOTS:])
        with waiting_for(f"{episodes} episodes of {type(settings).__name__}"):
            steps = _collect(rollout, spool, parts, episodes)
        seconds, own = time.monotonic() - started, time.process_time() - own
        batches = parts.seconds.pop("batches")
        parts.seconds["emulators"] = _of_children() - of_emulators
        parts.seconds["rest"] = own - sum(parts.seconds[name] for name in ("policy", "pipe", "spool"))
    told = {name: round(1000 * spent / steps, 3) for name, spent in parts.seconds.items()}
    return told, {"steps": steps, "steps_per_s": round(steps / seconds, 1), "batch": round(steps / batches, 2)}


def _worker(folder: Path, settings: EmulatorPlugin, parts: Parts) -> tuple[Rollout, Spool]:
    """Returns a rollout as the worker program has it, with an untrained policy of version 1, and its spool."""
    agent, device = DeviceAgentSettings(), settings.build()
    files = JobFolder(folder)
    files.episodes.mkdir(parents=True)
    factory = folder / "emulator"
    factory.write_bytes(pack(agent.wrapped(device.factory)))
    slots = [
        TimedSlot(parts, index, factory, slot_limits(LimitSettings()), folder / f"slot-{index}.log")
        for index in range(SLOTS)
    ]
    build: Callable[[], Any] = agent.build(device.spec)
    policies = TimedPolicies(build, parts)
    policies.load(1, build().state_dict())
    for slot in slots:
        slot.start()
    return Rollout("w0", slots, policies, device.max_steps), Spool(files)


def _collect(rollout: Rollout, spool: Spool, parts: Parts, count: int) -> int:
    """Returns the steps of so many episodes, once they are written."""
    steps = 0
    while count:
        for happened in rollout.turn(0.5):
            if isinstance(happened, Finished):
                with parts.of("spool"):
                    spool.write("bench", happened)
                count, steps = count - 1, steps + len(happened.trajectory.steps)
    return steps


def _of_children() -> float:
    """Returns the processor seconds so far of the emulators' processes that live."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        seconds += times.user + times.system
    return seconds


if __name__ == "__main__":
    measure(main, minutes=10)
