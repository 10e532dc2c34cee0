"""What is asked for comes whole or is said to be missing; nothing of another call comes; a refusal writes nothing."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process_watch import eventually
from test_run import MINE, ROOT

from digirl_dist import Fleet, Run, Task, train
from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.errors import IncompleteError, SettingsError
from digirl_dist.tasks import Ticket

pytestmark = [pytest.mark.system, pytest.mark.long]
COUNTER: dict[str, Any] = {"name": "custom", "entry_point": "user_classes:Counter"}
COIN: dict[str, Any] = {"name": "custom", "entry_point": "user_classes:Coin"}
FINE = Task("fine")
BAD = Task("bad", params={"at": "reset", "suffers": "die"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations with a record of each of its episodes."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    before = Path.cwd()
    os.chdir(ROOT / "tests")
    try:
        train(parallel="single", emulator=COUNTER, agent=COIN, rollout_size=8, train_iterations=2, save_path=folder)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT / "tests")
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)} {path.lstat().st_mtime_ns}".encode())
        if path.is_file() and not path.is_symlink():
            found.update(path.read_bytes())
    return found.hexdigest()


# --- class 5: identity by place --------------------------------------------------------------------------------------

KILLED = """
import sys
from digirl_dist import Fleet, Run, Task
emulator = {"name": "custom", "entry_point": "user_classes:Counter", "kwargs": {"step_s": 0.05}}
with Fleet.inline(bsize=1, emulator=emulator, save_path=sys.argv[2]) as fleet:
    fleet.collect(Run(sys.argv[1], trust=True).policy(), [Task("killed")], episodes=60, seed=1)
