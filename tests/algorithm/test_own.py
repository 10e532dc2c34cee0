"""An algorithm and an advantage of the user's, copied from the documentation, train wherever the package's own do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from run_files import metrics
from safetensors.torch import load_file

from digirl_dist.algorithm.digirl import own_rule
from digirl_dist.algorithm.plugins import OwnAlgorithm
from digirl_dist.assembly.validate import refuse_contradictions
from digirl_dist.child_process import environment
from digirl_dist.cli.main import main
from digirl_dist.errors import SettingsError, TrainingError
from digirl_dist.parallel.peers import ALONE
from digirl_dist.settings import configuration
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = [pytest.mark.system, pytest.mark.long_file(40)]

ROOT = Path(__file__).resolve().parents[2]
REINFORCE, ONE_STEP = (
    re.findall(rf"^```python\n# {name}.py\n(.*?)^```", (ROOT / "docs/own.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    for name in ("reinforce", "mine")
)
CART = ["parallel=single", "emulator=gymnasium", "emulator.id=CartPole-v1", "bsize=2", "rollout_size=4"]
OWN_ALGORITHM = ["algorithm.entry_point=reinforce:Reinforce", "algorithm.kwargs.learning_rate=0.02"]
OWN_ADVANTAGE = ["train_algorithm=digirl", "algorithm.digirl.advantage=mine:one_step"]
TRAINERS = {"inprocess": ["trainer=inprocess"], "torchrun": ["trainer=torchrun", "trainer.nproc_per_node=2"]}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with the documentation's files, in which the user works."""
    (tmp_path / "reinforce.py").write_text(REINFORCE)
    (tmp_path / "mine.py").write_text(ONE_STEP)
    return tmp_path


