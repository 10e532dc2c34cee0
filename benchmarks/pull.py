"""Bringing episodes home: 200 files with screenshots beside ``scp -r`` of them, and how soon one is in the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.baselines import shell
from benchmarks.stage import Machine, Stage, median, rounded, show, stage, tickets
from digirl_dist import table
from digirl_dist.digest import file_digest
from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.fleet.roster import this_python
from digirl_dist.settings import LimitSettings, RehearsalSettings, SshSettings
from digirl_dist.ssh.connection import Address, connect
from digirl_dist.ssh.courier import Courier
from digirl_dist.store import Store
from digirl_dist.tasks import Ticket
from digirl_dist.trajectory import Step, Trajectory

EPISODES, PAIRS = 200, 5
SCREENSHOTS = RehearsalSettings(reset_s=0, step_s=0, steps=8, steps_sigma=0, image_size=[240, 108])
PACED = RehearsalSettings(reset_s=0.2, step_s=0.1, steps=8, image_size=[240, 108])


@dataclass(frozen=True)
class Episode:
    ticket: Ticket
    name: str
    digest: str
    size: int


def main() -> None:
    with stage() as here:
        [address] = here.serve(1)
        episodes = _episodes(here.folder / "away")
        ratios, ours, theirs = [], [], []
        for pair in range(PAIRS):
            theirs.append(_scp(address, here.folder / "away", here.folder / f"scp-{pair}"))
            ours.append(_pull(address, here.folder / "away", episodes, Store(here.folder / f"store-{pair}")))
            ratios.append(theirs[-1] / ours[-1])
        arrivals = _arrivals(here)
    values = {"vs_scp": (median(ratios), ">=0.9"), "first_episode_s": (max(arrivals), "<=1")}
    size = sum(episode.size for episode in episodes)
    show(
        "pull",
        values,
        {
            "ours_s": rounded(ours),
            "scp_s": rounded(theirs),
            "megabytes": round(size / 1e6, 1),
            "first_episode_median_s": round(median(arrivals), 4),
            "episodes_timed": len(arrivals),
            "note": "ours checks digest and rows, and flushes each episode to disk; scp does neither",
        },
    )


def _episodes(folder: Path) -> list[Episode]:
    """Episodes as a worker writes them."""
    (folder / "episodes").mkdir(parents=True)
    return [_episode(folder, ticket) for ticket in tickets(1, EPISODES)]


def _episode(folder: Path, ticket: Ticket) -> Episode:
    emulator, steps, ended = RehearsalEmulator(SCREENSHOTS), [], False
    seen = emulator.reset(ticket.task, ticket.seed)
    while not ended:
        made = emulator.step(0)
        ended = made.ended
        steps.append(Step(seen, 0, -1.0, made.reward, made.terminated, made.truncated))
        seen = made.observation
    name = f"episodes/{ticket.index}.parquet"
    table.write(folder / name, [Trajectory(ticket, str(ticket.index), "w0", 0, steps, seen, False)])
    return Episode(ticket, name, file_digest(folder / name), (folder / name).stat().st_size)


def _scp(address: Address, source: Path, target: Path) -> float:
    started = time.monotonic()
    shell.fetch(address, [source], target)
    seconds = time.monotonic() - started
    assert len(list(target.rglob("*.parquet"))) == EPISODES
    return seconds


def _pull(address: Address, source: Path, episodes: Sequence[Episode], store: Store) -> float:
    """What the host does with each episode, on a connection that stands."""
    command = [*this_python(None), "-m", "digirl_dist.worker.courier", "--folder", str(source)]
    with connect(address, SshSettings()) as connection, Courier(connection, command, SshSettings()) as courier:
        courier.delete([])  # it has started
        started = time.monotonic()
        for episode in episodes:
            path = store.incoming(1, episode.name.replace("/", "-"))
            courier.get(episode.name, path, episode.digest, episode.size)
            [trajectory] = table.read(path)
            assert store.land(trajectory, path)
        return time.monotonic() - started


def _arrivals(here: Stage) -> list[float]:
    """Seconds from the end of each episode on its worker until it was in the store, in a fleet at work."""
    ours = here.ours("ours", [Machine(address, 4, PACED) for address in here.serve(4)], LimitSettings())
    ours.warm_up()
    ours.iteration(1, 64)
    notices = [(at, notice) for at, notice in ours.fleet.notices if notice.iteration == 1]
    return [ours.landed[1, notice.index] - (at - notice.age_s) for at, notice in notices]


if __name__ == "__main__":
    sys.exit(main())
