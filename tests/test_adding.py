"""An emulator, agent, algorithm, collector, logger and carrier join a copy of the package, each by one file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_files import events, metrics

from digirl_dist.child_process import environment

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[1]

LAMP = '''
"""``emulator=lamp``: a lamp to be switched on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition


@dataclass
class LampSettings(EmulatorPlugin):
    """A lamp."""

    name: str = "lamp"
    tries: int = 2

    def build(self) -> Device:
        return Device(partial(Lamp, self.tries), EmulatorSpec(DiscreteActions(2), vector_size=1), max_steps=self.tries)

    def tasks(self, task_set: str, split: str) -> list[Task]:
        return [Task("on", "switch the lamp on")]


class Lamp:
    def __init__(self, tries: int) -> None:
        self.left = self.tries = tries

    def reset(self, task, seed):
        self.left = self.tries
        return Observation("dark", None, np.zeros(1, np.float32))

    def step(self, action):
        self.left -= 1
        ended = action == 1 or self.left == 0
        return Transition(Observation("", None, np.ones(1, np.float32)), float(action), ended, success=action == 1)

    def close(self):
        pass
'''

BIAS = '''
"""``agent=bias``: one number per action."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.trajectory import Decision


@dataclass
class BiasSettings(AgentPlugin):
    """A bias."""

    name: str = "bias"
    start: float = 0.0

    def build(self, spec):
        return partial(bias, spec.actions.n, self.start)


def bias(actions, start):
    import torch  # slow to import, and not needed to compose a configuration

    class Bias(torch.nn.Module):
        feature_size = 1

        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.full((actions,), start))

        def act(self, observations, rngs):
            chances = self.logits.softmax(-1).double().cpu().numpy()
            drawn = [int(rng.choice(actions, p=chances / chances.sum())) for rng in rngs]
            return [Decision(action, float(np.log(chances[action]))) for action in drawn]

        def log_prob(self, observations, actions):
            return self.logits.log_softmax(-1)[torch.tensor(actions)]

        def features(self, observations):
            return torch.ones(len(observations), 1, device=self.logits.device)

    return Bias()
'''

CLIMB = '''
"""``train_algorithm=climb``: makes rewarded actions likelier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from digirl_dist.algorithm.plugins import AlgorithmPlugin


@dataclass
class ClimbSettings(AlgorithmPlugin):
    """Climbing."""

    rate: float = 0.1

    def build(self, context):
        return partial(Climb, self.rate)


class Climb:
    def __init__(self, rate, agent, peers):
        self.rate, self.agent = rate, agent

    def update(self, fresh, replay):
        import torch

        steps = [step for episode in fresh for step in episode.steps if step.reward > 0]
        for parameter in self.agent.parameters():
            parameter.grad = None
        loss = -self.agent.log_prob([step.observation for step in steps], [step.action for step in steps]).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in self.agent.parameters():
                parameter -= self.rate * parameter.grad
        return {"climb_loss": float(loss.detach()), "climb_rate": self.rate}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
