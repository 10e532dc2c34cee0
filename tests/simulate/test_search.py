"""Seeds: that they hold, replay, and become smaller when they do not."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from digirl_dist.child_process import environment
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from simulate.__main__ import main
from simulate.faults import KINDS
from simulate.planted import lost_lease
from simulate.scenario import draw
from simulate.search import command, examine, outcome, shrunk
from simulate.store import MemoryStore


@pytest.mark.component
def test_promises_hold_in_the_first_seeds() -> None:
    broken = [found.detail for found in map(examine, range(150)) if found.promise]
    assert not broken


@pytest.mark.parametrize(
    ("seed", "workers", "tickets", "iterations", "faults"),
    [
        (302, 4, 8, 3, [0, 4]),  # an agent that breaks behind a half-open link: its worker is asked to end in vain
        (654, 2, 5, 3, [1, 4]),  # an iteration that is begun ahead once it is the present one
        (12587, 1, 1, 1, [2, 4]),  # a host that slept gives a silent link all of its time again
        (16191, 2, 4, 2, [3]),  # two accounts of seconds on the way at once
        (19383, 3, 3, 1, [0, 1]),  # a half-open link, and then a program that is stopped
        (19466, 2, 1, 1, [4]),  # the last words of a worker that was let go, and is back already
        (20417, 3, 3, 1, [0]),  # an account that the host never heard
        (21264, 3, 6, 1, [1, 2]),  # a worker that is away at the end, with an account from shortly before
        (310171, 1, 4, 2, [1, 2, 3]),  # an episode that lay ready lands while its ticket is leased anew to its worker
        (403787, 2, 3, 2, [3]),  # both attempts of a ticket lie ready, and the file of the first is damaged
        (499503, 2, 4, 1, [1, 3, 4, 5]),  # an older attempt is forged of a ticket that was taken up again
        (495690, 1, 10, 3, [2, 3]),  # twenty episodes that wait at a slow link
        (596729, 3, 10, 3, [1, 2]),  # two accounts made in one moment, of which only the first came before the end
        (796173, 4, 3, 1, [0]),  # an account that comes at the moment in which the collector stops waiting for it
        (869897, 1, 3, 1, [0, 1]),  # an episode announced before its lease, which is refused while the lease runs
        (23935, 2, 2, 2, [0, 2]),  # forged files that a stopped program never announces
    ],
)
def test_a_seed_that_broke_a_promise_once_holds(
    seed: int, workers: int, tickets: int, iterations: int, faults: list[int]
) -> None:
    assert not outcome(draw(seed).smaller(workers, tickets, iterations, faults)).detail


def test_the_seeds_draw_every_kind_of_fault_and_way_to_collect() -> None:
    drawn = [draw(seed) for seed in range(300)]
    assert {fault.kind for scenario in drawn for fault in scenario.faults} == set(KINDS)
    assert {scenario.schedule.ahead for scenario in drawn} == {0, 1, 2}
    assert any(scenario.schedule.evaluate_every for scenario in drawn)


@pytest.mark.component
def test_a_seed_replays_byte_for_byte_whatever_the_interpreters_hashes_are() -> None:
    program = "from simulate.search import examine; print([examine(n).digest for n in range(20)])"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**environment(), "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {f"{[examine(number).digest for number in range(20)]}\n"}


def test_a_failing_seed_is_made_small_and_its_command_breaks_the_same_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost_lease(monkeypatch)
    seed = next(number for number in range(60) if examine(number).promise)
    promise, scenario = examine(seed).promise, draw(seed)
    small = shrunk(scenario, promise)
    assert outcome(small).promise == promise
    assert len(small.faults) <= len(scenario.faults) and small.schedule.rollout_size <= scenario.schedule.rollout_size
    assert main(shlex.split(command(small))[1:]) == 1
    assert f"{promise}:" in capsys.readouterr().out.splitlines()[-1]


def test_the_store_in_memory_does_what_the_store_on_disk_does(tmp_path: Path) -> None:
    for seed in range(5):
        stores: list[Store] = [Store(tmp_path / f"{seed}" / "trajectories"), MemoryStore()]
        assert [_walk(store, Random(seed)) for store in stores] == [_walk(MemoryStore(), Random(seed))] * 2


def _walk(store: Store, rng: Random) -> list[object]:
    """Does the same at random with any store; returns what it answered."""
    said: list[object] = []
    for _ in range(30):
        wanted = Round(rng.randrange(3), rng.choice(("train", "train", "evaluate")))
        episodes = [_episode(Ticket(wanted.number, index, Task("t"), 0, 0, 0, wanted.purpose)) for index in range(3)]
        match rng.randrange(4):
            case 0 | 1:
                said.append(store.land(wanted, rng.choice(episodes)))
            case 2:
                landed = list(store.landed(wanted).values())
                store.append(CollectionResult(wanted.number, landed, purpose=wanted.purpose))
            case _:
                said += [sorted(store.landed(wanted)), store.has(wanted)]
    return said


def _episode(ticket: Ticket) -> Trajectory:
    seen = Observation("seen", None, None)
    step = Step(seen, 0, -0.5, 1.0, terminated=True, truncated=False)
    return Trajectory(ticket, f"{ticket.index}-{ticket.purpose}", "w1", 0, [step], seen, success=True)