def python(folder: Path, *words: str) -> None:
    shown = subprocess.run([sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr[-3000:]


def moved(run: Path, first: int, last: int) -> bool:
    """Whether any weight differs between two checkpoints."""
    before, after = (load_file(run / f"checkpoints/{number:06d}/policy.safetensors") for number in (first, last))
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_the_documentation_keeps_its_promise_of_length() -> None:
    assert len(REINFORCE.strip().splitlines()) <= 25
    assert len(ONE_STEP.strip().splitlines()) <= 10


@pytest.mark.unit
def test_the_documented_algorithm_asks_about_all_that_was_shown() -> None:
    exec(REINFORCE, defined := {})
    weight = torch.nn.Parameter(torch.zeros(1))
    log_prob = Mock(side_effect=lambda observations, actions: weight.expand(len(actions)))
    steps = [Step(Observation("", b"%d" % at), 0, -1.0, 0.0, False, at == 1) for at in range(2)]
    episode = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, Observation(), False)
    defined["Reinforce"](Mock(parameters=lambda: [weight], log_prob=log_prob), ALONE, 0).update([episode], [])
    assert {one.earlier for one in log_prob.call_args.args[0]} == {(), (b"0",)}


@pytest.mark.parametrize("trainer", ["inprocess", pytest.param("torchrun", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("own", "figure"), [(OWN_ALGORITHM, "loss"), (OWN_ADVANTAGE, "kept_steps")])
def test_what_the_documentation_shows_trains(
    beside: Path, monkeypatch: pytest.MonkeyPatch, own: list[str], figure: str, trainer: str
) -> None:
    words = [*CART, *own, *TRAINERS[trainer], "train_iterations=2", f"save_path={beside / 'run'}"]
    monkeypatch.chdir(beside)
    assert main(words) == 0
    lines = metrics(beside / "run")
    assert len(lines) == 2 and all(line[figure] != 0 for line in lines)
    assert moved(beside / "run", 0, 2)


@pytest.mark.nightly
def test_an_algorithm_of_the_users_trains_on_ranks_with_emulators(beside: Path) -> None:
    steps = ["distributed.steps=64", "train_iterations=2", "evaluation.every=0", "bsize=2", "save_path=run"]
    python(beside, "-m", "digirl_dist.train", "--config-name", "ranks", *OWN_ALGORITHM, *steps)
    assert all(line["loss"] != 0 for line in metrics(beside / "run")) and moved(beside / "run", 1, 2)


@pytest.mark.parametrize(
    ("update", "told"),
    {
        "return {'episodes': 1.0}": "the algorithm's figure 'episodes' has the name of one of the run's own: rename it",
        "return fresh[0].stepz": r"Wrong.update: AttributeError: .* \(at .*wrong\.py:5 in update\). A run with this",
    }.items(),
)
def test_what_an_own_algorithm_does_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update: str, told: str
) -> None:
    name = f"wrong_{len(update)}"
    (tmp_path / f"{name}.py").write_text(
        "class Wrong:\n    def __init__(self, agent, peers, seed):\n        pass\n"
        f"    def update(self, fresh, replay):\n        {update}\n"
        "    def state_dict(self):\n        return {}\n    def load_state_dict(self, state):\n        pass\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*CART, f"algorithm.entry_point={name}:Wrong", "train_iterations=1", "save_path=run"]) == 1
    [error] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(told.replace("wrong", name), error)


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_an_own_algorithm_that_cannot_be_saved_or_resumed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    states = {"state_dict": "return {}", "load_state_dict": "pass", method: "return self.nothing"}
    (tmp_path / f"stateless_{method}.py").write_text(
        "class Mine:\n    def __init__(self, agent, peers, seed):\n        pass\n"
        "    def update(self, fresh, replay):\n        return {}\n"
        f"    def state_dict(self):\n        {states['state_dict']}\n"
        f"    def load_state_dict(self, state):\n        {states['load_state_dict']}\n"
    )
    monkeypatch.chdir(tmp_path)
    words = [*CART, f"algorithm.entry_point=stateless_{method}:Mine", "save_path=run"]
    if method == "load_state_dict":
        assert main([*words, "train_iterations=0"]) == 0
    assert main([*words, "train_iterations=1"]) == 1
    [error] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(rf"Mine\.{method}: AttributeError: .*nothing", error)


def test_an_own_advantage_decides_which_steps_are_good() -> None:
    space: dict[str, object] = {}
    exec(ONE_STEP, space)
    rule = own_rule(space["one_step"])  # type: ignore[arg-type]
    advantages = rule.advantages(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.6, 0.2, 0.1]))
    assert (advantages > rule.threshold(3)).tolist() == [True, False, True]


def test_an_advantage_that_is_not_one_per_step_is_refused_with_its_name() -> None:
    def total(rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        return rewards.sum()

    with pytest.raises(TrainingError, match=r"total returned the shape \(\) for 2 steps"):
        own_rule(total).advantages(np.zeros(2), np.zeros(3))


@pytest.mark.unit
@pytest.mark.parametrize("answer", [[0.5, np.nan], [0.5, None], ["0.5", "1"]])
def test_an_advantage_that_is_no_number_is_refused_with_its_name(answer: list[Any]) -> None:
    def unsure(rewards: np.ndarray, values: np.ndarray) -> list[Any]:
        return answer

    with pytest.raises(TrainingError, match=r"unsure returned \['?0.5.*, not a finite number for each step"):
        own_rule(unsure).advantages(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.entry_point=reinforce:Reinforze", "defines no Reinforze"),
        ("algorithm.entry_point=nowhere:Reinforce", "nowhere"),
        ("algorithm.entry_point=Reinforce", "must read module:name"),
    ],
)
def test_an_algorithm_that_is_not_there_is_refused_before_anything_is_made(
    beside: Path, monkeypatch: pytest.MonkeyPatch, override: str, said: str
) -> None:
    monkeypatch.chdir(beside)
    settings = configuration.load("config/multimachine", "host", ["parallel=single", override])
    with pytest.raises(SettingsError, match=said):
        refuse_contradictions(settings)


@pytest.mark.parametrize("size", [0, -4, 2.0, "8"])
def test_a_group_size_of_the_users_that_is_none_is_named(size: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("user_classes.Coin.group_size", size, raising=False)
    with pytest.raises(SettingsError, match=rf"user_classes:Coin: group_size={size!r} must be a whole number from 1"):
        _ = OwnAlgorithm("user_classes:Coin").episodes_per_start


def test_an_advantage_that_is_neither_published_nor_a_function_is_refused() -> None:
    with pytest.raises(SettingsError, match="paper, code or my_file:my_function, not 'papr'"):
        configuration.load("config/multimachine", "host", ["algorithm.digirl.advantage=papr"])


def test_an_algorithm_of_the_users_gets_tasks_and_hindsight_if_it_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "relabels.py").write_text(
        "class Relabels:\n"
        "    def __init__(self, agent, peers, seed, experience):\n"
        "        self.experience, self.peers = experience, peers\n"
        "    def update(self, fresh, replay):\n"
        "        episodes, figures = self.experience.hindsight.added(replay, self.peers)\n"
        "        tasks, loops = len(self.experience.hindsight.tasks), self.experience.erase_loops\n"
        "        return {**figures, 'tasks_known': tasks, 'relabelled': len(episodes) - len(replay), 'loops': loops}\n"
        "    def state_dict(self):\n        return {}\n    def load_state_dict(self, state):\n        pass\n"
    )
    monkeypatch.chdir(tmp_path)
    own = ["algorithm.entry_point=relabels:Relabels", "algorithm.erase_loops=false", "algorithm.hindsight.most=2"]
    phone = ["parallel=single", "emulator=phone", "bsize=2", "rollout_size=16", "train_iterations=2"]
    assert main([*phone, *own, "save_path=run"]) == 0
    *_, last = metrics(tmp_path / "run")
    assert last["tasks_known"] > 10 and last["relabelled"] > 0 and not last["loops"]