'''

NEAR = '''
"""``collector=near``: the workers of a host without workers are processes of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from digirl_dist.assembly.collectors import CollectorPlugin


@dataclass
class NearCollectorSettings(CollectorPlugin):
    """Emulators near the host."""

    name: str = "near"
    emulators: int = 2

    def build(self, context, stack):
        from digirl_dist.assembly.collector import inline_collector

        context.events.emit("near", emulators=self.emulators)
        settings = replace(context.settings, bsize=self.emulators)
        parts = context.device, context.agent, context.store, context.events, context.status
        return inline_collector(settings, *parts)
'''

TALLY = '''
"""``loggers=[tally]``: lines of a text file."""

PACKAGE = None


def build(name, run):
    return Tally(run.folder / "tally.txt")


class Tally:
    def __init__(self, path):
        self.file = path.open("a")

    def figures(self, figures, step):
        print(step, figures["algorithm/climb_rate"], file=self.file)

    def episodes(self, rows, step):
        print(step, len(rows), "episodes", file=self.file)

    def close(self):
        self.file.close()
'''

DIRECT = '''
"""``ssh.transport=direct``: commands run on this machine, whatever the address."""

from __future__ import annotations

import os

from digirl_dist.ssh.connection import Connection, quote
from digirl_dist.ssh.piped import PipedChannel, PipedSessions, ProcessSession


def lacking():
    return ""


def connect(address, settings):
    return Direct(address)


def whereabouts(address, settings):
    return address.host, address.port or 22, True


class Direct(Connection):
    alive = True
    host, port, user, fingerprint = "here", 0, "me", ""

    def __init__(self, address):
        self.address, self.sessions = address, PipedSessions()

    def answers(self):
        return True

    def open(self, command):
        self.sessions.add(session := ProcessSession(["sh", "-c", quote(command)], os.environ))
        return PipedChannel(session, self.worker, quote(command), 60.0, 1.0, lambda wait_s: None)

    def close(self):
        self.sessions.close()
'''

NEW = {
    "emulator/plugins/lamp.py": LAMP,
    "agent/plugins/bias.py": BIAS,
    "algorithm/plugins/climb.py": CLIMB,
    "assembly/collectors/near.py": NEAR,
    "report/loggers/tally.py": TALLY,
    "ssh/carriers/direct.py": DIRECT,
}
"""All that is added: nothing else of the package is changed."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for part in ("digirl_dist", "config"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "run.py", folder)
    for name, text in NEW.items():
        assert not (folder / "digirl_dist" / name).exists()
        (folder / "digirl_dist" / name).write_text(text.lstrip())
    return folder


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), "PYTHONPATH": str(copy)}
    return subprocess.run([sys.executable, "run.py", *words], cwd=copy, env=env, capture_output=True, text=True)


def test_each_came_as_one_file_and_all_work_together(copy: Path) -> None:
    chosen = ["emulator=lamp", "emulator.tries=3", "agent=bias", "collector=near", "collector.emulators=3"]
    learning = ["train_algorithm=climb", "algorithm.climb.rate=0.5", "loggers=[tally]"]
    ended = run(copy, *chosen, *learning, "rollout_size=8", "train_iterations=3", "save_path=made")
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = metrics(copy / "made")
    assert [line["climb_rate"] for line in lines] == [0.5] * 3
    assert lines[-1]["climb_loss"] < lines[0]["climb_loss"]
    assert (copy / "made/tally.txt").read_text().splitlines()[-2:] == ["2 0.5", "2 8 episodes"]
    assert '"near"' in (copy / "made/events.jsonl").read_text()
    kept = yaml.safe_load((copy / "made/config.yaml").read_text())
    everybodys = {"packages": [], "setup": None}
    assert kept["emulator"] == {"name": "lamp", "tries": 3, **everybodys}
    assert kept["agent"] == {"name": "bias", "start": 0.0}
    assert kept["algorithm"]["climb"] == {"rate": 0.5} and kept["collector"]["emulators"] == 3


@pytest.mark.nightly
def test_a_carrier_takes_checkpoints_there_and_episodes_back(copy: Path) -> None:
    chosen = ["dry_run=true", "ssh.transport=direct", "emulator=lamp", "agent=bias", "train_algorithm=climb", "bsize=2"]
    ended = run(copy, *chosen, "rollout_size=8", "train_iterations=2", "save_path=carried")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [line["episodes"] for line in metrics(copy / "carried")] == [8, 8]
    assert {row["worker"] for row in events(copy / "carried", "worker_joined")} == {"localhost-0", "localhost-1"}


def test_help_and_hints_know_of_them(copy: Path) -> None:
    shown = " ".join(run(copy, "--help").stdout.split())
    assert "| lamp |" in shown and "| bias |" in shown and "climb |" in shown
    refused = run(copy, "train_algorithm=clim")
    assert refused.returncode == 2 and "there is no 'clim'; did you mean 'climb'?" in refused.stderr
    refused = run(copy, "emulator=lam")
    assert refused.returncode == 2 and "emulator: there is no 'lam'; did you mean 'lamp'?" in refused.stderr
    refused = run(copy, "algorithm.climb.rat=1")
    assert refused.returncode == 2 and "no key 'algorithm.climb.rat'; did you mean 'rate'?" in refused.stderr
