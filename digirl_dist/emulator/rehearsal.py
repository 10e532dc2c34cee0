"""An emulator without a device: as slow, and as unreliable, as its settings say, to rehearse a fleet with.

Which action is right can be seen in the observation, so an agent has something to learn.
"""

from __future__ import annotations

import io
import math
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.emulator.plugins.rehearsal import RehearsalSettings
from digirl_dist.errors import ActionError, EmulatorError, SettingsError
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

_ACTIONS = 4
_SUCCESS_SHARE = 0.5
_FAULTS_STREAM = 1


class RehearsalEmulator:
    """Fulfils ``Emulator``. Times, episode lengths and observations follow from task and seed alone.

    The vector's largest element is the right action; an episode's return is the share of right actions, and it is a
    success when that is above one half. Faults are drawn anew by each process from the operating system's randomness,
    since a fault that followed from the seed would strike every retry of the ticket as well; unless
    ``faults_once_in`` is set, where they do follow from the seed and a note in that folder says that one has struck.
    ``sleep`` is how time passes, in seconds.
    """

    def __init__(self, settings: RehearsalSettings, sleep: Callable[[float], object] = time.sleep) -> None:
        self._settings = settings
        self._sleep = sleep
        self._faults = np.random.default_rng()
        self._episode = ""
        self._at = self._length = self._right = self._share = 0
        self._rng = np.random.default_rng(0)
        self._sleep(settings.boot_s * settings.slowness)

    def reset(self, task: Task, seed: int) -> Observation:
        settings, source = self._settings, [zlib.crc32(task.id.encode()), seed]
        self._rng = np.random.default_rng(source)
        self._length = max(1, round(self._draw(settings.steps, settings.steps_sigma)))
        self._at = self._share = 0
        self._episode = f"{source[0]:08x}-{seed}"
        if settings.faults_once_in is not None:
            self._faults = np.random.default_rng([*source, _FAULTS_STREAM])
        self._sleep(self._draw(settings.reset_s, settings.reset_sigma) * settings.slowness)
        return self._see(task.instruction)

    def step(self, action: Json) -> Transition:
        if type(action) is not int or not 0 <= action < _ACTIONS:
            raise ActionError(f"{action!r} is not an action: expected an int in [0, {_ACTIONS})")
        self._suffer(float(self._faults.random()))
        settings = self._settings
        self._sleep(self._draw(settings.step_s, settings.step_sigma) * settings.slowness)
        right = action == self._right
        self._share += right
        self._at += 1
        success = self._share > _SUCCESS_SHARE * self._length
        seen = self._see("")
        return Transition(seen, right / self._length, terminated=self._at >= self._length, success=success)

    def close(self) -> None:
        """There is nothing to release."""

    def _draw(self, median: float, sigma: float) -> float:
        """Log-normal."""
        return median * math.exp(sigma * self._rng.standard_normal())

    def _see(self, text: str) -> Observation:
        vector = self._rng.random(_ACTIONS, np.float32)
        self._right = int(np.argmax(vector))
        size = self._settings.image_size
        return Observation(text, _noise(self._rng, size[0], size[1]) if size else None, vector)

    def _suffer(self, fate: float) -> None:
        """Hang, crash or raise if ``fate``, uniform in [0, 1), says so."""
        settings = self._settings
        if fate >= settings.hang_rate + settings.crash_rate + settings.error_rate or self._has_struck():
            return
        if fate < settings.hang_rate:
            while True:
                time.sleep(3600)
        if fate < settings.hang_rate + settings.crash_rate:
            os.kill(os.getpid(), signal.SIGKILL)
        raise EmulatorError("an error of the rehearsal (error_rate)")

    def _has_struck(self) -> bool:
        """True if this very fault struck an earlier attempt; from now on it has."""
        folder = self._settings.faults_once_in
        if folder is None:
            return False
        note = Path(folder).expanduser() / f"{self._episode}-{self._at}"
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


def rehearsal_spec(settings: RehearsalSettings) -> EmulatorSpec:
    """Raises SettingsError for values that cannot be rehearsed."""
    size = settings.image_size
    if len(size) not in (0, 2):
        raise SettingsError(f"emulator.image_size={list(size)} is not [height, width]")
    if settings.hang_rate + settings.crash_rate + settings.error_rate > 1:
        raise SettingsError("emulator: hang_rate, crash_rate and error_rate must together be at most 1")
    return EmulatorSpec(DiscreteActions(_ACTIONS), _ACTIONS, (size[0], size[1]) if size else None)


def rehearsal_tasks() -> list[Task]:
    """The one task there is."""
    return [Task("rehearsal")]


def _noise(rng: np.random.Generator, height: int, width: int) -> bytes:
    """A PNG of height x width whose bytes nothing can compress, as little as a photograph's."""
    pixels = np.frombuffer(rng.bytes(height * width * 3), np.uint8).reshape(height, width, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=0)
    return buffer.getvalue()
