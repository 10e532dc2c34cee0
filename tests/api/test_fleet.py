"""A fleet that is driven from Python, over real SSH and on this machine."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from process_watch import eventually
from small_run import make_run

from digirl_dist import Fleet, Run, Task
from digirl_dist.assembly import collector
from digirl_dist.child_process import environment
from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.tasks import SEEDS

pytestmark = pytest.mark.system


def threads_of_workers() -> list[str]:
    prefixes = ("worker-", "outbox-", "transfers-", "ssh-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]


@pytest.mark.nightly
@pytest.mark.long(30)
def test_a_fleet_over_ssh_collects_the_same_episodes_again_with_the_same_seed(tmp_path: Path) -> None:
    policy = Run(make_run(tmp_path / "run", iterations=1)).policy()
    with Fleet.dry_run(2, bsize=1, max_steps=2, save_path=str(tmp_path / "kept")) as fleet:
        fleet.push(policy)
        tasks = [task.id for task in fleet.tasks[:2]]
        first, second = (fleet.collect(policy, tasks, episodes=4, seed=5) for _ in range(2))
        eventually(lambda: len(threads_of_workers()) <= 2, what="an instant at which idle workers hold a thread each")
        assert set(fleet.status()) == {"localhost-0", "localhost-1"}
        with pytest.raises(SettingsError, match="no task 'fly'"):
            fleet.collect(policy, ["fly"])
    eventually(lambda: not threads_of_workers(), what="the end of all threads of workers")
    assert first.table["task"].to_pylist() == tasks * 2
    actions = [[step.action for one in found for step in one.steps] for found in (first, second)]
    assert actions[0] == actions[1]
    assert len(Run(tmp_path / "kept").episodes()) == 8


@pytest.mark.long(20)
def test_a_fleet_without_workers_runs_tasks_of_ones_own_and_forgets_its_folder(tmp_path: Path) -> None:
    newest = Run(make_run(tmp_path / "run", iterations=1))
    with Fleet.inline(bsize=1, max_steps=2) as fleet:
        mine = Task("mine", "Open the Clock app", fleet.tasks[0].params)
        before, after = fleet.collect(newest.policy(0), [mine]), fleet.collect(newest.policy(1), [mine])
        folder = fleet._folder
    assert [one.ticket.policy_version for one in (before[0], after[0])] == [0, 1]
    assert all(one.ticket.seed in SEEDS["test"] for one in (before[0], after[0])), "none that training draws"
    assert not folder.exists() and after[0].images
    assert pickle.loads(pickle.dumps(after))[0].episode_id == after[0].episode_id, "for processes of one's own"


FORGETFUL = """
import gc, os, sys, threading
from digirl_dist import Fleet, Run
from digirl_dist.errors import SettingsError
policy = Run(sys.argv[1]).policy()
fleets = [Fleet.inline(bsize=1, max_steps=2) for _ in range(2)]
for fleet in fleets:
    print(fleet._folder, len(fleet.collect(policy, episodes=1)))
child = os.fork()
if not child:
    try:
        fleets[0].collect(policy, episodes=1)
    except SettingsError as error:
        print(error)
    fleets[0].close()
    sys.exit()
os.waitpid(child, 0)
print(len(fleets[0].collect(policy, episodes=1)))
garbage = fleets.pop()._folder
del fleet
gc.collect()
[thread.join() for thread in threading.enumerate() if thread.name == "close-fleet"]
print(garbage.exists())
"""


@pytest.mark.nightly
@pytest.mark.long(20)
def test_a_fleet_that_nobody_closed_ends_with_its_process_or_as_garbage_and_a_forked_child_leaves_it(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    done = subprocess.run(
        [sys.executable, "-uc", FORGETFUL, str(run)], env=environment(), capture_output=True, text=True, timeout=300
    )
    first, second, child, again, garbage = done.stdout.splitlines()
    assert done.returncode == 0 and child.endswith("the parent: open another one here"), done.stderr
    assert (again, garbage) == ("1", "False")
    for line in (first, second):
        folder, count = line.rsplit(" ", 1)
        assert count == "1" and not Path(folder).exists()
        running = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert not [each for each in running if folder in each]


@pytest.mark.long(20)
def test_calls_that_are_refused_or_come_at_once_leave_every_collection_whole(tmp_path: Path) -> None:
    policy = Run(make_run(tmp_path / "run", iterations=1)).policy()
    unstorable = [Task(3), Task("\ud800"), Task("t", "do", {"part": object()})]  # type: ignore[arg-type]
    wrong: list[Any] = [
        *({"tasks": [each]} for each in unstorable),
        {"seed": -1},
        {"seed": "a"},
        {"episodes": 0},
        {"episodes": 1.5},
        {"tasks": [3]},
    ]
    with ThreadPoolExecutor(3) as threads, Fleet.inline(bsize=2, max_steps=2) as fleet:  # the fleet ends first
        for words in wrong:
            with pytest.raises(SettingsError, match="no whole number|neither a Task nor the id|cannot be stored"):
                fleet.collect(policy, **words)
        ids = np.array([task.id for task in fleet.tasks[:2]])
        pushes = [threads.submit(fleet.push, policy) for _ in range(2)]  # of calls at once the first starts the fleet
        assert [one.ticket.task.id for one in fleet.collect(policy, ids)] == list(ids)  # type: ignore[arg-type]
        assert [push.result() for push in pushes] == [None, None]
        found = list(threads.map(lambda seed: fleet.collect(policy, episodes=np.int64(3), seed=seed), range(3)))
    assert [len(each) for each in found] == [3, 3, 3]


CARTPOLE: dict[str, Any] = {"emulator": {"name": "gymnasium", "id": "CartPole-v1"}, "bsize": 1}


def test_a_fleet_that_could_not_start_leaves_nothing_and_starts_once_the_cause_is_gone(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text("no line of ours\n")
    with Fleet.inline(save_path=tmp_path, **CARTPOLE) as fleet:
        for _ in range(2):  # its folder is not in use by this process itself
            with pytest.raises(RunFolderError, match=r"rollouts\.jsonl is damaged"):
                fleet.submit(fleet.tasks[0], act=lambda seen: [0] * len(seen))
        (tmp_path / "rollouts.jsonl").unlink()
        assert fleet.submit(fleet.tasks[0], act=lambda seen: [0] * len(seen)).result(60)


def test_a_fleet_that_is_closed_while_it_starts_leaves_its_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, first = collector.open_fleet, Fleet.inline(save_path=tmp_path, **CARTPOLE)

    def started(*words: Any) -> Any:
        first.close()  # as another thread does
        return starts(*words)

    with monkeypatch.context() as patched, pytest.raises(SettingsError, match="was closed while it started"):
        patched.setattr(collector, "open_fleet", started)
        first.submit(first.tasks[0], act=lambda seen: [0] * len(seen))
    with Fleet.inline(save_path=tmp_path, **CARTPOLE) as second:
        assert second.submit(second.tasks[0], act=lambda seen: [0] * len(seen)).result(60)
