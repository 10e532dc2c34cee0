"""What every collector promises: each ticket's episode once, whatever happens to emulators and workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter as Counts
from pathlib import Path

import numpy as np
import pytest
from collector_site import Kind, Site, keys, site, tickets
from process_watch import eventually, nothing_is_left_of
from user_classes import Coin

from digirl_dist.errors import CollectionError
from digirl_dist.rollout.slot import ACTIVITIES
from digirl_dist.tasks import Key, Round

pytestmark = [pytest.mark.system, pytest.mark.long]
RAY = pytest.param(Kind.ray, marks=[pytest.mark.ray, pytest.mark.nightly])
KINDS = [Kind.inline, Kind.fleet, RAY]
"""Where the policy acts is the business of test_inference.py, but for what both sides must have in common."""
HERE = [Kind.inline, Kind.fleet]
"""For what does not depend on what carries a worker's messages."""


@pytest.mark.parametrize(
    "others",
    [
        [Kind.inline_ahead, Kind.fleet, Kind.fleet_host],
        pytest.param([Kind.ray, Kind.ray_host], marks=[pytest.mark.ray, pytest.mark.nightly]),
    ],
)
def test_every_ticket_comes_home_once_and_in_order_and_all_collectors_collect_the_same(
    tmp_path: Path, others: list[Kind]
) -> None:
    actions = []
    for kind in (Kind.inline, *others):
        with site(tmp_path / kind.value, kind, iterations=3, agent=Coin) as here:
            here.checkpoint = here.save(2)
            result = here.collect(tickets(9))
            assert keys(result) == [Key(0, index) for index in range(9)]
            assert result.seconds.keys() == set(keys(result))
            assert result.acting_at is not None and result.last_ended_at is not None
            assert result.started_at < result.acting_at and result.last_ended_at <= result.ended_at
            assert sorted(here.store.landed(Round(0))) == [Key(0, index) for index in range(9)]
            episodes = [trajectory.steps for trajectory in result.trajectories]
            actions.append([[(step.action, np.float32(step.log_prob)) for step in steps] for steps in episodes])
    assert all(each == actions[0] for each in actions)
    nothing_is_left_of(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_that_landed_before_are_not_run_again_and_the_next_ones_act_with_the_next_checkpoint(
    tmp_path: Path, kind: Kind
) -> None:
    with site(tmp_path, kind, workers=1, agent=Coin) as here:
        result = here.collect(tickets(4))
        again = here.collect(tickets(6))
        assert keys(again) == [Key(0, index) for index in range(6)]
        before = [trajectory.episode_id for trajectory in result.trajectories]
        assert [trajectory.episode_id for trajectory in again.trajectories][:4] == before
        assert len(again.seconds) == 2
        acts_with_the_next_checkpoint(here)


@pytest.mark.parametrize("kind", HERE)
def test_an_episode_of_many_steps_is_told_of_and_comes_home(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1, length=1100) as here:
        result = here.collect(tickets(1))
        eventually(lambda: all(worker.slots for worker in here.status.workers.values()))
        slots = [slot for worker in here.status.workers.values() for slot in worker.slots]
    assert slots and all(slot.keys() == {"activity", "for_s", "limit_s", "ticket"} for slot in slots), "as why reads it"
    [told] = [content["reason"] for event, content in here.events if event == "slot" and content["state"] == "long"]
    assert told.startswith("ticket 0, task count: 1000 steps, and no end yet; if it never ends, set max_steps")
    assert len(result.trajectories[0].steps) == 1100 and not here.count("worker_lost")


def test_collecting_ahead_acts_with_the_next_checkpoint(tmp_path: Path) -> None:
    with site(tmp_path, Kind.fleet_ahead, workers=1, agent=Coin) as here:
        here.collect(tickets(2))
        acts_with_the_next_checkpoint(here)


def acts_with_the_next_checkpoint(here: Site) -> None:
    here.checkpoint = here.save(1)
    result = here.collect(tickets(2, iteration=1))
    assert [trajectory.ticket.policy_version for trajectory in result.trajectories] == [1, 1]


@pytest.mark.parametrize("kind", [*HERE, Kind.fleet_host])
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
            slept_s = 8 * 3 * 0.1
            if sum(spent.values()) == whole_s and spent["step"] <= slept_s * 1.6:
                break
    assert sum(spent.values()) == whole_s
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
            assert sum(content["attempt"] for event, content in here.events if event == "episode") == iteration + 1
            lost = sum(worker_result.slot_seconds.get("faults", 0.0) for worker_result in result.worker_results)
            if how == "hang":
                assert 2.8 <= lost <= 4.5, "the limit of a step, and what two busy cores add"


@pytest.mark.parametrize("kind", HERE)
def test_an_emulator_that_never_works_ends_the_iteration_with_its_reason(tmp_path: Path, kind: Kind) -> None:
    with site(tmp_path, kind, workers=1) as here, pytest.raises(CollectionError, match="the device is on fire"):
        here.collect(tickets(4, at="reset", suffers="raise"))
    nothing_is_left_of(tmp_path)


@pytest.mark.parametrize("kind", [Kind.inline, RAY])  # tests/test_run.py interrupts one with SSH
def test_an_interrupted_collection_leaves_nothing_running(tmp_path: Path, kind: Kind) -> None:
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), site(tmp_path, kind, iterations=2, workers=1, step_s=0.5) as here:
        timer.start()
        here.collect(tickets(200))
    nothing_is_left_of(tmp_path)


@pytest.mark.parametrize("kind", HERE)
def test_what_an_interrupted_collection_has_not_begun_does_not_run_with_the_next_one(
    tmp_path: Path, kind: Kind
) -> None:
    with site(tmp_path, kind, iterations=2, workers=1, step_s=0.1) as here:
        timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            here.collect(tickets(10_000))
        here.checkpoint = here.save(1)
        assert keys(here.collect(tickets(4, iteration=1))) == [Key(1, index) for index in range(4)]
