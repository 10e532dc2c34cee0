"""Injects one fault after the other into recovered machines, and times each: strike, notice, mending, recovery."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from chaos.content import CONTENT
from chaos.faults import Fault, Scene
from chaos.ground import RunContext
from chaos.hostility import Liar
from chaos.machine import Machine
from chaos.watch import Event, Watch

_STRIKE_TRIES = 400
_EVERY_S = 0.1
_WHY_S = 4.0
_RECOVERY_S = 90.0
_START_S = 150.0
T = TypeVar("T")


@dataclass
class Trial:
    """The outcome of one fault. Times are seconds from its strike."""

    fault: str
    machine: str
    noticed_s: float | None = None
    recovered_s: float | None = None
    problem: str = ""
    lied: tuple[float, float] | None = None
    """From when to when, in monotonic seconds, nothing that the machine says of itself counts."""
    makes_up: bool = False
    """Whether an episode that lands in that time may show what no emulator did, as no host can know better."""


def plan(kinds: Sequence[T], count: int, seed: int) -> list[T]:
    """Returns ``count`` of the kinds in rounds that the seed shuffles, so that each comes equally often."""
    rng = random.Random(seed)
    found: list[T] = []
    while len(found) < count:
        found += rng.sample(kinds, len(kinds))
    return found[:count]


class Chaos:
    """Injects faults into a run on ``ground``; ``trials`` holds their outcomes."""

    def __init__(self, ground: RunContext, watch: Watch, seed: int) -> None:
        self.trials: list[Trial] = []
        self._ground = ground
        self._watch = watch
        self._rng = random.Random(seed)
        self._busy: dict[str, threading.Thread] = {}

    def run(self, faults: Sequence[Fault]) -> None:
        """Starts the run and injects the faults. Raises TimeoutError if the run does not start."""
        self._ground.start_host()
        if self._watch.wait(0.0, lambda event: event.kind == "episode", _START_S) is None:
            raise TimeoutError(f"the run did not start:\n{self._ground.why()}")
        for number, fault in enumerate(faults):
            machine = self._await_free(fault.alone, fault.lie is not None)
            scene = Scene(self._ground, self._watch, machine, random.Random(self._rng.random()))
            trial = Trial(fault.name, machine.name)
            self.trials.append(trial)
            print(f"{number + 1:4d} {fault.name}: {machine.name}", flush=True)
            if fault.alone:
                _try(fault, scene, trial)
            else:
                thread = threading.Thread(target=_try, args=[fault, scene, trial], name=fault.name)
                self._busy[machine.name] = thread
                thread.start()
        self._await_free(all_of_them=True)

    def _await_free(self, all_of_them: bool, may_lie: bool = False) -> Machine:
        """Waits for machines without an active fault and returns one of them at random.

        The first machine never lies: a fleet of liars alone is out of service, and ends its run.
        """
        while True:
            self._ground.keep_host()
            free = [one for one in self._ground.machines if not self._is_busy(one.name)]
            if self._ground.given_up:
                if {one.name for one in self._ground.machines if one not in free} <= self._ground.given_up:
                    self._ground.restart_host()
            elif len(free) == len(self._ground.machines) or not all_of_them:
                if able := [one for one in free if not may_lie or one is not self._ground.machines[0]]:
                    return self._rng.choice(able)
            time.sleep(0.1)

    def _is_busy(self, name: str) -> bool:
        return name in self._busy and self._busy[name].is_alive()


def _try(fault: Fault, scene: Scene, trial: Trial) -> None:
    try:
        (_suffer if fault.lie is None else _suffer_lie)(fault, scene, trial)
    except Exception as error:  # a defect of the test itself must not pass for a recovery
        trial.problem = f"{type(error).__name__}: {error}"


def _suffer(fault: Fault, scene: Scene, trial: Trial) -> None:
    worker = None if fault.alone else scene.machine.name
    try:
        struck_at = _strike(fault, scene)
        told = _await_notice(fault, scene, worker, struck_at)
        trial.noticed_s = None if told is None else told.at - struck_at
        explained = not fault.explanation or _is_explained(fault, scene, worker)
    finally:
        fault.mend(scene)
    if fault.events and told is None:  # an event that a full disk held back appears now
        told = scene.watch.wait(struck_at, lambda event: fault.is_told_by(event, worker), 5.0 if fault.alone else 0.0)
        trial.noticed_s = None if told is None else told.at - struck_at
        if told is None:
            trial.problem = f"not noticed within {fault.limit_s:.0f} s"
    if not explained and not trial.problem:
        trial.problem = f"why does not say {fault.explanation!r}"
        (scene.ground.folder / "host.log").open("a").write(f"\n{trial.problem} of {worker}:\n{scene.ground.why()}\n")
    mended_at = time.monotonic() if told is None or fault.alone else told.at
    _await_recovery(fault, scene, trial, worker, struck_at, mended_at)


def _await_recovery(
    fault: Fault, scene: Scene, trial: Trial, worker: str | None, struck_at: float, since: float
) -> None:
    well = scene.watch.wait(since, _is_well(fault, worker), _RECOVERY_S)
    if well is None:
        trial.problem = f"not well again within {_RECOVERY_S:.0f} s"
    else:
        trial.recovered_s = well.at - struck_at


def _suffer_lie(fault: Fault, scene: Scene, trial: Trial) -> None:
    assert fault.lie is not None
    name, liar, began = scene.machine.name, Liar(scene.ground, scene.watch, scene.machine), _strike(fault, scene)
    try:
        told = liar.tell(fault.lie)
    finally:
        liar.stop()
    trial.noticed_s, trial.problem = told.out_s, told.problem
    if told.is_fatal:
        scene.ground.given_up.add(name)
        while name in scene.ground.given_up:
            time.sleep(_EVERY_S)
    elif told.out_s is None:  # nothing else ends the connection that lies
        scene.machine.relay.cut()
    _await_recovery(fault, scene, trial, name, began, time.monotonic())
    trial.lied, trial.makes_up = (began, time.monotonic()), fault.lie.name in CONTENT


def _strike(fault: Fault, scene: Scene) -> float:
    """Strikes, with repeated tries because the target may not exist yet; returns the time of the strike."""
    for _ in range(_STRIKE_TRIES):
        at = time.monotonic()
        if (fault.alone or scene.watch.is_joined(scene.machine.name)) and fault.strike(scene):
            return at
        time.sleep(_EVERY_S)
    raise TimeoutError("there was nothing to strike")


def _await_notice(fault: Fault, scene: Scene, worker: str | None, since: float) -> Event | None:
    if not fault.events:
        return None
    return scene.watch.wait(since, lambda event: fault.is_told_by(event, worker), fault.limit_s)


def _is_explained(fault: Fault, scene: Scene, worker: str | None) -> bool:
    """Returns whether ``digirl-dist why`` names the worker and the fault once its status is written."""
    deadline = time.monotonic() + _WHY_S
    while True:
        lines = scene.ground.why().splitlines()
        if any(fault.explanation in line and (worker is None or worker in _subject(lines, line)) for line in lines):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def _subject(lines: list[str], line: str) -> str:
    """Returns the line together with the heading of its worker."""
    before = lines[: lines.index(line) + 1]
    return line + next((one for one in reversed(before) if one.startswith("worker ")), "")


def _is_well(fault: Fault, worker: str | None):  # type: ignore[no-untyped-def]
    """Returns the condition of recovery: for an emulator its ready slot, otherwise an episode that lands."""
    if fault.events == ("slot",):
        return lambda event: event.kind == "slot" and event.of(worker) and event.content["state"] == "ready"
    return lambda event: event.kind == "episode" and event.of(worker)
