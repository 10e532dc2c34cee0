"""An emulator without a device: as slow, and as unreliable, as its settings say, to rehearse a fleet with.

Which action is right can be seen in the observation, so an agent has something to learn.
"""

from __future__ import annotations

import math
import os
import signal
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from digirl_dist.emulator import DiscreteActions, EmulatorSpec, png
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

_ACTIONS = DiscreteActions(4)
_SUCCESS_SHARE = 0.5
_FAULTS_STREAM = 1
_MOST_DEVIATIONS = 6.0


@dataclass
class RehearsalEmulator:
    """Fulfils ``Emulator``. Times, episode lengths and observations follow from task and seed alone.

    The vector's largest element is the right action; an episode's return is the share of right actions, and it is a
    success when that is above one half. Faults are drawn anew by each process from the operating system's randomness,
    since a fault that followed from the seed would strike every retry of the ticket as well; unless
    ``faults_once_in`` is set, where they do follow from the seed and a note in that folder says that one has struck.
    ``sleep`` is how time passes, in seconds.
    """

    boot_s: float
    reset_s: float
    reset_sigma: float
    step_s: float
    step_sigma: float
    steps: float
    steps_sigma: float
    slowness: float
    hang_rate: float
    crash_rate: float
    error_rate: float
    faults_once_in: str | None
    image_size: Sequence[int]
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        self._faults = np.random.default_rng()
        self._episode = ""
        self._at = self._length = self._right = self._share = 0
        self._rng = np.random.default_rng(0)
        self.sleep(self.boot_s * self.slowness)

    def reset(self, task: Task, seed: int) -> Observation:
        source = [zlib.crc32(task.id.encode()), seed]
        self._rng = np.random.default_rng(source)
        drawn = max(1, round(self._draw(self.steps, self.steps_sigma)))
        self._length = min(drawn, longest_episode(self.steps, self.steps_sigma))
        self._at = self._share = 0
        self._episode = f"{source[0]:08x}-{seed}"
        if self.faults_once_in is not None:
            self._faults = np.random.default_rng([*source, _FAULTS_STREAM])
        self.sleep(self._draw(self.reset_s, self.reset_sigma) * self.slowness)
        return self._see(task.instruction)

    def step(self, action: Json) -> Transition:
        _ACTIONS.check(action)
        self._suffer(float(self._faults.random()))
        self.sleep(self._draw(self.step_s, self.step_sigma) * self.slowness)
        right = action == self._right
        self._share += right
        self._at += 1
        success = self._share > _SUCCESS_SHARE * self._length
        return Transition(self._see(""), right / self._length, terminated=self._at >= self._length, success=success)

    def oracle(self) -> Json:
        """Returns the right action."""
        return self._right

    def close(self) -> None:
        """There is nothing to release."""

    def _draw(self, median: float, sigma: float) -> float:
        """Log-normal."""
        return median * math.exp(sigma * self._rng.standard_normal())

    def _see(self, text: str) -> Observation:
        vector = self._rng.random(_ACTIONS.n, np.float32)
        self._right = int(np.argmax(vector))
        size = self.image_size
        return Observation(text, _noise(self._rng, size[0], size[1]) if size else None, vector)

    def _suffer(self, fate: float) -> None:
        """Hang, crash or raise if ``fate``, uniform in [0, 1), says so."""
        if fate >= self.hang_rate + self.crash_rate + self.error_rate or self._has_struck():
            return
        if fate < self.hang_rate:
            while True:
                time.sleep(3600)
        if fate < self.hang_rate + self.crash_rate:
            os.kill(os.getpid(), signal.SIGKILL)
        raise EmulatorError("an error of the rehearsal (error_rate)")

    def _has_struck(self) -> bool:
        """True if this very fault struck an earlier attempt; from now on it has."""
        folder = self.faults_once_in
        if folder is None:
            return False
        note = Path(folder).expanduser() / f"{self._episode}-{self._at}"
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


def longest_episode(steps: float, sigma: float) -> int:
    """Returns the steps of the longest episode: what one in a billion of that log-normal would exceed."""
    return max(1, round(steps * math.exp(_MOST_DEVIATIONS * sigma)))


def rehearsal_spec(image_size: Sequence[int], longest: int | None = None) -> EmulatorSpec:
    """``image_size`` is height and width, or empty. Raises SettingsError for another size."""
    if len(image_size) not in (0, 2):
        raise SettingsError(f"emulator.image_size={list(image_size)} is not [height, width]")
    size = (image_size[0], image_size[1]) if image_size else None
    return EmulatorSpec(_ACTIONS, _ACTIONS.n, size, longest=longest)


def rehearsal_tasks() -> list[Task]:
    """The one task there is."""
    return [Task("rehearsal")]


def _noise(rng: np.random.Generator, height: int, width: int) -> bytes:
    """A PNG of height x width whose bytes nothing can compress, as little as a photograph's."""
    pixels = np.frombuffer(rng.bytes(height * width * 3), np.uint8).reshape(height, width, 3)
    return png(Image.fromarray(pixels), compress_level=0)
