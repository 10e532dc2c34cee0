"""A ticket that fails on several workers is set aside; a worker that fails at everything is to blame itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hand_pool import HandPool

from digirl_dist.collect.dispatch import Dispatch, DispatchRules
from digirl_dist.collect.leases import LeaseLedger, Leases
from digirl_dist.collect.reliability import Reliability
from digirl_dist.collect.worker_table import WorkerState, WorkerTable
from digirl_dist.errors import CollectionError, JobError, LinkLostError, MisconductError, UnreachableError
from digirl_dist.fleet.worker_events import Connecting, Lost, Pulled, Said
from digirl_dist.protocol.messages import MOST_REASON, EpisodeManifest, MachineFacts, Ready, UnknownFile, Working
from digirl_dist.settings import LimitSettings
from digirl_dist.storage.status import Status
from digirl_dist.tasks import Key, Purpose, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

WORKERS = ["a", "b"]
LIMITS = LimitSettings(slot_failures=3, back_off_s=1.0, back_off_max_s=8.0)
LEASE_S = 600.0
SEEN = Observation("", None, np.zeros(1, np.float32))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tickets(count: int, purpose: Purpose = "train") -> list[Ticket]:
    return [Ticket(0, index, Task(f"task-{index}"), index, 0, purpose=purpose) for index in range(count)]


def episode(ticket: Ticket) -> Trajectory:
    step = Step(SEEN, 0, -1.0, 1.0, terminated=True, truncated=False)
    return Trajectory(ticket, f"e{ticket.index}", "a", 0, [step], SEEN, success=True)


def manifest(ticket: Ticket, **changes: Any) -> EpisodeManifest:
    fields: dict[str, Any] = {"attempt": ticket.attempt, "policy_version": ticket.policy_version, **changes}
    return EpisodeManifest("r1", ticket.key, episode_id="e", size=1, digest="ab", slot=0, seconds=1.0, age_s=0.0,
                           spent={}, **fields)  # fmt: skip


class Round:
    """A round of real leases on a real store, whose tickets with an index in ``poisoned`` fail everywhere."""

    def __init__(
        self, root: Path, count: int, poisoned: set[int], share: float = 0.1, purpose: Purpose = "train"
    ) -> None:
        self.clock = Clock()
        self.leases = Leases(5, self.clock)
        self.pool = HandPool(root, self.leases, share)
        self.future = self.pool.asked(tickets(count, purpose))
        self.poisoned = poisoned
        self.aside: list[Key] = []

    def run(self, workers: list[str]) -> Any:
        while not self.future.done():
            self.clock.now += 10  # so that nobody rests
            for worker in workers:
                for ticket in self.leases.take(worker, 1, 0, workers):
                    if ticket.index not in self.poisoned:
                        self.leases.expect(worker, ticket.key, 0)
                        assert self.pool.land(ticket)
                    elif self.pool.fail(worker, ticket.key, f"crashed on {worker}", workers):
                        self.aside.append(ticket.key)
            self.pool.turn()
        return self.future.result()


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_a_poisoned_ticket_is_set_aside_and_the_others_come_home(tmp_path: Path, purpose: Purpose) -> None:
    here = Round(tmp_path, 20, {3, 7}, purpose=purpose)
    result = here.run(WORKERS)
    assert sorted(here.aside) == [Key(0, 3, purpose), Key(0, 7, purpose)] and len(result.set_aside) == 2
    assert len(result.trajectories) == 18
    assert not here.leases.set_aside, "the next iteration begins without them"


def test_too_many_of_them_end_the_run_and_name_tickets_workers_and_reasons(tmp_path: Path) -> None:
    with pytest.raises(CollectionError) as ended:
        Round(tmp_path, 20, {1, 2, 3}).run(WORKERS)
    said = str(ended.value)
    assert "3 of 20 tickets failed 5 times each, more than limits.set_aside_share" in said
    assert "ticket 2 (task task-2)" in said and "on a: crashed on a" in said and "on b: crashed on b" in said


@pytest.mark.parametrize(("count", "share"), [(1, 0.1), (20, 0.0)])
def test_one_may_be_set_aside_unless_it_is_the_only_one_or_none_is_allowed(
    tmp_path: Path, count: int, share: float
) -> None:
    with pytest.raises(CollectionError):
        Round(tmp_path, count, {0}, share).run(WORKERS)


def test_one_of_a_few_may_be_set_aside(tmp_path: Path) -> None:
    assert len(Round(tmp_path, 2, {0}).run(WORKERS).trajectories) == 1


def test_a_sole_worker_on_which_everything_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="(?m)5 times on a: crashed on a$"):
        Round(tmp_path, 20, set(range(20))).run(["a"])


def test_a_poisoned_ticket_is_set_aside_though_another_worker_always_runs_it_as_well() -> None:
    leases = Leases(5, Clock())
    leases.add(tickets(1))
    leases.take("a", 1, 0, WORKERS)
    failed = []
    for worker, other in [("a", "b"), ("b", "a")] * 3:
        for key, _, _ in leases.undoubled(version=0):
            leases.double(other, key)
        failed.append(leases.fail(worker, Key(0, 0), "crashed", WORKERS))
        if failed[-1]:
            break
    assert failed == [False] * 5 + [True], "the failures count, and in the end nobody runs it a second time"
    assert {failure.worker for failure in leases.set_aside[Key(0, 0)]} == {"a", "b"}


def test_a_failure_of_a_ticket_that_the_worker_does_not_hold_does_not_count() -> None:
    leases = Leases(1, Clock())
    leases.add(tickets(1))
    leases.take("a", 1, 0, WORKERS)
    assert not leases.fail("b", Key(0, 0), "lies", WORKERS)
    assert leases.holders(Key(0, 0)) == ["a"] and leases.is_blamed_on_one(Key(0, 0))
    assert not leases.fail("a", Key(0, 0), "crashed", WORKERS), "b has not failed at it"


def test_who_fails_a_ticket_again_and_again_leaves_it_to_one_that_failed_it_less() -> None:
    leases = Leases(5, Clock())
    leases.add(tickets(1))
    failed = []
    for worker in ("honest", *["liar"] * 20):
        if leases.take(worker, 1, 0, ["honest", "liar"]):
            assert not leases.fail(worker, Key(0, 0), "crashed", ["honest", "liar"])
            failed.append(worker)
    assert failed == ["honest", "liar", "liar"]
    assert leases.take("honest", 1, 0, ["honest", "liar"])


def test_two_liars_do_not_use_up_a_ticket_while_the_honest_worker_is_away_for_seconds() -> None:
    clock = Clock()
    leases = Leases(25, clock)
    leases.add(tickets(1))
    for now in np.arange(0, 10, 0.01):
        clock.now = now
        for liar in ("v", "w"):
            for _ in leases.take(liar, 1, 0, ["v", "w"]):
                assert not leases.fail(liar, Key(0, 0), "no reason", ["v", "w"])
    assert leases.take("honest", 1, 0, ["honest", "v", "w"])


def test_a_ticket_is_not_set_aside_for_what_one_worker_did_to_it() -> None:
    leases = Leases(3, Clock())
    leases.add(tickets(1))
    for _ in range(9):
        leases.take("liar", 1, 0, ["liar"])
        assert not leases.fail("liar", Key(0, 0), "lies", WORKERS)
    leases.forgive("liar")
    leases.take("a", 1, 0, WORKERS)
    assert not leases.fail("a", Key(0, 0), "crashed", WORKERS), "nine failures were forgiven"


def test_only_a_lease_that_was_given_is_an_episodes() -> None:
    leases = Leases(3, Clock())
    leases.add(tickets(2))
    [ticket] = leases.take("a", 1, version=4)
    leased = leases.as_leased("a", manifest(ticket))
    assert leased is not None and leased[0] == ticket
    assert leases.as_leased("b", manifest(ticket)) is None, "leased to another"
    for lie in ({"attempt": 1}, {"policy_version": 5}, {"policy_version": 3}):
        assert leases.as_leased("a", manifest(ticket, **lie)) is None
    assert leases.as_leased("a", manifest(tickets(2)[1])) is None, "never leased"
    assert not leases.adopt("a", Key(0, 1)), "a worker that comes back cannot take up what it never had"
    leases.land(ticket.key)
    assert leases.as_leased("a", manifest(ticket)) is None, "it has landed"


def test_a_restarted_host_knows_the_leases_of_its_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "leases.jsonl"
    before = Leases(3, Clock(), ledger=LeaseLedger(path))
    before.add(tickets(3))
    [first, second] = before.take("a", 2, version=0)
    path.write_bytes(path.read_bytes() + b'["a",[0,2')  # killed while it wrote
    after = Leases(3, Clock(), ledger=LeaseLedger(path))
    after.add(tickets(3))
    assert after.as_leased("a", manifest(first)) and not after.as_leased("a", manifest(tickets(3)[2]))
    assert after.adopt("a", second.key) and not after.adopt("b", first.key)
    [again] = after.take("b", 1, version=0)
    assert (again.key, again.attempt) == (first.key, 1), "two attempts never share a name"
    after.land(first.key)
    after.close(Key(1, 0).round)
    assert {grant.key for grant in LeaseLedger(path).known()} == {second.key}
    os.truncate(path, 1 << 27)
    assert not LeaseLedger(path).known(), "a stranger's file, which would take all memory"


def test_an_episode_lasted_no_longer_than_its_lease() -> None:
    clock = Clock()
    leases = Leases(3, clock)
    leases.add(tickets(1))
    [ticket] = leases.take("a", 1, version=0)
    clock.now = 5.0
    leased = leases.as_leased("a", manifest(ticket))
    assert leased is not None and [leased[1].seconds(told, clock.now) for told in (3.0, 1e9)] == [3.0, 5.0]


def reliability() -> tuple[Reliability, Clock]:
    clock = Clock()
    return Reliability(LIMITS, clock), clock


def test_a_worker_that_loses_all_it_is_given_waits_longer_each_time_and_is_then_given_up() -> None:
    here, clock = reliability()
    here.holds("a", 2)
    pauses = []
    for number in range(6):
        assert not here.failed("a", Key(0, number), 2), number
        if not here.may_take("a"):
            before = clock.now
            while not here.may_take("a"):
                clock.now += 0.5
            pauses.append(clock.now - before)
    assert here.failed("a", Key(0, 6), 2) and pauses == sorted(pauses) and pauses[-1] == 4.0


def test_a_ticket_that_fails_again_or_an_episode_that_lands_says_nothing_against_the_worker() -> None:
    here, _ = reliability()
    assert not any(here.failed("a", Key(0, 0), 2) for _ in range(50))
    for number in range(50):
        assert not here.failed("a", Key(0, number), 2)
        if number % 3 == 2:
            here.landed("a")


def test_a_worker_that_offended_gets_one_ticket_at_a_time_until_an_episode_lands() -> None:
    here, given, (_, trust, _) = dispatch({"a": 4, "b": 4}, set(), 40)
    trust.suspect("a")
    here.hand_out(0)
    assert {name: len(got) for name, got in given.items()} == {"a": 1, "b": 4}
    trust.landed("a")
    here.hand_out(0)
    assert len(given["a"]) == 4


def test_a_worker_that_offended_is_given_up_for_fewer_tickets_as_it_gets_one_at_a_time() -> None:
    here, _ = reliability()
    here.holds("a", 4)
    here.suspect("a")
    here.holds("a", 1)
    assert [here.failed("a", Key(0, number), 4) for number in range(4)] == [False, False, False, True]


def dispatch(slots: dict[str, int], chosen: set[str], count: int) -> tuple[Dispatch, dict[str, list[Ticket]], Any]:
    """Returns a dispatch over workers of so many slots, what is leased to whom, and the parts below."""
    clock = Clock()
    given: dict[str, list[Ticket]] = {name: [] for name in slots}
    workers = {
        name: SimpleNamespace(spec=SimpleNamespace(slots=None if name in chosen else number), lease=given[name].extend)
        for name, number in slots.items()
    }
    fleet: Any = SimpleNamespace(workers=workers)
    states = {name: WorkerState(slots=number, in_service=number) for name, number in slots.items()}
    leases, trust = Leases(5, clock), Reliability(LIMITS, clock)
    leases.add(tickets(count))
    events: Any = SimpleNamespace(emit=lambda *_, **__: None)
    rules = DispatchRules(prefetch=0, speculate=True)
    return Dispatch(fleet, states, leases, trust, rules, events, clock), given, (leases, trust, clock)


def test_a_worker_that_claims_ten_thousand_slots_leaves_the_others_their_tickets() -> None:
    here, given, (leases, trust, _) = dispatch({"liar": 10_000, "a": 2, "b": 2}, {"liar"}, 24)
    for _ in range(50):
        here.hand_out(0)
    assert {name: len(got) for name, got in given.items()} == {"liar": 8, "a": 2, "b": 2}
    for ticket in given["liar"]:
        leases.expect("liar", ticket.key, 0)
        leases.land(ticket.key)
        trust.landed("liar")
    here.hand_out(0)
    assert len(given["liar"]) == 20, "a machine that has so many slots shows it soon"


def test_slots_that_the_configuration_names_are_used_at_once() -> None:
    here, given, _ = dispatch({"large": 20, "a": 2}, set(), 22)
    here.hand_out(0)
    assert {name: len(got) for name, got in given.items()} == {"large": 20, "a": 2}


def test_a_worker_that_says_its_episodes_take_no_time_does_not_keep_tickets_from_others() -> None:
    here, given, (_, _, clock) = dispatch({"liar": 1, "a": 2}, set(), 24)
    here.pace.ended("liar", 1e-9)
    here.pace.ended("a", 1.0)
    here.hand_out(0)
    given["a"].clear()
    for _ in range(3):
        clock.now += 0.5
        here.hand_out(0)
    running = len(here._leases._running["a"])
    assert running == 2, "it was refused tickets for what the liar would soon have done"


def test_a_worker_that_fails_duplicates_at_once_uses_up_one_attempt_of_each_ticket() -> None:
    here, given, (leases, _, clock) = dispatch({"liar": 8, "a": 7}, set(), 7)
    leases.take("a", 7, 0)
    here.pace.ended("a", 1.0)
    for clock.now in np.arange(2.0, 9.0):
        here.hand_out(0)
        assert not any(leases.fail("liar", ticket.key, "crashed", WORKERS) for ticket in given["liar"])
    assert len(given["liar"]) == 7 == len(leases.undoubled(0)), "others may double what hangs"


def test_events_of_a_worker_are_bounded_and_what_is_left_out_is_counted() -> None:
    told: list[Any] = []
    table, clock = fleet_of("a", "b", emit=lambda kind, **content: told.append((clock.now, kind, content)))
    for number in range(10_000):
        clock.now = number / 1000
        table.tell("episode_dropped", "a", episode="x", reason="r" * 30_000)
    table.tell("episode_dropped", "b", episode="x", reason="of another")
    clock.now += 5.0
    table.tell("slot", "a", reason="")
    for second in range(10):
        of_second = [at for at, _, content in told if content["worker"] == "a" and second <= at < second + 1]
        assert len(of_second) <= 100
    assert any(content["worker"] == "b" for _, _, content in told)
    left_out = sum(content["count"] for _, kind, content in told if kind == "events_left_out")
    assert left_out + sum(kind == "episode_dropped" for _, kind, _ in told) == 10_001
    assert all(len(content.get("reason", "")) < 5000 for _, _, content in told)


def fleet_of(*names: str, emit: Callable[..., None] = lambda *_, **__: None) -> tuple[WorkerTable, Clock]:
    clock = Clock()
    events: Any = SimpleNamespace(emit=emit)
    fleet: Any = SimpleNamespace(workers=dict.fromkeys(names))
    return WorkerTable(fleet, Leases(5, clock, LEASE_S), LIMITS, events, Status(Path("status.json")), clock), clock


def offends(table: WorkerTable, worker: str) -> None:
    table.take_in(Lost(worker, MisconductError(worker, "lies"), LIMITS.quarantine_s))


def joins(table: WorkerTable, worker: str) -> None:
    table.take_in(Said(worker, Working(2, "", [])))


def lands(table: WorkerTable, worker: str) -> None:
    [ticket] = tickets(1)
    table.landed(Pulled(worker, manifest(ticket), episode(ticket), Path("e"), 0.0))


def test_a_fleet_that_brought_nothing_home_and_is_out_of_service_altogether_ends_the_run_at_once() -> None:
    table, _ = fleet_of("a", "b")
    offends(table, "a")
    table.check_that_somebody_can(0, 1)
    offends(table, "b")
    with pytest.raises(CollectionError, match="no worker could run anything, "):
        table.check_that_somebody_can(0, 1)


def test_a_fleet_that_worked_is_waited_for_though_all_are_out_of_service_for_a_while() -> None:
    table, clock = fleet_of("a", "b")
    lands(table, "a")
    offends(table, "a")
    offends(table, "b")
    clock.now = LIMITS.no_worker_s - 1.0
    table.check_that_somebody_can(0, 1)
    joins(table, "a")
    lands(table, "a")
    table.check_that_somebody_can(0, 1)
    offends(table, "a")
    clock.now += LIMITS.no_worker_s - 1.0
    table.check_that_somebody_can(0, 1)
    clock.now += 2.0
    with pytest.raises(CollectionError, match="no worker could run anything for 300 s"):
        table.check_that_somebody_can(0, 1)


def test_an_installation_is_waited_for_as_long_as_it_may_take_but_not_again_and_again() -> None:
    table, clock = fleet_of("a", "b")
    table.take_in(Lost("b", UnreachableError("b", "it is down")))
    table.take_in(Connecting("a", "install or check the package", 1800.0, is_installing=True))
    for clock.now in (299.0, 301.0, 1799.0):
        table.check_that_somebody_can(0, 1)
    table.take_in(Lost("a", LinkLostError("a", "broke")))
    table.take_in(Connecting("a", "install or check the package", 1800.0, is_installing=True))
    clock.now += LIMITS.no_worker_s - 1.0
    table.check_that_somebody_can(0, 1)
    clock.now += 2.0
    with pytest.raises(CollectionError, match="no worker could run anything for 300 s"):
        table.check_that_somebody_can(0, 1)


def test_a_start_is_waited_for_no_longer_than_no_worker_s() -> None:
    """Limits and words at one end only: limits.start_s may be longer, and so may the wait for a Ray actor."""
    table, clock = fleet_of("a")
    for doing in ("connect and log in", "start the worker program and its emulators"):
        table.take_in(Connecting("a", doing, 1800.0))
        table.check_that_somebody_can(0, 1)
        clock.now += LIMITS.no_worker_s / 2 + 1.0
    with pytest.raises(CollectionError, match="no worker could run anything for 300 s"):
        table.check_that_somebody_can(0, 1)


def test_a_fleet_that_fails_again_and_again_after_all_went_well_comes_to_an_end() -> None:
    """Its errors are no longer for good, since it has brought episodes: a policy may have become NaN."""
    table, clock = fleet_of("a")
    lands(table, "a")
    with pytest.raises(CollectionError, match="no worker could run anything for 300 s"):
        while clock.now < 4 * LIMITS.no_worker_s:
            joins(table, "a")
            table.check_that_somebody_can(0, 1)
            table.take_in(Lost("a", JobError("a", "it cannot act: NaN"), None, is_final=False))
            table.check_that_somebody_can(0, 1)
            clock.now += 30.0
    assert clock.now > LIMITS.no_worker_s


@pytest.mark.component
@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}", "\0"])
def test_events_of_a_worker_are_bounded_by_their_bytes(letter: str) -> None:
    """`unknown_file` 19 times a second with long reasons, and losses as often as a worker may come back."""
    table, clock = fleet_of("a")
    stored: list[int] = []
    events: Any = table._events
    events.emit = lambda kind, **content: stored.append(len(json.dumps({"event": kind, **content})))
    minute = 0.0
    while clock.now < 600.0:
        for _ in range(19):
            table.take_in(Said("a", UnknownFile(letter * 256, letter * MOST_REASON)))
        if clock.now % 30 == 0:
            table.take_in(
                Said(
                    "a",
                    Ready(5, "", "3", 1, MachineFacts("c", 1, 1, "s", "3", {f"{n}": letter * 64 for n in range(200)})),
                )
            )
            table.take_in(Lost("a", LinkLostError("a", letter * MOST_REASON)))
        clock.now += 1.0
        if clock.now % 60 == 0:
            assert 0 < sum(stored) - minute < 1_000_000
            minute = sum(stored)
    assert max(stored) < 20_000


def test_workers_that_come_back_and_bring_nothing_do_not_keep_a_run_going_for_ever() -> None:
    table, clock = fleet_of("a", "b")
    lands(table, "a")
    end = LEASE_S + LIMITS.no_worker_s
    while clock.now < end:
        for worker in ("a", "b"):
            offends(table, worker)
        table.check_that_somebody_can(0, 1)
        joins(table, "b")
        table.check_that_somebody_can(0, 1)
        clock.now += 10.0
    clock.now = end + 1.0
    table.check_that_somebody_can(0, 1)  # its episode may still be under way
    offends(table, "b")
    with pytest.raises(CollectionError, match="no worker could run anything for 300 s"):
        table.check_that_somebody_can(0, 1)


def test_a_worker_that_came_back_and_has_long_episodes_may_be_away_for_a_moment() -> None:
    table, clock = fleet_of("a")
    lands(table, "a")
    offends(table, "a")
    for at in (60.0, LIMITS.no_worker_s + 60.0):
        clock.now = at
        joins(table, "a")
        table.check_that_somebody_can(0, 1)
        table.take_in(Lost("a", LinkLostError("a", "broke")))
        table.check_that_somebody_can(0, 1)
