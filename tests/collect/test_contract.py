"""What every collector promises: each ticket's episode once, whatever happens to emulators and workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter as Counts
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collector_site import Kind, Site, in_the_middle, keys, programs, site, tickets
from process_watch import command_line, eventually, nothing_is_left_of, processes_with

from digirl_dist.errors import CollectionError
from digirl_dist.rollout.slot_time import ACTIVITIES
from digirl_dist.settings import Inference
from digirl_dist.tasks import Key, Round

pytestmark = [pytest.mark.system, pytest.mark.long]
# Where the policy acts is the business of test_inference.py, but for what both sides must have in common.
BY_WORKERS = [kind for kind in Kind if kind.inference is Inference.worker]
EVERY_KIND = [pytest.param(kind, marks=pytest.mark.ray) if kind.on_ray else kind for kind in BY_WORKERS]
KINDS = [Kind.inline, Kind.fleet, pytest.param(Kind.ray, marks=pytest.mark.ray)]
"""For what collecting ahead leaves to the collector that it is wrapped around."""
AHEAD = [pytest.param(kind, marks=pytest.mark.ray) if kind.on_ray else kind for kind in BY_WORKERS if kind.ahead]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_ticket_comes_home_once_and_in_order(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, iterations=3) as here:
        result = here.collect(tickets(9))
        assert keys(result) == [Key(0, index) for index in range(9)]
        assert sum(worker_result.episodes for worker_result in result.worker_results) == 9
        assert result.acting_at is not None and result.last_ended_at is not None
        assert result.started_at < result.acting_at and result.last_ended_at <= result.ended_at
        assert sorted(here.store.landed(Round(0))) == [Key(0, index) for index in range(9)]
    nothing_is_left_of(tmp_path)


@pytest.mark.ray
def test_all_collectors_collect_the_same(tmp_path: Path) -> None:
    actions = []
    for kind in (Kind.inline, Kind.fleet, Kind.fleet_host, Kind.ray, Kind.ray_host):
        with site(tmp_path / kind.value, kind) as here:
            here.checkpoint = here.save(2)
            result = here.collect(tickets(8))
            episodes = [trajectory.steps for trajectory in result.trajectories]
            actions.append([[(step.action, np.float32(step.log_prob)) for step in steps] for steps in episodes])
    assert all(each == actions[0] for each in actions)


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_landed_before_are_not_run_again_and_the_next_ones_act_with_the_next_checkpoint(
    tmp_path: Path, kind: Kind
) -> None:
    with site(tmp_path, kind, workers=1) as here:
        result = here.collect(tickets(4))
        again = here.collect(tickets(6))
        assert keys(again) == [Key(0, index) for index in range(6)]
        before = [trajectory.episode_id for trajectory in result.trajectories]
        assert [trajectory.episode_id for trajectory in again.trajectories][:4] == before
        assert sum(worker_result.episodes for worker_result in again.worker_results) == 2
        acts_with_the_next_checkpoint(here)


@pytest.mark.parametrize("kind", AHEAD)
def test_collecting_ahead_acts_with_the_next_checkpoint(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1) as here:
        here.collect(tickets(2))
        acts_with_the_next_checkpoint(here)


def acts_with_the_next_checkpoint(here: Site) -> None:
    here.checkpoint = here.save(1)
    result = here.collect(tickets(2, iteration=1))
    assert [trajectory.ticket.policy_version for trajectory in result.trajectories] == [1, 1]


@pytest.mark.parametrize("kind", [*KINDS, Kind.fleet_host])
def test_every_second_of_every_slot_is_accounted_for(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, iterations=4, workers=1, step_s=0.1) as here:
        result = here.collect(tickets(6))
        for iteration in range(1, 4):  # both ends of a span are known to a round trip, which busy cores make long
            before = result
            time.sleep(0.5)
            here.checkpoint = here.save(iteration)
            result = here.collect(tickets(8, iteration))
            slots = sum(worker_result.slots for worker_result in result.worker_results)
            spent: Counts[str] = Counts()
            for worker_result in result.worker_results:
                spent.update(worker_result.slot_seconds)
            whole_s = pytest.approx(slots * (result.ended_at - before.ended_at), rel=0.02, abs=slots * 0.1)
            if sum(spent.values()) == whole_s:
                break
    assert sum(spent.values()) == whole_s
    slept_s = 8 * 3 * 0.1
    assert slept_s * 0.9 <= spent["step"] <= slept_s * 1.6 and spent["update"] >= 0.5 * slots * 0.9
    assert set(spent) <= set(ACTIVITIES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_emulator_costs_a_retry_and_time_that_is_booked_under_faults(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path / "run", kind, iterations=2, workers=1, speculate=False) as here:
        for iteration, how in enumerate(("hang", "die")):
            here.checkpoint = here.save(iteration)
            trouble = {"at": "step", "suffers": how, "once": str(tmp_path / how)}
            result = here.collect(tickets(8, iteration, **trouble))
            assert keys(result) == [Key(iteration, index) for index in range(8)]
            assert sum(worker_result.retried for worker_result in result.worker_results) == 1
            assert here.count("episode_retried") == iteration + 1
            lost = sum(worker_result.slot_seconds.get("faults", 0.0) for worker_result in result.worker_results)
            if how == "hang":
                assert 2.8 <= lost <= 4.5, "the limit of a step, and what two busy cores add"


@pytest.mark.parametrize("kind", KINDS)
def test_an_emulator_that_never_works_ends_the_iteration_with_its_reason(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1) as here, pytest.raises(CollectionError, match="the device is on fire"):
        here.collect(tickets(4, at="reset", suffers="raise"))
    nothing_is_left_of(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_collection_leaves_nothing_running(tmp_path: Path, kind: Kind) -> None:
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), site(tmp_path, kind, iterations=2, workers=1, step_s=0.5) as here:
        timer.start()
        here.collect(tickets(200))
    nothing_is_left_of(tmp_path)


def test_a_killed_worker_program_costs_retries_and_time_that_is_booked(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, iterations=2, step_s=0.1) as here:
        before = here.collect(tickets(4))
        here.checkpoint = here.save(1)
        killer = in_the_middle(here, lambda: programs(tmp_path)[0].kill())
        result = here.collect(tickets(120, iteration=1))
        killer.join()
        assert keys(result) == [Key(1, index) for index in range(120)]
        assert sum(len(worker_result.losses) for worker_result in result.worker_results) == 1
        assert here.count("worker_joined") == 3
        whole_s = max(worker_result.slots for worker_result in result.worker_results) * (
            result.ended_at - before.ended_at
        )
        for worker_result in result.worker_results:
            assert sum(worker_result.slot_seconds.values()) == pytest.approx(whole_s, rel=0.02, abs=1.5)
            assert (worker_result.slot_seconds.get("away", 0.0) > 1.0) == bool(worker_result.losses)
    nothing_is_left_of(tmp_path)


def test_a_frozen_worker_program_is_noticed_and_replaced(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, step_s=0.1) as here:
        frozen: list[Any] = []

        def freeze() -> None:
            frozen.append(programs(tmp_path)[0])
            frozen[0].suspend()

        freezer = in_the_middle(here, freeze)
        started = time.monotonic()
        result = here.collect(tickets(200))
        freezer.join()
        assert keys(result) == [Key(0, index) for index in range(200)]
        eventually(lambda: not frozen[0].is_running(), 40, "the replacement of the frozen program")
        assert time.monotonic() - started < 120
    nothing_is_left_of(tmp_path)


def test_a_killed_ssh_server_is_survived_by_the_others(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, step_s=0.1) as here:

        def kill() -> None:
            servers = [
                one for one in processes_with(tmp_path) if "digirl_dist.ssh.localhost_server" in command_line(one)
            ]
            servers[0].kill()

        killer = in_the_middle(here, kill)
        result = here.collect(tickets(30))
        killer.join()
        assert keys(result) == [Key(0, index) for index in range(30)]
    eventually(lambda: not processes_with(tmp_path), 20, "the end of the orphaned program")


def test_what_a_worker_spooled_for_nobody_is_dropped_unread(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet, workers=1, speculate=False) as here:
        here.collect(tickets(4))
        for process in programs(tmp_path):
            process.suspend()
        here.checkpoint = here.save(1)
        for process in programs(tmp_path):
            process.resume()
        result = here.collect(tickets(4, iteration=1))
        assert keys(result) == [Key(1, index) for index in range(4)]
        eventually(lambda: not list(tmp_path.rglob("jobs/*/episodes/*")), 20, "the deletion on the workers")


def test_a_ticket_is_not_leased_to_a_program_that_has_no_job_yet(tmp_path: Path) -> None:
    """While the host is held up, one worker program ends and the next one starts; what the host says then was meant
    for the first."""
    held, go_on = threading.Event(), threading.Event()

    def hold_up(_: object) -> None:
        held.set()
        go_on.wait(60)

    with site(tmp_path, Kind.fleet, step_s=0.1, speculate=False) as here:
        here.store.listen(hold_up)
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(here.collect, tickets(30))
            try:
                assert held.wait(60)
                folders = list(tmp_path.rglob("episodes"))
                eventually(lambda: all(len(list(each.glob("*.json"))) >= 3 for each in folders), 20, "idle slots")
                before = programs(tmp_path)
                before[0].kill()
                old = {program.pid for program in before}
                eventually(lambda: {program.pid for program in programs(tmp_path)} - old, 20, "the next program")
            finally:
                go_on.set()
            assert keys(result.result(90)) == [Key(0, index) for index in range(30)]
        lost = [content for kind, content in here.events if kind == "worker_lost"]
        assert len(lost) == 1 and not lost[0]["fatal"], lost
