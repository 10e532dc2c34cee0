"""The policy on the host: nothing is pushed, and what is lost on the way costs retries at most."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from collector_site import Kind, in_the_middle, keys, programs, site, tickets
from process_watch import command_line, nothing_is_left_of
from user_classes import Coin, FairCoin

from digirl_dist.tasks import Key

pytestmark = [pytest.mark.system, pytest.mark.long]


def policies() -> list[psutil.Process]:
    """The processes of the host's policy that this process has."""
    return [one for one in psutil.Process().children() if "digirl_dist.inference.policy_process" in command_line(one)]


def loads(process: psutil.Process, library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


def test_workers_get_no_weights_and_need_neither_torch_nor_arrow(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet_host, agent=Coin) as here:
        for version in (0, 1):
            here.checkpoint = here.save(version)
            result = here.collect(tickets(4, iteration=version))
            assert {episode.ticket.policy_version for episode in result.trajectories} == {version}
            assert sum(worker_result.push_bytes for worker_result in result.worker_results) == 0
        assert len(programs(tmp_path)) == 2
        assert not any(loads(one, name) for one in programs(tmp_path) for name in ("libtorch", "libarrow", "/pandas/"))
        assert [loads(policy, "libtorch") for policy in policies()] == [True]
    assert not policies()
    nothing_is_left_of(tmp_path)


def test_workers_that_act_without_weights_need_neither_torch_nor_arrow(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, workers=1, agent=FairCoin) as here:
        assert keys(here.collect(tickets(2))) == [Key(0, 0), Key(0, 1)]
        [program] = programs(tmp_path)
        assert not any(loads(program, name) for name in ("libtorch", "libarrow", "/pandas/"))


def test_a_round_ends_once_what_acts_on_the_host_has_gone_to_rest(tmp_path: Path) -> None:
    """An engine that sleeps gives its memory to the update that follows."""
    with site(tmp_path, Kind.fleet_host, workers=1, agent=Coin) as here:
        collector: Any = here.collector
        policy, rested = collector._pool._fleet._policy, []

        def rest() -> None:
            time.sleep(2)
            rested.append(len(rested))

        policy.rest = rest
        for version in (0, 1):
            here.checkpoint = here.save(version)
            here.collect(tickets(2, iteration=version))
            assert rested == [*range(version + 1)]


@pytest.mark.nightly
def test_a_killed_policy_and_a_killed_worker_cost_retries_only(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet_host, agent=Coin, step_s=0.05) as here:
        first = in_the_middle(here, lambda: policies()[0].kill())
        second = in_the_middle(here, lambda: programs(tmp_path)[0].kill(), after=10)
        result = here.collect(tickets(40))
        first.join()
        second.join()
        assert keys(result) == [Key(0, index) for index in range(40)]
        assert here.count("episode") == 40
        assert here.count("policy_lost") == 1 and here.count("worker_lost") == 1
    nothing_is_left_of(tmp_path)
