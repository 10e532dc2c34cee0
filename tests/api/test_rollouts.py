"""Rollouts one by one: futures, groups, keys that outlive processes, losses that say what they were lost to."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from process_watch import kill_a_worker_program
from run_files import events
from test_run import ROOT
from user_classes import Coin, Counter

from digirl_dist import Fleet, Policy, Run, Task
from digirl_dist.api.episodes import Episode
from digirl_dist.child_process import environment
from digirl_dist.collect.leases import Lost
from digirl_dist.collect.stream import Rollout
from digirl_dist.errors import SettingsError
from digirl_dist.report.why import explain
from digirl_dist.tasks import SEEDS
from digirl_dist.trajectory import Decision, Observation

pytestmark = pytest.mark.system
COUNTER: dict[str, Any] = {"name": "custom", "entry_point": "user_classes:Counter"}
FINE = Task("fine")
DIES = Task("bad", params={"at": "reset", "suffers": "die"})


def always_one(observations: Sequence[Observation]) -> list[int]:
    return [1 for _ in observations]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.chdir(ROOT / "tests")
    with Fleet.inline(
        bsize=2, emulator=COUNTER, save_path=str(tmp_path / "kept"), limits={"episode_attempts": 2}
    ) as opened:
        yield opened


def landed(rollout: Rollout) -> Episode:
    found = rollout.result(60)
    assert isinstance(found, Episode), found
    return found


def test_a_rollout_is_a_future_that_can_be_awaited_and_a_function_acts(fleet: Fleet) -> None:
    first = fleet.submit(FINE, act=always_one)
    others = [fleet.submit(FINE, seed=seed, share="train") for seed in (3, 4)]
    assert {landed(each).ticket.seed for each in fleet.as_completed(others)} == {3, 4}
    assert landed(first).success and landed(first).ticket.seed in SEEDS["train"]
    assert [step.action for step in landed(first).steps] == [1, 1, 1]

    async def both() -> list[Any]:
        return list(await asyncio.gather(*(fleet.submit(FINE) for _ in range(2))))

    assert all(isinstance(one, Episode) for one in asyncio.run(both()))


def test_a_loss_says_what_it_was_lost_to_and_is_no_episode(fleet: Fleet) -> None:
    emulator = fleet.submit(DIES, act=always_one, key="dies").result(60)
    assert isinstance(emulator, Lost) and emulator.kind == "environment" and "reset" in emulator.reason
    agent = fleet.submit(FINE, act=lambda seen: [7] * len(seen)).result(60)
    assert isinstance(agent, Lost) and agent.kind == "agent" and "neither 0 nor 1" in agent.reason
    fits = landed(fleet.submit(FINE, act=always_one))
    assert (fits.reward, fits.ticket.policy_version) == (3.0, 2), "each function that acts is a version"
    assert landed(fleet.submit(FINE, act=always_one)).ticket.policy_version == 2
    assert isinstance(again := fleet.submit(DIES, key="dies").result(60), Lost), "what was lost runs again"
    assert again.kind == "environment"


def test_a_function_that_hangs_costs_what_it_was_asked_for_and_goes_on_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    returns = threading.Event()

    def act(observations: Sequence[Observation]) -> list[int]:
        assert returns.wait(120)
        return [1 for _ in observations]

    with Fleet.inline(bsize=1, emulator=COUNTER, limits={"stuck_s": 1, "episode_attempts": 1}) as fleet:
        lost = fleet.submit(FINE, act=act).result(60)
        assert isinstance(lost, Lost) and lost.kind == "agent" and "did not decide 1 actions within 1 s" in lost.reason
        returns.set()
        assert landed(fleet.submit(FINE)).reward == 3.0


def test_who_cancels_or_sets_a_deadline_gets_the_slot_back(fleet: Fleet) -> None:
    hangs = Task("hangs", params={"at": "reset", "suffers": "hang"})
    slow = [fleet.submit(hangs, act=always_one, key="a"), fleet.submit(hangs, deadline_s=1.0)]
    assert (slow[0].cancel() and not slow[0].done()) or slow[0].done()
    found = [each.result(60) for each in slow]
    assert [isinstance(one, Lost) and one.kind for one in found] == ["cancelled"] * 2
    assert not slow[0].cancel()


def test_a_key_is_one_rollout(fleet: Fleet, tmp_path: Path) -> None:
    asked = [fleet.submit(FINE, act=always_one, key="k") for _ in range(3)]
    assert len({id(landed(each).steps[0]) for each in asked}) == 1
    assert landed(fleet.submit(FINE, key="k")).episode_id == landed(asked[0]).episode_id
    with pytest.raises(SettingsError, match="key='k' was asked for before, and not so"):
        fleet.submit(Task("other"), key="k")
    fleet.acknowledge(["k"])
    assert landed(fleet.submit(FINE, key="k")).episode_id != landed(asked[0]).episode_id
    assert len(Run(tmp_path / "kept").episodes()) == 2


def test_groups_start_alike_and_name_what_is_missing(fleet: Fleet) -> None:
    assert fleet.update(always_one) == 0
    groups = {group.task.id: group for group in fleet.stream([FINE, DIES, Task("third")], group_size=3, key="step-1")}
    assert {name: len(group) for name, group in groups.items()} == {"fine": 3, "bad": 0, "third": 3}
    assert [one.kind for one in groups["bad"].missing] == ["environment"] * 3
    assert {one.ticket.seed for one in groups["fine"]} == {groups["fine"].seed}
    again = next(iter(fleet.stream([FINE], group_size=3, key="step-1")))
    assert [one.episode_id for one in again] == [one.episode_id for one in groups["fine"]]


def test_a_group_that_does_not_start_alike_is_reported_once_for_its_task(fleet: Fleet, tmp_path: Path) -> None:
    tasks = [Task("drifts", params={"drifts": True}), FINE, Task("drifts", params={"drifts": True})]
    assert [len(group) for group in fleet.stream(tasks, act=always_one, group_size=2)] == [2, 2, 2]
    (told,) = events(tmp_path / "kept", "starts_differ")
    assert told["task"] == "drifts" and "started differently" in told["reason"]
    assert "groups do not start alike, task drifts: two episodes of seed" in explain(tmp_path / "kept")


def test_an_endless_stream_asks_for_no_more_than_it_may_and_later_groups_act_with_what_is_newest(fleet: Fleet) -> None:
    stream = fleet.stream(itertools.repeat(FINE), act=always_one, group_size=2)
    assert next(stream)[0].ticket.policy_version == 0
    assert fleet.update(always_one, version=17) == 17
    versions = [next(stream)[0].ticket.policy_version for _ in range(8)]
    assert versions[-1] == 17 and versions == sorted(versions)
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="version"):
        fleet.update(always_one, version=3)


def test_a_version_that_no_file_could_hold_is_refused_and_changes_nothing(fleet: Fleet) -> None:
    fleet.update(always_one, version=17)
    with pytest.raises(SettingsError, match="is no whole number from 18 to 4,503,599,627,370,496"):
        fleet.update(lambda seen: [0 for _ in seen], version=time.time_ns())
    assert landed(fleet.submit(FINE)).reward == 3.0
    assert fleet.update(always_one, version=2**52) == 2**52
    assert fleet.update(always_one) == 2**52 + 1
    assert landed(fleet.submit(FINE)).ticket.policy_version == 2**52 + 1


def test_each_step_has_the_version_of_the_function_that_acted(tmp_path: Path) -> None:
    def acts_as(version: int) -> Callable[[Sequence[Observation]], list[Decision]]:
        return lambda seen: [Decision({"type": "wait"}, -float(version)) for _ in seen]

    with Fleet.inline(bsize=2, emulator="phone", max_steps=100) as fleet:
        fleet.update(acts_as(1), version=1)
        rollouts = [fleet.submit(fleet.tasks[0]) for _ in range(2)]
        for version in itertools.count(2):
            fleet.update(acts_as(version), version=version)
            if all(rollout.done() for rollout in rollouts):
                break
        for episode in map(landed, rollouts):
            told = [step.policy_version or episode.ticket.policy_version for step in episode.steps]
            assert [-step.log_prob for step in episode.steps] == told and len({*told}) > 2


@pytest.mark.parametrize("key", ["", "k" * 1001, "\ud800", 7])
def test_a_key_that_cannot_be_kept_is_refused(fleet: Fleet, key: Any) -> None:
    with pytest.raises(SettingsError, match="key=.* is no text of 1 to 1,000 characters"):
        fleet.submit(FINE, act=always_one, key=key)
    with pytest.raises(SettingsError, match="group=.* is no text of 1 to 1,000 characters"):
        fleet.submit(FINE, act=always_one, group=key)


coin = partial(Coin, Counter.spec)


def test_a_fleet_that_opens_its_folder_again_goes_on_with_the_version_and_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")

    again = partial(Fleet.inline, bsize=1, emulator=COUNTER, save_path=str(tmp_path / "kept"))
    with again() as fleet:
        assert fleet.landed("a") is None
        assert fleet.update(Policy(coin, seed=1), version=5) == 5
        before = [landed(fleet.submit(FINE, key=key)) for key in ("a", "b")]
    with again() as fleet:
        fleet.acknowledge(["b"])  # before it has begun
        assert fleet.update(Policy(coin, seed=1)) == 5, "the same weights are the same version"
        kept = fleet.landed("a")
        assert kept is not None and kept.episode_id == before[0].episode_id and fleet.landed("b") is None
        assert landed(fleet.submit(FINE, key="b")).episode_id != before[1].episode_id
        heavier = {name: weights + 1 for name, weights in coin().state_dict().items()}
        assert fleet.update(Policy(coin, heavier)) == 6


CALLER = """
import sys
from digirl_dist import Fleet, Task
emulator = {"name": "custom", "entry_point": "user_classes:Counter", "kwargs": {"step_s": 0.05}}
with Fleet.inline(bsize=2, emulator=emulator, save_path=sys.argv[1]) as fleet:
    rollouts = [fleet.submit(Task("fine"), act=lambda seen: [1 for _ in seen], key=f"k{k}") for k in range(12)]
    for each in rollouts:
        print(each.key, getattr(each.result(), "episode_id", each.result()), flush=True)
