"""Faults of the files on a worker: what is not the announced episode is refused, and its ticket runs again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from network.fleet_site import USUAL, Site, assert_once_each, job_folder, site, tickets
from network.machines import Machine, freeze
from process_watch import eventually

import digirl_dist
from digirl_dist.collect.leases import Grant, LeaseLedger
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.protocol.messages import EpisodeManifest, decode_manifest, encode_manifest
from digirl_dist.storage import episode_file
from digirl_dist.storage.digest import file_digest
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.long_file(40)]

Change = Callable[[Path, Path], object]


def truncate(file: Path, _: Path) -> None:
    with file.open("rb+") as stream:
        stream.truncate(file.stat().st_size // 2)


def flip_a_bit(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def replace_by_another_tickets(file: Path, other: Path) -> None:
    shutil.copyfile(other, file)


def lengthen(file: Path, _: Path) -> None:
    with file.open("ab") as stream:
        stream.write(bytes(1000))


def remove(file: Path, _: Path) -> None:
    file.unlink()


CHANGES: list[Change] = [truncate, flip_a_bit, replace_by_another_tickets, lengthen, remove]


def test_episodes_that_were_changed_or_deleted_before_they_were_pulled_run_again(
    machines: list[Machine], tmp_path: Path
) -> None:
    with site(tmp_path / "run", machines[:1]) as here:
        collecting = here.collecting(tickets(40))
        here.wait_for("episode")
        changed = change(here, machines[0], CHANGES)
        assert_once_each(here, collecting.result(50), 40)
        retried = {content["ticket"]: content["reason"] for content in here.seen("episode_retried")}
        assert {changed.get(index) for index in retried} == {one.__name__ for one in CHANGES}
        for index, reason in retried.items():
            is_gone = changed[index] == remove.__name__
            assert ("No such file" if is_gone else "is not the file that was announced") in reason
        assert not here.seen("worker_lost")


def change(here: Site, machine: Machine, changes: Sequence[Change]) -> dict[int, str]:
    """Make each change to an episode that lies ready, while the courier cannot fetch it; by ticket's index."""
    episodes = JobFolder(Path(here.job_folder(machine))).episodes
    (courier,) = machine.couriers()
    freeze(courier)
    old = set(episodes.glob("*.json"))
    eventually(lambda: len(set(episodes.glob("*.json")) - old) > len(changes), 20, "more episodes")
    *new, intact = sorted(set(episodes.glob("*.json")) - old)
    done = {}
    for one, manifest in zip(changes, new, strict=False):
        one(manifest.with_suffix(".episode"), intact.with_suffix(".episode"))
        done[decode_manifest(manifest.read_bytes()).key.number] = one.__name__
    courier.resume()
    return done


# --- a spool that was there before the host came ----------------------------------------------------------------------


class Spool:
    """What the first worker's folder holds of a run before its host connects."""

    def __init__(self, machine: Machine, run: Path) -> None:
        folder = RunFolder(run, "")
        folder.close()
        self.run, self._ledger = folder.run_id, LeaseLedger(folder.leases)
        self.folder = JobFolder(job_folder(machine, self.run))
        self.folder.create()

    def episode(self, ticket: Ticket, holds: Trajectory | None = None, **manifest: Any) -> Path:
        """An episode of a leased ``ticket`` whose file ``holds`` something else, or whose manifest says so."""
        episode_id = _episode_id(ticket)
        self._ledger.add([Grant("w1", ticket.key, 0, ticket.policy_version, ticket.asks)])
        path = self.folder.episode(episode_id)
        episode_file.write(path, holds or spooled(ticket))
        announced = EpisodeManifest(
            self.run,
            ticket.key,
            0,
            ticket.policy_version,
            episode_id,
            path.stat().st_size,
            file_digest(path),
            slot=0,
            seconds=0.1,
            age_s=1.0,
            spent={},
        )
        changed = msgspec.structs.replace(announced, **manifest)
        self.folder.manifest(episode_id).write_bytes(encode_manifest(changed))
        return path


def spooled(ticket: Ticket, worker: str = "w1") -> Trajectory:
    """An episode that can be told from those that are run."""
    seen = Observation("spooled", None, np.zeros(2, np.float32))
    step = Step(seen, action=1, log_prob=-0.5, reward=1.0, terminated=True, truncated=False)
    return Trajectory(ticket, _episode_id(ticket), worker, 0, [step], seen, success=True)


