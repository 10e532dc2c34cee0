"""DistRL's recipe: a process per emulator that stays, the policy alone is copied, results are looked for every 10 s."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.baselines import shell
from benchmarks.baselines.order import Order, Pace, Play, policy
from benchmarks.stage import ROOT, Machine, Tiny
from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.settings.plugins import values
from digirl_dist.tasks import Ticket

_POLL_S = 10.0
_LOOK_S = 0.05
_FINISH_S = 150.0


@dataclass
class DistRL:
    """The host's half. Each emulator goes on with tickets of its own until enough episodes have come.

    Kinder than the original: processes are kept between iterations, all files of a worker are fetched at once, and
    after an iteration all emulators become idle, those that hang being replaced, outside the time.
    """

    folder: Path
    machines: Sequence[Machine]
    scale: float
    weight: tuple[int, int] = (0, 0)
    _processes: dict[tuple[int, int], subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        self._launch([(number, slot) for number, machine in enumerate(self.machines) for slot in range(machine.slots)])

    def iteration(self, version: int, tickets: Sequence[Ticket], wanted: int) -> float:
        """Collect ``wanted`` episodes; the seconds that it took. ``tickets`` should be more than that."""
        self._deal(version, tickets)
        agent = self.folder / "policy.pt"
        torch.save({"policy": Tiny(*self.weight).state_dict()}, agent)
        started = time.monotonic()
        for number, machine in enumerate(self.machines):
            place = self._place(number)
            shell.send(machine.address, agent, place / "policy.temp")
            shell.run(machine.address, f"mv {place}/policy.temp {place}/policy-{version}.pt")
        results: dict[int, Any] = {}
        while len(results) < wanted:
            time.sleep(_POLL_S * self.scale)
            for number in range(len(self.machines)):
                self._fetch(number, version, results)
        seconds = time.monotonic() - started
        self._settle(version)
        return seconds

    def close(self) -> None:
        for process in self._processes.values():
            self._end(process)

    def _place(self, number: int) -> Path:
        return self.folder / self.machines[number].address.name

    def _launch(self, emulators: Sequence[tuple[int, int]]) -> None:
        for number, slot in emulators:
            place = self._place(number)
            (place / "results").mkdir(parents=True, exist_ok=True)
            command = f"cd {ROOT} && OMP_NUM_THREADS=1 exec {sys.executable} -m {__spec__.name} {place} {slot}"
            line = shell.ssh(self.machines[number].address, command)
            self._processes[number, slot] = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for emulator in emulators:
            output = self._processes[emulator].stdout
            assert output is not None and output.readline() == b"ready\n"

    def _deal(self, version: int, tickets: Sequence[Ticket]) -> None:
        """Every emulator has a list of its own."""
        for at, (number, slot) in enumerate(self._processes):
            machine = self.machines[number]
            order = Order(1, machine.emulator, list(tickets[at :: len(self._processes)]), Pace(), version)
            order.write(self._place(number) / f"order-{version}-{slot}.json")

    def _fetch(self, number: int, version: int, results: dict[int, Any]) -> None:
        place, address = self._place(number), self.machines[number].address
        names = shell.run(address, f"ls {place}/results").split()
        new = [name for name in names if name.startswith(f"{version}-") and name.endswith(".pkl")]
        new = [name for name in new if int(name.removesuffix(".pkl").split("-")[1]) not in results]
        if new:
            shell.fetch(address, [place / "results" / name for name in new], self.folder)
        for name in new:
            found = pickle.loads((self.folder / name).read_bytes())
            results[found["ticket"]] = found

    def _settle(self, version: int) -> None:
        """Let all finish the episode under way; replace those that hang."""
        for number in range(len(self.machines)):
            (self._place(number) / f"stop-{version}").touch()
        deadline = time.monotonic() + _FINISH_S * self.scale
        while (busy := self._busy(version)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        for emulator in busy:
            self._end(self._processes[emulator])
        self._launch(busy)

    def _busy(self, version: int) -> list[tuple[int, int]]:
        idle = "idle-{}-{}".format
        return [each for each in self._processes if not (self._place(each[0]) / idle(version, each[1])).exists()]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def _serve(place: Path, slot: int) -> None:
    """The worker's half: one emulator, one episode after the other, for as long as there are versions to come."""
    done = max((int(path.stem.split("-")[1]) for path in place.glob("policy-*.pt")), default=-1)
    Tiny()
    print("ready", flush=True)
    while True:
        versions = [int(path.stem.split("-")[1]) for path in place.glob("policy-*.pt")]
        if not versions or max(versions) <= done:
            time.sleep(_LOOK_S)
            continue
        done = max(versions)
        _episodes(place, slot, done)
        (place / f"idle-{done}-{slot}").touch()


def _episodes(place: Path, slot: int, version: int) -> None:
    order, agent = Order.read(place / f"order-{version}-{slot}.json"), policy(place / f"policy-{version}.pt")
    for ticket in order.tickets:
        if (place / f"stop-{version}").exists():
            return
        play = Play(ticket, RehearsalEmulator(**values(order.emulator)))
        play.reset()
        while not play.ended:
            assert play.seen is not None
            with torch.inference_mode():
                [decision] = agent.act([play.seen], [play.rng])
            play.step(decision)
        part = place / "results" / f"{version}-{ticket.index}.temp"
        part.write_bytes(pickle.dumps(play.result()))
        part.rename(part.with_suffix(".pkl"))


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