"""


@pytest.mark.nightly
def test_identity_by_place_a_fleet_that_reopens_its_folder_returns_no_episode_of_a_killed_call(
    run: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    words = [sys.executable, "-c", KILLED, str(run), str(kept)]
    process = subprocess.Popen(words, env=environment(), cwd=ROOT / "tests")
    eventually(lambda: len([*kept.glob("trajectories/.landing/000000/*")]) > 3, 120, "landed episodes")
    process.kill()
    process.wait()
    with Fleet.inline(bsize=1, emulator=COUNTER, save_path=str(kept)) as fleet:
        found = fleet.collect(Run(run, trust=True).policy(), [FINE], episodes=3, seed=777)
        again = fleet.collect(Run(run, trust=True).policy(), [FINE], episodes=3, seed=777)
    assert [one.ticket.task.id for one in found] == ["fine"] * 3
    assert [one.ticket.seed for one in found] == [one.ticket.seed for one in again]
    assert {"killed", "fine"} == set(Run(kept).episodes().table["task"].to_pylist()), "what had landed is not lost"


def test_identity_by_place_a_measurement_leaves_training_episodes_their_own_time_attempt_and_trouble(run: Path) -> None:
    before = {row["key"]: row for row in Run(run).episodes().table.to_pylist()}
    assert main(["eval", "--trust", str(run), "rollout_size=4", "eval_iterations=2"]) == 0
    after = {row["key"]: row for row in Run(run).episodes().table.to_pylist()}
    measured = {key: row for key, row in after.items() if key not in before}
    assert {key: after[key] for key in before} == before
    assert sorted(measured) == [f"m2.{number}.{index}" for number in (0, 1) for index in range(4)]
    assert all(row["time"] is not None and row["attempt"] == 0 for row in measured.values())
    assert all(row["purpose"] == "measure" and row["policy_version"] == 2 for row in measured.values())
    assert Run(run).episode("m2.1.3").ticket.key.name == "m2.1.3"
    (last, *_) = Run(run).evaluations().iloc[::-1].to_dict("records")
    assert last["purpose"] == "measure" and last["checkpoint"] == 2


def test_identity_by_place_other_tasks_leave_what_landed_of_an_iteration_aside(run: Path, tmp_path: Path) -> None:
    """The same command with another file of tasks took the landed episodes of the earlier one for its own."""
    words = ["parallel=single", "train_iterations=3", f"save_path={run}", *MINE[:-1]]
    tasks = tmp_path / "tasks.json"
    tasks.write_text('[{"id": "one", "instruction": "count"}]')
    last = Run(run).episode("t1.0")
    from dataclasses import replace

    from digirl_dist.storage.trajectory_store import Store
    from digirl_dist.tasks import Round

    ticket = Ticket(2, 0, last.ticket.task, 5, 2)
    assert Store(run / "trajectories").land(Round(2), replace(last, ticket=ticket, episode_id="of-before"))
    assert main(["run", *words, f"task_set={tasks}"]) == 0
    rows = [row for row in Run(run).episodes().table.to_pylist() if row["iteration"] == 2]
    assert len(rows) == 8 and {row["task"] for row in rows} == {"one"}
    assert [*run.glob("trajectories/.landing/aside/*")]
    assert "of-before" in (run / "events.jsonl").read_text()


# --- class 6: answers that are not complete --------------------------------------------------------------------------


def test_complete_or_said_one_of_many_that_fails_is_named_and_the_others_are_kept(run: Path, tmp_path: Path) -> None:
    with Fleet.inline(
        bsize=2, emulator=COUNTER, save_path=str(tmp_path / "kept"), limits={"episode_attempts": 2}
    ) as fleet:
        with pytest.raises(IncompleteError, match=r"7 of 8 episodes.*(\n.*)*ticket 7 \(task bad\): .*on local") as one:
            fleet.collect(Run(run, trust=True).policy(), [*[FINE] * 7, BAD])
        assert [episode.ticket.index for episode in one.value.result] == [*range(7)]
        with pytest.raises(IncompleteError, match=r"6 of 8 episodes.*(\n.*)*ticket 6 \(task bad\)") as two:
            fleet.collect(Run(run, trust=True).policy(), [*[FINE] * 6, BAD, BAD])
        assert len(two.value.result) == 6
        assert len(fleet.collect(Run(run, trust=True).policy(), [FINE], episodes=2)) == 2, "the fleet goes on"
    told = pickle.loads(pickle.dumps(two.value))
    assert str(told) == str(two.value) and len(told.result) == len(two.value.result)
    assert len(Run(tmp_path / "kept").episodes()) == 7 + len(two.value.result) + 2


def test_complete_or_said_a_run_that_failed_says_so_in_every_face(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from digirl_dist.report.viewed import ViewedRun
    from digirl_dist.trainer.inprocess import InProcessTrainer

    def broken(*_: object) -> None:
        raise SettingsError("no gradient came")

    assert str(Run(run).state) == "the run finished"
    monkeypatch.setattr(InProcessTrainer, "learn", broken)
    words = ["parallel=single", "train_iterations=3", f"save_path={run}", *MINE[:-1]]
    assert main(["run", *words]) == 2
    state = Run(run).state
    assert (state.state, state.error) == ("failed", "no gradient came") and abs((state.since or 0) - time.time()) < 600
    assert main(["why", str(run)]) == 0
    assert "the run failed: no gradient came" in capsys.readouterr().out
    assert "the run failed: no gradient came" in (run / "report.html").read_text()
    viewed = ViewedRun(run).progress()
    assert (viewed["state"], viewed["words"]) == ("failed", "the run failed: no gradient came")
    assert '"event": "run_failed"' in (run / "events.jsonl").read_text()


def test_complete_or_said_emulators_are_busy_or_idle_also_while_the_host_learns(run: Path) -> None:
    for line in Run(run).figures():
        spent = line["slot_seconds"]
        share = sum(spent.get(name, 0.0) for name in ("reset", "step", "policy")) / sum(spent.values())
        assert line["emulator_busy"] == pytest.approx(share, abs=1e-3)


# --- class 7: checks made by one command and not by another ----------------------------------------------------------


def test_the_same_checks_an_unknown_host_is_told_by_a_fleet_as_by_a_run(run: Path, tmp_path: Path) -> None:
    new = f"save_path={tmp_path / 'new'}"
    assert main(["run", *MINE, "worker_ips=[no-such-host.invalid]", new]) == 2
    fleet = Fleet(["no-such-host.invalid"], emulator=COUNTER, bsize=1, save_path=str(tmp_path / "kept"))
    with fleet, pytest.raises(SettingsError, match="no worker can be reached"):
        fleet.collect(Run(run, trust=True).policy(), [FINE])
    assert not (tmp_path / "new").exists() and not (tmp_path / "kept").exists()


def _as_run(run: Path, *words: str) -> None:
    main_refuses(["run", *MINE, f"save_path={run}", *words])


def _as_doctor(run: Path, *words: str) -> None:
    assert main(["doctor", *MINE, f"save_path={run}", *words]) != 0


def _as_fleet(run: Path, *words: str) -> None:
    given = dict(word.split("=") for word in words)
    with pytest.raises(SettingsError), Fleet(emulator=COUNTER, save_path=str(run.with_name("kept")), **given) as fleet:
        fleet.collect(Run(run, trust=True).policy(), [FINE])


def _as_train(run: Path, *words: str) -> None:
    given = dict(word.split("=") for word in words)
    with pytest.raises(SettingsError):
        train(emulator=COUNTER, agent=COIN, save_path=run, **given)


def main_refuses(words: list[str]) -> None:
    assert main(words) == 2


@pytest.mark.parametrize("command", [_as_run, _as_doctor, _as_fleet, _as_train])
@pytest.mark.parametrize("words", [["parallel=single"], ["dry_run=true", "dry_run_workers=1"]])
def test_the_same_checks_more_emulators_than_the_memory_carries(
    run: Path, command: Callable[..., None], words: list[str]
) -> None:
    before = digest(run)
    command(run, "bsize=4096", *words)
    assert digest(run) == before and not run.with_name("kept").exists()


REFUSALS = [
    ["seed=9"],
    ["bsize=4096"],
    ["trainer.device=cuda:77"],
    ["trainer=torchrun", "trainer.nproc_per_node=77", "trainer.device=cuda"],
    ["task_set=no-such-file.txt"],
    ["loggers=[nothing]"],
    ["start_from=/nowhere"],
    ["predicate=nothing:here", "success=predicate"],
    ["rollout_size=0"],
    ["train_mode=offline"],
    ["agent=generic"],
    ["emulator.kwargs={nonsense: 1}"],
]


@pytest.mark.nightly
def test_a_refused_command_writes_nothing(run: Path) -> None:
    before = digest(run)
    for words in REFUSALS:
        main_refuses(["run", *MINE, "parallel=single", f"save_path={run}", *words])
        assert digest(run) == before, words
    assert main(["eval", "--trust", str(run), "rollout_size=4"]) == 0
    before = digest(run)
    for words in (["task_split=train"], ["rollout_size=5"], ["seed=3"], ["parallel=host", "worker_ips=[]"]):
        main_refuses(["eval", "--trust", str(run), "rollout_size=4", *words])
        assert digest(run) == before, words
    (run / "metrics.jsonl").write_text("nothing\n")
    (run / "run.json").write_text("[")
    before = digest(run)
    assert main(["run", *MINE, "parallel=single", f"save_path={run}", "train_iterations=3"]) != 0
    assert digest(run) == before


def test_the_same_checks_keys_of_other_versions_cost_no_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that was removed made each old run unreadable, and a new one each measurement."""
    assert main(["eval", "--trust", str(run), "rollout_size=4"]) == 0
    config, noted = run / "config.yaml", run / "evaluation" / "000002" / "measurement.json"
    config.write_text(config.read_text().replace("  kwargs:", "  gone_key: 3\n  kwargs:", 1) + "old_key: {a: 1}\n")
    text = noted.read_text()
    assert '"max_steps"' in text
    import json

    known = json.loads(text)
    del known["max_steps"]
    noted.write_text(json.dumps({**known, "emulator.old": 1}))
    assert main(["eval", "--trust", str(run), "rollout_size=4"]) == 0
    assert "does not have, left out: " in capsys.readouterr().out
    assert Run(run, trust=True).explain("t1.0").outcomes
    assert main(["eval", "--trust", str(run), "rollout_size=4", "max_steps=2"]) == 2, "set to something else now"
    assert "max_steps=2, but" in capsys.readouterr().err
