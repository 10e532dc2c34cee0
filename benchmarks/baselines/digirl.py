"""DigiRL's recipe: every iteration a new process per worker, one copy after the other, batches in lockstep."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.baselines import shell
from benchmarks.baselines.order import Order, Pace, Play, policy
from benchmarks.stage import ROOT, Machine, Tiny
from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.settings.plugins import values
from digirl_dist.tasks import Ticket

_ATTEMPTS = 3
_REST_S = (5.0, 5.0)
"""Pauses of the host after it has ended the workers' processes."""


def pace(scale: float) -> Pace:
    """The fixed times of the original. Where a rehearsed reset or step takes longer than the pause, only it counts."""
    fixed = Pace(clone_s=2, boot_s=30, settle_s=5, terminate_s=5, reset_limit_s=120, step_limit_s=300)
    return Pace(**{name: value * scale for name, value in vars(fixed).items()})


@dataclass
class DigiRL:
    """The host's half. ``scale``: of the recipe's fixed times; ``light``: without its pauses and clones.

    As the original, it has every worker run its share of the tickets in whole batches.
    """

    folder: Path
    machines: Sequence[Machine]
    scale: float
    light: bool
    weight: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        limits = pace(self.scale)
        fast = Pace(reset_limit_s=limits.reset_limit_s, step_limit_s=limits.step_limit_s)
        self._pace = fast if self.light else limits
        self.folder.mkdir(parents=True)
        self.cold_starts_s: list[float] = []

    def iteration(self, tickets: Sequence[Ticket]) -> float:
        """Collect; the seconds that it took, with the cold start of the worker processes at ``scale`` as well."""
        trainer = self._save_trainer()
        started = time.monotonic()
        for pause in _REST_S:
            for machine in self.machines:
                shell.run(machine.address, "true")
            time.sleep(0 if self.light else pause * self.scale)
        self._on_all(self._prepare, tickets)
        for machine in self.machines:
            shell.send(machine.address, trainer, self._place(machine) / "trainer_current.pt")
        self._on_all(self._work, tickets)
        results = [self._fetch(machine) for machine in self.machines]
        seconds = time.monotonic() - started
        assert sum(len(result["episodes"]) for result in results) == len(tickets), "a batch failed three times"
        cold = float(max(result["cold_start_s"] for result in results))
        self.cold_starts_s.append(cold)
        return seconds - cold * (1 - self.scale)

    def _save_trainer(self) -> Path:
        """Policy, two critics of its size and Adam's two moments of all three, which is what the original copies."""
        agent = Tiny(*self.weight)
        path = self.folder / "trainer_current.pt"
        state = agent.state_dict()
        copies = {f"part_{k}": {name: tensor.clone() for name, tensor in state.items()} for k in range(8)}
        torch.save({"policy": state, **copies}, path)
        return path

    def _place(self, machine: Machine) -> Path:
        return self.folder / machine.address.name

    def _on_all(self, action: Any, tickets: Sequence[Ticket]) -> None:
        """On all workers at once, each with its share of the tickets."""
        count = len(self.machines)
        threads = [
            threading.Thread(target=action, args=(machine, list(tickets[number::count])))
            for number, machine in enumerate(self.machines)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _prepare(self, machine: Machine, tickets: list[Ticket]) -> None:
        place = self._place(machine)
        shell.run(machine.address, f"rm -rf {place} && mkdir -p {place}")
        Order(machine.slots, machine.emulator, tickets, self._pace).write(place / "order.json")

    def _work(self, machine: Machine, tickets: list[Ticket]) -> None:
        command = f"cd {ROOT} && OMP_NUM_THREADS=1 {sys.executable} -m {__spec__.name} {self._place(machine)}"
        subprocess.run(shell.ssh(machine.address, command), check=True, stdin=subprocess.DEVNULL)

    def _fetch(self, machine: Machine) -> dict[str, Any]:
        local = self.folder / f"{machine.address.name}.pkl"
        shell.fetch(machine.address, [self._place(machine) / "trajectories.pkl"], local)
        found: dict[str, Any] = pickle.loads(local.read_bytes())
        return found


class _Worker:
    """The worker's half: batches of as many episodes as there are emulators, all in step."""

    def __init__(self, folder: Path, started: float) -> None:
        self._folder = folder
        self._order = Order.read(folder / "order.json")
        self._agent = policy(folder / "trainer_current.pt")
        self._pool = ThreadPoolExecutor(64)
        self.cold_start_s = time.time() - started

    def run(self) -> None:
        size, episodes = self._order.slots, []
        for first in range(0, len(self._order.tickets), size):
            episodes += self._until_it_works(self._order.tickets[first : first + size])
        part = self._folder / "trajectories.part"
        part.write_bytes(pickle.dumps({"episodes": episodes, "cold_start_s": self.cold_start_s}))
        shutil.move(part, self._folder / "trajectories.pkl")

    def _until_it_works(self, tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
        for _ in range(_ATTEMPTS):
            try:
                return self._batch(tickets)
            except TimeoutError:
                print(json.dumps({"lost": [ticket.index for ticket in tickets]}), file=sys.stderr)
        return []

    def _batch(self, tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
        pace = self._order.pace
        time.sleep(pace.clone_s * len(tickets))
        plays = [Play(ticket, RehearsalEmulator(**values(self._order.emulator))) for ticket in tickets]
        self._together([play.reset for play in plays], pace.boot_s, pace.reset_limit_s)
        while running := [play for play in plays if not play.ended]:
            self._advance(running)
        time.sleep(pace.terminate_s)
        return [play.result() for play in plays]

    def _advance(self, plays: Sequence[Play]) -> None:
        with torch.inference_mode():
            decisions = self._agent.act([play.seen for play in plays if play.seen], [play.rng for play in plays])
        pace = self._order.pace
        steps = [lambda play=play, made=made: play.step(made) for play, made in zip(plays, decisions, strict=True)]
        self._together(steps, pace.settle_s, pace.step_limit_s)

    def _together(self, actions: Sequence[Any], least_s: float, limit_s: float) -> None:
        """All at once; waits for the slowest. Raises TimeoutError, which costs the batch."""
        started = time.monotonic()
        futures = [self._pool.submit(action) for action in actions]
        for future in futures:
            try:
                future.result(max(0.0, started + limit_s - time.monotonic()))
            except Exception as error:
                raise TimeoutError from error
        time.sleep(max(0.0, started + least_s - time.monotonic()))


def main() -> None:
    import os

    import psutil

    worker = _Worker(Path(sys.argv[1]), psutil.Process().create_time())
    worker.run()
    os._exit(0)  # an emulator that hangs would keep its thread, and so this process


if __name__ == "__main__":
    main()
