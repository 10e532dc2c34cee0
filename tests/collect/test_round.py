"""One round's tickets and figures, without a fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hand_pool import HandPool
from simulate.store import MemoryLedger

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.leases import Leases
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import CollectionError
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Purpose, Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


class Clock:
    """A clock that a test sets."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


def episode(ticket: Ticket) -> Trajectory:
    seen = Observation("seen", None, None)
    step = Step(seen, 0, -0.5, 1.0, terminated=True, truncated=False)
    return Trajectory(ticket, f"{ticket.index}-{ticket.purpose}", "w1", 0, [step], seen, success=True)


def test_a_slot_that_begins_while_others_run_is_no_overhead() -> None:
    """Such as that of a worker that joins late: the time until its first action counted as overhead."""
    clock = Clock()
    stats = IterationStats(clock)
    stats.ended("w1", 60.0, 0.0)  # begun in an iteration before
    for slot in range(2):
        clock.at += 1.0
        stats.acting("w1", slot)
    clock.at += 10.0
    stats.ended("w1", 9.0, 0.0)
    clock.at += 1.0
    stats.acting("w2", 0)
    assert stats.result(Round(1), []).acting_at == 102.0


@pytest.mark.parametrize(("seconds", "age_s"), [(3.0, 0.0), (1e9, 0.0), (1e9, 1e9), (0.0, 1e9)])
def test_a_busy_share_is_one_at_most_whatever_workers_say_or_bring_from_before(seconds: float, age_s: float) -> None:
    clock = Clock()
    stats = IterationStats(clock)
    stats.has_slots("w1", 1)
    stats.has_slots("w2", 1)
    for _ in range(3):
        stats.ended("w1", seconds, age_s)
        clock.at += 1.0
    stats.ended("w2", 0.5, 0.0)
    busy = stats.result(Round(0), []).busy
    assert busy is not None and 0.0 <= busy <= 1.0


# --- identity by place -----------------------------------------------------------------------------------------------

OTHERS = {
    "seed": {"seed": 9},
    "task": {"task": Task("other")},
    "instruction": {"task": Task("t", "do it")},
    "params": {"task": Task("t", params={"level": 2})},
    "policy": {"policy_version": 7},
}


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("purpose", ["train", "evaluate", "measure"])
def test_identity_by_place_what_landed_for_another_ticket_of_that_place_is_left_aside(
    tmp_path: Path, how: str, purpose: Purpose
) -> None:
    """It was taken for the episode that is asked for now, whatever its task, seed and policy."""
    wanted = [Ticket(0, index, Task("t"), index, 0, purpose=purpose) for index in range(2)]
    other = replace(wanted[0], **OTHERS[how])
    before = Store(tmp_path / "trajectories")
    before.land(other.round, episode(other))
    before.land(wanted[1].round, episode(wanted[1]))
    pool = HandPool(tmp_path)
    asked = pool.asked(wanted)
    assert pool.leases.queued == 1 and not asked.done()
    pool.leases.take("w1", 2, 0)
    assert pool.land(wanted[0])
    pool.turn()
    assert [one.ticket for one in asked.result(0).trajectories] == wanted
    left = purpose != "measure" or how != "policy"  # a measurement of another policy has keys of its own
    assert len(pool.told) == left == len([*tmp_path.glob("trajectories/.landing/aside/*")])


def test_identity_by_place_what_an_iteration_does_not_ask_for_is_no_part_of_it(tmp_path: Path) -> None:
    """Of a call for twelve that was killed, one for three returned all that had landed."""
    wanted = [Ticket(0, index, Task("t"), index, 0) for index in range(12)]
    store = Store(tmp_path / "trajectories")
    for ticket in wanted:
        store.land(ticket.round, episode(ticket))
    pool = HandPool(tmp_path)
    found = pool.asked(wanted[:3]).result(0).trajectories
    assert [one.ticket.index for one in found] == [0, 1, 2]
    assert [kind for kind, _ in pool.told] == ["episode_left_aside"] * 9


def test_identity_by_place_a_later_iteration_that_is_begun_ahead_takes_none_of_another(tmp_path: Path) -> None:
    now, later = ([Ticket(number, 0, Task("t"), 5, 0)] for number in (0, 1))
    Store(tmp_path / "trajectories").land(Round(1), episode(replace(later[0], seed=6)))
    pool = HandPool(tmp_path)
    for tickets in (now, later):
        pool.asked(tickets)
    assert later[0].key in pool.leases.tickets and not pool.store.landed(Round(1))
    pool.leases.take("w1", 2, 0)
    assert pool.land(later[0]) and pool.store.landed(Round(1))[later[0].key].ticket.seed == 5


def test_identity_by_place_a_round_that_has_ended_otherwise_is_refused_with_a_remedy(tmp_path: Path) -> None:
    wanted = [Ticket(0, 0, Task("t"), 5, 0)]
    store = Store(tmp_path / "trajectories")
    store.append(CollectionResult(0, [episode(replace(wanted[0], task=Task("other")))]))
    with pytest.raises(CollectionError, match="another task: 'other' instead of 't' -> restore its tasks"):
        HandPool(tmp_path).asked(wanted)


def test_identity_by_place_an_earlier_policy_is_no_other_ticket_where_iterations_overlap(tmp_path: Path) -> None:
    wanted = [Ticket(4, 0, Task("t"), 5, 4)]
    for version in (2, 4):
        store = Store(tmp_path / f"{version}" / "trajectories")
        store.land(Round(4), episode(replace(wanted[0], policy_version=version)))
        assert len(HandPool(tmp_path / f"{version}").asked(wanted).result(0).trajectories) == 1


def test_identity_by_place_a_host_that_asks_for_other_tasks_takes_no_episode_of_its_predecessors_lease() -> None:
    """The worker still held it; key, attempt and policy were the same, so it was pulled and the worker was blamed."""
    before, now = (Ticket(0, 0, Task(name), 5, 0) for name in ("old", "new"))
    given = Leases(3, Clock(), ledger=(ledger := MemoryLedger()))
    given.add([before])
    given.take("w1", 1, 0)
    told = EpisodeManifest("r1", before.key, 0, 0, "e", 1, "ab", 0, 1.0, 0.0, {})
    for asked, is_others in ((before, False), (now, True)):
        leases = Leases(3, Clock(), ledger=ledger)
        leases.add([asked])
        assert leases.is_of_others("w1", told) is is_others
        assert (leases.as_leased("w1", told) is None) is is_others
        assert leases.adopt("w1", before.key) is not is_others
