"""An emulator of a rank that hangs is told of."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from user_classes import Counter

from digirl_dist.tasks import Task
from digirl_dist.train import watched_emulator
from digirl_dist.train.watched_emulator import Watch, WatchedEmulator
from digirl_dist.trajectory import Transition
from digirl_dist.types import Json


class Hangs(Counter):
    """Its first step goes on once it was told of twice."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.was_told_twice = threading.Event()

    def tell(self, words: str) -> None:
        self.told.append(words)
        if len(self.told) == 2:
            self.was_told_twice.set()

    def step(self, action: Json) -> Transition:
        assert self.was_told_twice.wait(20.0)
        return super().step(action)


def test_a_call_that_does_not_return_is_told_of_with_its_emulator_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_emulator, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(watched_emulator, "_LOOK_S", 0.01)
    emulator = Hangs()
    with Watch(emulator.tell, 600.0).kept() as watch:
        watched = WatchedEmulator(emulator, watch, "emulator 3")
        watched.reset(Task("count"), seed=0)
        watched.step(1)
        watched.close()
        assert watch.call is None
    first, second = emulator.told[:2]
    assert first.startswith("has waited 0 s for the step of emulator 3 (at ") and first.endswith(
        "; distributed.gate_s ends the run after 600 s\n"
    )
    assert f"{__file__}:" in first and "in step" in first and second.startswith("has waited 0 s for the step")


def test_calls_that_return_are_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_emulator, "_LOOK_S", 0.001)
    told: list[str] = []
    with Watch(told.append, 600.0).kept() as watch:
        watched = WatchedEmulator(Counter(), watch, "emulator 0")
        for seed in range(50):
            watched.reset(Task("count"), seed)
            watched.step(1)
    assert told == []


ENDS = """
import time
from digirl_dist.train import watched_emulator
from digirl_dist.train.watched_emulator import Watch, WatchedEmulator
from digirl_dist.tasks import Task

class Stuck:
    def reset(self, task, seed):
        time.sleep(600)

watched_emulator._LOOK_S = 0.01
with Watch(lambda words: print(words, end="", flush=True), 0.05).kept() as watch:
    WatchedEmulator(Stuck(), watch, "emulator 3").reset(Task("t"), 0)
"""


@pytest.mark.component
def test_endless_calls_end_the_rank_with_their_names() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1 and ended.stderr == ""
    assert ended.stdout.startswith("failed: it has waited 0 s for the reset of emulator 3")
    assert ended.stdout.endswith("longer than distributed.gate_s=0.05 allows\n")
