"""Bringing episodes home: 200 files with screenshots beside ``scp -r`` of them, and how soon one is in the store."""

from __future__ import annotations

import queue
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.baselines import shell
from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import Machine, Stage, median, median_ratio, rounded, show, stage, tickets
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.emulator.rehearsal import RehearsalEmulator
from digirl_dist.fleet.ledger import Ledger, Shares
from digirl_dist.fleet.push import CourierFiles
from digirl_dist.fleet.roster import this_python
from digirl_dist.fleet.transfers import Transfers
from digirl_dist.fleet.worker_events import Lost, Pulled, WorkerEvent
from digirl_dist.protocol.job_folder import episode_name
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.settings import LimitSettings, RehearsalSettings, SshSettings
from digirl_dist.settings.plugins import values
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Address
from digirl_dist.ssh.courier import CourierClient, Get
from digirl_dist.storage import episode_file
from digirl_dist.storage.digest import file_digest
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round, Ticket
from digirl_dist.trajectory import Step, Trajectory

EPISODES, ROUNDS = sized((200, 9), (3, 1))
WORKERS, ARRIVALS = sized((4, 64), (1, 4))
SCREENSHOTS = RehearsalSettings(reset_s=0, step_s=0, steps=8, steps_sigma=0, image_size=[240, 108])
PACED = RehearsalSettings(reset_s=0.2, step_s=0.1, steps=8, image_size=[240, 108])


def main() -> None:
    with stage() as here:
        [address] = here.serve(1)
        episodes = _episodes(here.folder / "away")
        away, into = here.folder / "away", here.folder / "into"
        ours, theirs, best = [], [], []
        with shell.standing(address, here.folder / "socket") as warm:
            for _ in range(ROUNDS):
                theirs.append(_scp(address, away, into))
                ours.append(_pull(address, away, episodes, Store(into)))
                best.append(_scp(address, away, into, *warm))
        arrivals = _arrivals(here)
    values = {"vs_scp": (median_ratio(theirs, ours), ">=1.2"), "first_episode_s": (max(arrivals), "<=1")}
    size = sum(manifest.size for _, manifest in episodes)
    show(
        "pull",
        values,
        {
            "ours_s": rounded(ours),
            "scp_s": rounded(theirs),
            "vs_scp_at_its_best": round(median_ratio(best, ours), 4),
            "megabytes": round(size / 1e6, 1),
            "first_episode_median_s": round(median(arrivals), 4),
            "episodes_timed": len(arrivals),
            "note": "ours checks and flushes each episode, on a standing connection; scp does neither, and connects "
            "first; at its best it has a standing connection, too, and the same cipher",
        },
    )


def _episodes(folder: Path) -> list[tuple[Ticket, EpisodeManifest]]:
    """Episodes as a worker writes them."""
    (folder / "episodes").mkdir(parents=True)
    return [(ticket, _episode(folder, ticket)) for ticket in tickets(1, EPISODES)]


def _episode(folder: Path, ticket: Ticket) -> EpisodeManifest:
    emulator, steps, ended = RehearsalEmulator(**values(SCREENSHOTS)), [], False
    seen = emulator.reset(ticket.task, ticket.seed)
    while not ended:
        made = emulator.step(0)
        ended = made.ended
        steps.append(Step(seen, 0, -1.0, made.reward, made.terminated, made.truncated))
        seen = made.observation
    name = str(ticket.index)
    path = folder / episode_name(name)
    episode_file.write(path, Trajectory(ticket, name, "w0", 0, steps, seen, False))
    size, digest = path.stat().st_size, file_digest(path)
    return EpisodeManifest(
        "bench", ticket.key, ticket.attempt, ticket.policy_version, name, size, digest, 0, 0.0, 0.0, {}
    )


def _scp(address: Address, source: Path, target: Path, *options: str) -> float:
    started = time.monotonic()
    with waiting_for(f"scp of {EPISODES} episodes"):
        shell.fetch(address, [source], target, *options)
    seconds = time.monotonic() - started
    assert len(list(target.rglob("*.episode"))) == EPISODES
    shutil.rmtree(target)
    return seconds


def _pull(address: Address, source: Path, episodes: Sequence[tuple[Ticket, EpisodeManifest]], store: Store) -> float:
    """What the host does with each episode, on a connection that stands."""
    command = [*this_python(None), "-m", "digirl_dist.worker_program.courier", "--folder", str(source)]
    events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
    with (
        connect(address, SshSettings()) as connection,
        CourierClient(connection.open(command), SshSettings()) as courier,
    ):
        list(courier.get_many([Get("none", store.incoming(Round(1), "none"), "", 0)]))  # it has started
        files, limits = CourierFiles(courier), (EpisodeGuard(), Shares(), Ledger(), 0.0)
        transfers = Transfers(files, "w0", events.put, lambda error: events.put(Lost("w0", error)), *limits)
        started = time.monotonic()
        for ticket, manifest in episodes:
            transfers.pull(manifest, ticket, store.incoming(Round(1), f"w0-{manifest.key.number}"))
        with waiting_for(f"{EPISODES} episodes to be pulled"):
            for _ in episodes:
                pulled = events.get()
                assert isinstance(pulled, Pulled), pulled
                assert store.land(Round(1), pulled.trajectory, pulled.path)
                if events.empty():  # as the collector does
                    store.flush()
        seconds = time.monotonic() - started
        transfers.close()
    shutil.rmtree(store.root)
    return seconds


def _arrivals(here: Stage) -> list[float]:
    """Seconds from the end of each episode on its worker until it was in the store, in a fleet at work."""
    ours = here.ours("ours", [Machine(address, 4, PACED) for address in here.serve(WORKERS)], LimitSettings())
    ours.warm_up()
    ours.iteration(1, ARRIVALS)
    manifests = [(at, manifest) for at, manifest in ours.fleet.manifests if manifest.key.iteration == 1]
    return [ours.landed[1, manifest.key.number] - (at - manifest.age_s) for at, manifest in manifests]


if __name__ == "__main__":
    measure(main, minutes=15)
