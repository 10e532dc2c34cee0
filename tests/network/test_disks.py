"""Full disks on either side: work pauses, says why, and goes on when there is room."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from network.fleet_site import assert_once_each, site, tickets
from network.machines import Machine

from chaos.machine import Disk

pytestmark = [pytest.mark.system, pytest.mark.long_file(60)]

FULL = "No space left"


def keep_full(disk: Disk, seconds: float) -> None:
    """Fills ``disk`` again and again, because what runs there frees some space, and then makes room."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        disk.fill()
        time.sleep(0.1)
    disk.make_room()


def test_full_disks_of_workers_leave_the_work_to_the_others_until_there_is_room(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    """That of w1 from the start, that of w2 in the middle."""
    machines = make_machines(3)
    disks = [machine.mount(machine.jobs, "2m") for machine in machines[:2]]
    disks[0].fill()
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(60))
        for worker in ("w2", "w3"):
            here.wait_for("episode", 1, worker)
        here.wait_for("worker_lost", 1, "w1")
        assert FULL in here.seen("worker_lost", "w1")[0]["reason"]
        disks[0].make_room()
        keep_full(disks[1], 2.0)
        assert_once_each(here, collecting.result(70), 60)
        said = [*here.seen("worker_lost", "w2"), *here.seen("episode_retried", "w2")]
        assert any(FULL in content["reason"] for content in said)
        here.come_back("w1", joins=1)


def test_the_only_workers_full_disk_pauses_the_run_until_there_is_room(
    make_machines: Callable[[int], list[Machine]], tmp_path: Path
) -> None:
    machines = make_machines(1)
    disk = machines[0].mount(machines[0].jobs, "2m")
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(8))
        here.wait_for("episode", 2)
        keep_full(disk, 7.0)
        assert_once_each(here, collecting.result(70), 8)
        said = [*here.seen("worker_lost"), *here.seen("episode_retried")]
        assert any(FULL in content["reason"] for content in said)


def test_the_hosts_full_disk_pauses_the_run_until_there_is_room(machines: list[Machine], tmp_path: Path) -> None:
    disk = machines[0].mount(tmp_path / "host", "2m")
    with site(disk.folder / "run", machines) as here:
        collecting = here.collecting(tickets(40))
        here.wait_for("episode", 6)
        disk.fill()
        here.log.emit("test", text="more than fits into what is left of the last page" * 200)
        keep_full(disk, 3.0)
        assert_once_each(here, collecting.result(70), 40)
        assert any(FULL in content["reason"] for content in [*here.seen("disk_full"), *here.seen("worker_lost")])
        assert len(here.seen("worker_lost")) <= len(machines)  # by a transfer that was under way as the disk filled