"""


@pytest.mark.nightly
def test_a_caller_that_is_killed_asks_again_and_gets_each_rollout_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALLER, str(tmp_path / "kept")]
    told: dict[str, set[str]] = {}
    for goes_on_for in (1, 4, 12):
        with subprocess.Popen(
            command, env=environment(), cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True
        ) as caller:
            assert caller.stdout is not None
            for line in itertools.islice(caller.stdout, goes_on_for):
                told.setdefault(line.split()[0], set()).add(line.split()[1])
            if goes_on_for < 12:
                caller.kill()
        assert caller.returncode == (0 if goes_on_for == 12 else -signal.SIGKILL)
    assert {key: len(ids) for key, ids in told.items()} == {f"k{k}": 1 for k in range(12)}
    assert len(Run(tmp_path / "kept").episodes()) == 12


@pytest.mark.long(30)
def test_over_ssh_a_killed_worker_costs_no_rollout_and_none_comes_twice(tmp_path: Path) -> None:
    def act(observations: Sequence[Observation]) -> list[Decision]:
        return [Decision({"type": "tap", "x": 0.5, "y": 0.5}, -1.0) for _ in observations]

    with Fleet.dry_run(2, bsize=2, emulator="phone", max_steps=3, save_path=str(tmp_path / "kept")) as fleet:
        task = fleet.tasks[0]
        rollouts = [fleet.submit(task, act=act, key=f"k{number}") for number in range(24)]
        rollouts[0].result(60)
        threading.Thread(target=kill_a_worker_program, args=[str(tmp_path / "kept")]).start()
        found = [landed(each) for each in rollouts]
    assert len({one.ticket.key for one in found}) == 24
    lines = [json.loads(line) for line in (tmp_path / "kept" / "events.jsonl").read_text().splitlines()]
    assert any(line["event"] == "worker_lost" for line in lines), Tally(line["event"] for line in lines)
    assert len(Run(tmp_path / "kept").episodes()) == 24


class Watched(Fleet):
    """Notes the groups of its streams, and loses a worker in the middle of them."""

    def stream(self, *tasks: Any, **how: Any) -> Iterator[Any]:
        self.groups: list[Any] = []
        for group in super().stream(*tasks, **how):
            self.groups.append(group)
            if len(self.groups) == 100:
                kill_a_worker_program(str(self.folder))
            yield group


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_thirty_lines_of_somebodys_torch_learn_the_demo_phone_from_two_workers_of_which_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = ROOT / "examples" / "reinforce.py"
    text = example.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    assert len([line for line in lines if line.strip()]) <= 30
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("digirl_dist.Fleet", Watched)
    ran = runpy.run_path(str(example))
    groups = ran["fleet"].groups
    returns = [[episode.reward for episode in group] for group in groups]
    assert fmean(itertools.chain.from_iterable(returns[-60:])) >= 0.9, returns
    assert len(groups) == 32 * len(ran["fleet"].tasks)
    assert all(len(group) == 8 and not group.missing for group in groups)
    kept = tmp_path / "rollouts" / "reinforce"
    assert events(kept, "worker_lost")
    had = Tally(episode.episode_id for group in groups for episode in group)
    assert had == Tally(episode.episode_id for episode in Run(kept).episodes()) and set(had.values()) == {1}