def _episode_id(ticket: Ticket) -> str:
    return f"{ticket.iteration:06d}-{ticket.index:05d}-w1-0"


def is_spooled(trajectory: Trajectory) -> bool:
    return trajectory.steps[0].observation.text == "spooled"


@pytest.fixture
def spool(machines: list[Machine], tmp_path: Path) -> Spool:
    return Spool(machines[0], tmp_path / "run")


NOTICES = {
    "cut short": lambda text: text[: len(text) // 2],
    "of another program": lambda text: '{"hello": "world"}',
    "with a field of a later version": lambda text: text.replace('{"run"', '{"more": 1, "run"'),
    "with a wrong type": lambda text: text.replace('"slot":0', '"slot":"0"'),
}
ODD_TIMES: list[dict[str, float]] = [{"age_s": -1e9, "seconds": -1e9}, {"age_s": 1e12}, {"age_s": float("nan")}]


def test_of_what_an_earlier_host_did_not_fetch_each_ticket_s_own_episode_counts_and_nothing_else(
    machines: list[Machine], tmp_path: Path, spool: Spool
) -> None:
    ours = tickets(24)
    for ticket in ours[:3]:
        spool.episode(ticket)
    for ticket, odd in zip(ours[3:6], ODD_TIMES, strict=True):
        spool.episode(ticket, **odd)
    spool_what_is_not_the_ticket_s(spool, ours[6:14])
    spool.episode(ours[14]).unlink()
    spool.episode(ours[15], run="another")
    spool.episode(replace(ours[16], iteration=7))
    for ticket, spoil in zip(ours[17:21], NOTICES.values(), strict=True):
        notice = spool.episode(ticket).with_suffix(".json")
        notice.write_text(spoil(notice.read_text()))
    patient = USUAL[0], replace(USUAL[1], slot_failures=20)  # a worker whose every file is wrong is soon given up
    with site(tmp_path / "run", machines[:1], limits=patient) as here:
        result = here.collecting(ours).result(70)
        assert_once_each(here, result, len(ours))
        assert [one.ticket.index for one in result.trajectories if is_spooled(one)] == list(range(3))
        retried = {content["ticket"]: content["reason"] for content in here.seen("episode_retried")}
        assert sorted(retried) == [*range(6, 13), 14]
        assert all("the episode" in retried[index] for index in range(6, 11))
        assert all("not a trajectory file" in retried[index] for index in (11, 12))
        assert "No such file" in retried[14]
        assert "000007-00016-w1-0" in {content["episode"] for content in here.seen("episode_dropped")}
        eventually(lambda: not list(spool.folder.episodes.glob("000007-*")), 5, "the deletion of the stale episode")
        assert not here.seen("worker_lost")
        assert result.last_ended_at is not None
        assert result.last_ended_at <= result.ended_at
        assert result.busy is None or 0 <= result.busy <= 1


def spool_what_is_not_the_ticket_s(spool: Spool, ours: Sequence[Ticket]) -> None:
    """Seven whole files, none of which is the episode of the ticket that they are announced for."""
    spool.episode(ours[0], spooled(ours[1]))
    spool.episode(ours[1], spooled(ours[1], worker="w2"))
    spool.episode(ours[2], spooled(replace(ours[2], policy_version=4)))
    spool.episode(ours[3], spooled(replace(ours[3], seed=4)))
    spool.episode(ours[4], spooled(replace(ours[4], task=Task("another"))))
    for ticket, content in ((ours[5], b""), (ours[6], b"not an episode")):
        garbage = spool.episode(ticket)
        garbage.write_bytes(content)
        spool.episode(ticket, size=len(content), digest=file_digest(garbage))
        garbage.write_bytes(content)


@pytest.mark.unit
def test_nothing_on_the_way_of_an_episode_asks_for_the_time_of_day() -> None:
    """So a clock that jumps, here or there, cannot matter: all times are differences of monotonic clocks."""
    package = Path(digirl_dist.__file__).parent
    places = [*package.glob("worker_program/*.py"), *package.glob("fleet/*.py"), *package.glob("ssh/*.py")]
    places += [*package.glob("emulator/*.py"), *package.glob("rollout/*.py"), *package.glob("protocol/*.py")]
    places += [*package.glob("collect/*.py"), package / "storage" / "trajectory_store.py"]
    places.remove(package / "worker_program" / "relay_source.py")  # a key there expires at a time of day, for sshd
    for place in places:
        assert "time.time(" not in place.read_text() and "datetime" not in place.read_text(), place
