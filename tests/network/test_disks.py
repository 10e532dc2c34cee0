"""Full disks on either side: work pauses, says why, and goes on when there is room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from network.fleet_site import assert_once_each, site, tickets
from network.machines import Machine, fill, keep_full, make_room

pytestmark = [pytest.mark.system, pytest.mark.long_file(60)]

FULL = "No space left"


def test_a_workers_full_disk_leaves_the_work_to_the_others(machines: list[Machine], tmp_path: Path) -> None:
    disk = machines[0].mount(machines[0].jobs, "2m")
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(40))
        here.wait_until_all_work()
        keep_full(disk, 2.0)
        assert_once_each(here, collecting.result(70), 40)
        said = [*here.seen("worker_lost", "w1"), *here.seen("episode_retried", "w1")]
        assert any(FULL in content["reason"] for content in said)


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


def test_a_worker_whose_disk_is_full_from_the_start_joins_when_there_is_room(
    machines: list[Machine], tmp_path: Path
) -> None:
    disk = machines[0].mount(machines[0].jobs, "2m")
    fill(disk)
    with site(tmp_path / "run", machines) as here:
        collecting = here.collecting(tickets(20))
        here.wait_for("worker_lost", 1, "w1")
        assert FULL in here.seen("worker_lost", "w1")[0]["reason"]
        make_room(disk)
        assert_once_each(here, collecting.result(70), 20)
        here.come_back("w1", joins=1)


def test_the_hosts_full_disk_pauses_the_run_until_there_is_room(machines: list[Machine], tmp_path: Path) -> None:
    disk = machines[0].mount(tmp_path / "host", "2m")
    with site(disk / "run", machines) as here:
        collecting = here.collecting(tickets(40))
        here.wait_for("episode", 6)
        fill(disk)
        here.log.emit("test", text="more than fits into what is left of the last page" * 200)
        keep_full(disk, 3.0)
        assert_once_each(here, collecting.result(70), 40)
        assert any(FULL in content["reason"] for content in [*here.seen("disk_full"), *here.seen("worker_lost")])
        assert len(here.seen("worker_lost")) <= len(machines)  # by a transfer that was under way as the disk filled
