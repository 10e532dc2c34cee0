"""Episodes on slots: decided by their tickets, lost one at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_watch import descriptors_left
from user_classes import Coin, Counter, FairCoin

from digirl_dist.emulator import episode_limits
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.protocol.messages import Acting, EpisodeFailed, SlotChanged, SlotLimits
from digirl_dist.rollout import rollout as rollout_module
from digirl_dist.rollout.rollout import Finished, Happening, Rollout
from digirl_dist.rollout.slot import Slot, State
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import float32
from digirl_dist.user_code.packing import pack

pytestmark = pytest.mark.component

LIMITS = SlotLimits(boot_s=20, reset_s=2, step_s=2, failures=2, back_off_s=0.05)


@contextmanager
def rollout(
    folder: Path, slots: int = 2, max_steps: int | None = None, agent: Any = Coin, **options: Any
) -> Iterator[Rollout]:
    (folder / "factory").write_bytes(pack(partial(Counter, **options)))
    policies = LocalPolicies(partial(agent, Counter.spec))
    policies.load(0, agent(Counter.spec).state_dict())
    made = [Slot(k, folder / "factory", LIMITS, folder / f"{k}.log") for k in range(slots)]
    running = Rollout("w1", made, policies, max_steps)
    try:
        yield running
    finally:
        running.close()


def run(running: Rollout, until: Callable[[list[Happening]], bool], limit_s: float = 30.0) -> list[Happening]:
    happened: list[Happening] = []
    deadline = time.monotonic() + limit_s
    while not until(happened):
        assert time.monotonic() < deadline, happened
        happened += running.turn(0.2)
    return happened


def finished(happened: list[Happening]) -> list[Finished]:
    return [one for one in happened if isinstance(one, Finished)]


def tickets(count: int, **params: Any) -> list[Ticket]:
    task = Task("count", params=params)
    return [Ticket(0, index, task, seed=100 + index, policy_version=0) for index in range(count)]


def collect(folder: Path, slots: int) -> dict[int, list[Any]]:
    with rollout(folder, slots) as running:
        running.lease(tickets(6))
        done = finished(run(running, lambda happened: len(finished(happened)) == 6))
    return {one.trajectory.ticket.index: [step.action for step in one.trajectory.steps] for one in done}


def test_what_is_collected_does_not_depend_on_the_number_of_slots(tmp_path: Path) -> None:
    assert collect(tmp_path, slots=1) == collect(tmp_path, slots=3)


def test_a_frozen_emulator_that_is_asked_for_much_holds_up_no_other(tmp_path: Path) -> None:
    with rollout(tmp_path, slots=2) as running:
        run(running, lambda happened: len(happened) == 2)
        frozen = running.slots[0]
        assert frozen._process is not None
        [emulator] = psutil.Process(frozen._process.pid).children()
        emulator.suspend()
        running.lease(tickets(2, unread="x" * 4_000_000))
        kinds = {EpisodeFailed, Finished}
        happened = run(running, lambda happened: kinds <= {type(one) for one in happened})
    [(index, reason)] = [(one.slot, one.reason) for one in happened if isinstance(one, EpisodeFailed)]
    assert index == 0 and "did not answer its reset in time" in reason
    assert [one.trajectory.slot for one in finished(happened)] == [1]


def test_a_machine_that_refuses_descriptors_for_a_while_costs_the_slot_a_pause(tmp_path: Path) -> None:
    with rollout(tmp_path, slots=1) as running:
        with descriptors_left(0):
            [refused] = running.turn(0.0)
        assert isinstance(refused, SlotChanged) and refused.state == "down"
        assert "cannot be started" in refused.reason and "ulimit" in refused.reason
        running.lease(tickets(1))
        run(running, lambda happened: bool(finished(happened)))


def test_an_episode_says_where_it_came_from_and_where_its_time_went(tmp_path: Path) -> None:
    with rollout(tmp_path, slots=1, step_s=0.05) as running:
        running.lease(tickets(1))
        happened = run(running, lambda happened: bool(finished(happened)))
    (done,) = finished(happened)
    trajectory = done.trajectory
    assert (trajectory.worker, trajectory.slot, trajectory.episode_id) == ("w1", 0, "000000-00000-0-w1-0")
    assert len(trajectory.steps) == 3 and trajectory.steps[-1].terminated
    assert trajectory.final_observation.vector is not None and trajectory.final_observation.vector[0] == 3
    assert 0.15 <= done.spent["step"] <= done.ended_at - done.started_at
    assert [type(one) for one in happened] == [SlotChanged, Acting, Finished]


def test_numbers_are_those_that_a_resume_reads_back(tmp_path: Path) -> None:
    with rollout(tmp_path, slots=1, agent=FairCoin) as running:
        running.lease(tickets(1))
        (done,) = finished(run(running, lambda happened: bool(finished(happened))))
    assert {step.log_prob for step in done.trajectory.steps} == {float32(-math.log(2))} != {-math.log(2)}


def test_an_episode_that_is_too_long_is_truncated(tmp_path: Path) -> None:
    with rollout(tmp_path, slots=1, max_steps=2) as running:
        running.lease(tickets(1))
        (done,) = finished(run(running, lambda happened: bool(finished(happened))))
    last = done.trajectory.steps[-1]
    assert len(done.trajectory.steps) == 2 and last.truncated and not last.terminated


def test_an_emulator_that_exceeds_the_limits_of_an_episode_is_at_fault_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_limits, "LARGEST_NUMBER", 2.5)
    with rollout(tmp_path, slots=1) as running:
        running.lease(tickets(1))
        happened = run(running, lambda happened: any(isinstance(one, EpisodeFailed) for one in happened))
        assert [slot.state for slot in running.slots] == [State.idle]
    (failed,) = [one for one in happened if isinstance(one, EpisodeFailed)]
    reason = "a vector with the number 3; at most 2.5 is allowed: scale it, or leave it out"
    assert failed.reason == f"task count, step 2: the emulator or the agent exceeds the limits of an episode: {reason}"


def test_an_episode_without_an_end_is_told_of_and_ended_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MOST_STEPS", 50), ("_LONG", 10), ("_MANY", 5)):
        monkeypatch.setattr(rollout_module, name, value)
    doing: set[str] = set()

    def is_over(happened: list[Happening]) -> bool:
        doing.update(wait.activity for wait in running.waits())
        return any(isinstance(one, EpisodeFailed) for one in happened)

    with rollout(tmp_path, slots=1, length=10**6) as running:
        running.lease(tickets(1))
        happened = run(running, is_over, limit_s=60)
        assert [slot.state for slot in running.slots] == [State.idle], "the emulator did nothing wrong"
    told = [one.reason for one in happened if isinstance(one, SlotChanged) and one.state == "long"]
    assert [reason.split(", and")[0] for reason in told] == [f"ticket 0, task count: {n} steps" for n in (10, 20, 40)]
    (failed,) = [one for one in happened if isinstance(one, EpisodeFailed)]
    assert (
        "no end after 50 steps; if it never ends, set max_steps, or give the environment a TimeLimit" in failed.reason
    )
    assert any(activity.endswith("after 45 steps") for activity in doing)


@pytest.mark.parametrize("how", ["hang", "die", "raise"])
def test_a_failing_emulator_costs_its_own_episode_only(tmp_path: Path, how: str) -> None:
    trouble = tickets(1, at="step", suffers=how, once=str(tmp_path / "once"))
    healthy = [Ticket(0, index, Task("count"), seed=index, policy_version=0) for index in range(1, 9)]
    with rollout(tmp_path, step_s=0.05) as running:
        running.lease([*trouble, *healthy])
        happened = run(running, lambda happened: len(finished(happened)) == 8)
        happened += run(running, lambda later: any(isinstance(one, EpisodeFailed) for one in [*happened, *later]))
        (failed,) = [one for one in happened if isinstance(one, EpisodeFailed)]
        assert failed.key.number == 0
        running.lease(trouble)
        again = finished(run(running, lambda happened: bool(finished(happened))))
    assert {one.trajectory.ticket.index for one in finished(happened)} == set(range(1, 9))
    assert [one.trajectory.ticket.index for one in again] == [0]


def test_a_ticket_that_fails_again_and_again_says_nothing_against_the_slot(tmp_path: Path) -> None:
    poisoned, [healthy] = tickets(1, at="reset", suffers="raise"), tickets(2)[1:]
    with rollout(tmp_path, slots=1) as running:
        for failures in range(1, 5):
            running.lease(poisoned)
            happened = run(running, lambda happened: any(isinstance(one, EpisodeFailed) for one in happened))
            assert running.in_service() == 1, f"closed after {failures} failures of one ticket: {happened}"
        running.lease([healthy])
        (done,) = finished(run(running, lambda happened: bool(finished(happened))))
    assert done.trajectory.ticket.index == 1


def test_a_dropped_ticket_brings_nothing_and_frees_its_slot(tmp_path: Path) -> None:
    first, second, third = tickets(3)
    with rollout(tmp_path, slots=1, step_s=0.2) as running:
        running.lease([first, second, third])
        run(running, lambda happened: any(isinstance(one, Acting) for one in happened))
        running.drop({first.key, second.key})
        assert [ticket.index for ticket in running.held()] == [2]
        (done,) = finished(run(running, lambda happened: bool(finished(happened))))
    assert done.trajectory.ticket.index == 2
