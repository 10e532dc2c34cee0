"""``doctor --tasks``: rewards that come for nothing or cannot be had, and tasks that do not run, are named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_watch import eventually
from user_classes import Chores, Counter

from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.doctor.census import Census, CensusJob, Guided, TaskCensus, as_text, is_sound
from digirl_dist.emulator.episode_guard import EpisodeGuard
from digirl_dist.emulator.phone.state import PhoneState
from digirl_dist.emulator.phone.tasks import MAX_STEPS, goal_reached, make_unreached, phone_tasks, solution
from digirl_dist.errors import CollectionError
from digirl_dist.protocol.messages import SlotLimits
from digirl_dist.settings import RehearsalSettings
from digirl_dist.tasks import Task

LIMITS = SlotLimits(boot_s=60, reset_s=3.0, step_s=10.0, back_off_s=0.01)


def job(emulator: Any, tasks: Sequence[Task], slots: int = 2, limits: SlotLimits = LIMITS) -> CensusJob:
    spec = Chores.spec
    guard = EpisodeGuard("chores", spec, 3, lambda spec, seen, action: spec.actions.check(action))
    factory = partial(Guided, emulator)
    return CensusJob(factory, spec, tasks, None, True, slots, limits, 3, guard, tells_success=True, episodes=2)


def chores(*wrong: str) -> list[Task]:
    return [Task(name, params={"wrong": name}) for name in wrong]


def seen(asked: CensusJob) -> dict[str, TaskCensus]:
    told: list[tuple[int, int]] = []
    found = Census(asked).take(lambda over, of: told.append((over, of)))
    assert told[-1] == (4 * len(asked.tasks), 4 * len(asked.tasks))
    return {one.task: one for one in found}


@pytest.mark.component
def test_what_is_wrong_with_a_task_is_named_with_what_to_do() -> None:
    asked = job(Chores, chores("good", "free", "gift", "barred", "clock", "drifts", "dies", "hangs"))
    found = seen(asked)
    says = {task: [f"{one.says} -> {one.remedy}" for one in each.findings(asked)] for task, each in found.items()}
    assert says.pop("good") == [] and found["good"].figure("oracle", True) == 1.0
    expected = {
        "free": "2 of 2 episodes succeed in which nothing is done -> begin where",
        "gift": "doing nothing earns 0.38 -> reward what",
        "barred": "the oracle fails in 2 of 2 episodes in at most 3 steps -> raise max_steps",
        "clock": "ends by itself after 2 steps without a touch -> see that",
        "drifts": "episodes of one seed started differently -> reset must draw from the given seed",
        "dies": "2 of 2 episodes were lost: emulator",
        "hangs": "2 of 2 episodes were lost: emulator",
    }
    for task, beginning in expected.items():
        assert len(says[task]) == 1 and says[task][0].startswith(beginning), says[task]
    assert "ended during its step" in says["dies"][0] and "did not answer its reset in time" in says["hangs"][0]
    text = as_text([*found.values()], asked)
    assert "FAIL  free: 2 of 2" in text and "warn  clock: ends" in text
    assert text.endswith("8 tasks, shares of successes of 2 episodes: 4 to mend, 3 to look at; 1 were solved by nobody")
    assert not is_sound([*found.values()], asked)
    good, hangs = (found[task].to_json(asked) for task in ("good", "hangs"))
    assert good["oracle"] == {"episodes": 2, "success": 1.0, "reward": 1.0, "steps": 1.0} and good["untrained"] is None
    assert hangs["idle"] is None and hangs["lost"] == 2 and hangs["findings"][0]["blocks"]


@pytest.mark.component
def test_an_emulator_that_never_starts_ends_it_with_the_reason() -> None:
    limits = SlotLimits(boot_s=60, failures=2, back_off_s=0.01)
    with pytest.raises(CollectionError, match="does not start on this machine: .*unexpected keyword"):
        Census(job(partial(Counter, wrong=1), chores("good"), slots=1, limits=limits)).take(lambda over, of: None)


@pytest.mark.component
def test_the_oracle_of_a_rehearsal_is_always_right() -> None:
    emulator = RehearsalSettings(step_s=0.0, reset_s=0.0, boot_s=0.0).build().factory()
    emulator.reset(Task("rehearsal"), 3)
    while not (answer := emulator.step(emulator.oracle())).ended:  # type: ignore[attr-defined]
        assert answer.reward > 0
    assert answer.success


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize(("task_set", "most"), [("all", MAX_STEPS), ("long", 12)])
def test_the_phones_oracle_solves_every_task_in_the_steps_there_are(task_set: str, most: int, updates: int) -> None:
    """Without drawing anything."""
    for split in ("train", "test"):
        for seed, task in enumerate(phone_tasks(task_set, split)):
            state = PhoneState.fresh(seed, shuffle_icons=True, updates=updates, endless=0.5)
            make_unreached(task.params, state)
            taken = 0
            while not goal_reached(task.params, state):
                state.perform(solution(task.params, state))
                taken += 1
                assert taken <= most + 4 * updates, (task, seed)


@pytest.mark.component
def test_the_command_plays_the_runs_tasks_with_its_untrained_agent(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task_set=switches", "bsize=2", "agent.width=8", "--episodes", "1", "--json"]
    assert main(["doctor", "--tasks", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["task"] for one in found] == [task.id for task in phone_tasks("switches", "train")]
    for one in found:
        assert one["findings"] == [] and one["oracle"]["success"] == 1.0 and one["idle"]["reward"] == 0.0
        assert one["untrained"]["episodes"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "--episodes", "0"], "--episodes 0 must be from 1 to"),
        (["--episodes", "3"], "is for --tasks"),
        (["--tasks", "--try"], "--try is for workers"),
        (["--tasks", "success=predicate", "predicate=json:loads"], "the emulator's own verdicts"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.component
def test_ctrl_c_ends_it_with_its_emulators(tmp_path: Path) -> None:
    settings = ["emulator=rehearsal", "agent=generic", "emulator.step_s=60", f"emulator.faults_once_in={tmp_path}"]
    command = [sys.executable, "-m", "digirl_dist", "doctor", "--tasks", "bsize=2", *settings]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(_emulators_of(process.pid)) >= 2)
    emulators = _emulators_of(process.pid)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in emulators))


def _emulators_of(pid: int) -> list[int]:
    import psutil

    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [one.pid for one in found if any("emulator_process" in word for word in _words(one))]


def _words(process: Any) -> list[str]:
    import psutil

    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
