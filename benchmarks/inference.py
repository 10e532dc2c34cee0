"""Throughput with the policy on the host, in relation to that of the same workers with a policy of their own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import median, rounded, show, stage
from digirl_dist.assembly import schedule
from digirl_dist.assembly.collector import RunContext, build_collector
from digirl_dist.assembly.parts import agent_plugin, build_device
from digirl_dist.settings import (
    DeviceAgentSettings,
    Inference,
    InProcessSettings,
    InstallSettings,
    PhoneSettings,
    Settings,
)
from digirl_dist.ssh.connection import Address
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store


class Fleet:
    """Workers with demo phones, and the policy that acts for them."""

    def __init__(self, folder: Path, stack: ExitStack, inference: Inference, settings: dict[str, Any]) -> None:
        chosen = Settings(
            inference=inference,
            worker_temp_path=str(folder / "jobs"),
            worker_run_path=str(folder.parent / "env"),
            worker_python=sys.executable,
            install=InstallSettings(reuse_packages=True),
            emulator=PhoneSettings(),
            agent=DeviceAgentSettings(),
            trainer=InProcessSettings(device="cpu"),
            **settings,
        )
        run = RunFolder(folder, "")
        stack.callback(run.close)
        events = Events(run.events)
        stack.callback(events.close)
        device = build_device(chosen, chosen.emulator)
        self._agent = agent_plugin(chosen).build(device.spec)
        self._plan = schedule.plan(chosen, device.tasks)
        self._checkpoints = Checkpoints(run.checkpoints, keep_every=10**9)
        self._store = Store(run.trajectories)
        status = Status(folder / "status.json")
        ground = RunContext(chosen, device, self._agent, self._plan, run, self._store, events, status)
        self._collector = build_collector(ground, stack)
        torch.manual_seed(0)
        self._weights = self._agent().state_dict()

    def steps_per_second(self, iteration: int) -> float:
        """Collect one iteration with a policy that knows nothing."""
        checkpoint = self._checkpoints.save(iteration, self._weights, {}, {})
        tickets = self._plan.tickets(iteration, iteration)
        started = time.monotonic()
        result = self._collector.collect(checkpoint, tickets)
        return sum(len(episode.steps) for episode in result.trajectories) / (time.monotonic() - started)


def main() -> None:
    workers, slots, episodes, rounds = sized((4, 4, 128, 7), (1, 1, 2, 1))
    rates: dict[Inference, list[float]] = {Inference.worker: [], Inference.host: []}
    with stage() as here:
        addresses = here.serve(workers)
        os.environ["HOME"] = str(_home(here.folder, addresses))
        entries = [_entry(address) for address in addresses]
        settings = {"worker_ips": entries, "bsize": slots, "rollout_size": episodes}
        fleets = {where: Fleet(here.folder / where.value, here.stack, where, settings) for where in rates}
        for iteration in range(rounds + 1):
            for where in _in_turn(list(rates), iteration):
                with waiting_for(f"iteration {iteration} with the policy on the {where.value}"):
                    rates[where].append(fleets[where].steps_per_second(iteration))
    warm = {where: each[1:] for where, each in rates.items()}
    pairs = [there / here for here, there in zip(warm[Inference.worker], warm[Inference.host], strict=True)]
    show(
        "inference",
        {"vs_worker": (median(pairs), ">=0.9")},
        {
            "workers": workers,
            "slots": slots,
            "episodes": episodes,
            "pairs": rounded(pairs),
            "steps_per_second": {where.value: rounded(each) for where, each in warm.items()},
        },
    )


def _home(folder: Path, addresses: Sequence[Address]) -> Path:
    """A home folder in which the servers are known."""
    known = folder / "home" / ".ssh" / "known_hosts"
    known.parent.mkdir(parents=True)
    known.write_text("".join(Path(address.known_hosts or "").read_text() for address in addresses))
    return folder / "home"


def _entry(address: Address) -> dict[str, Any]:
    """As in ``worker_ips``."""
    return {"name": address.name, "host": address.host, "port": address.port, "username": address.user,
            "key": address.key}  # fmt: skip


def _in_turn(both: Sequence[Inference], iteration: int) -> Sequence[Inference]:
    """The one that begins has whatever the other left behind: each begins every other time."""
    return both if iteration % 2 else both[::-1]


if __name__ == "__main__":
    measure(main, minutes=45)
