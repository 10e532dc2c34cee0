"""``emulator=rehearsal``: no device, but as slow and as unreliable as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from digirl_dist.capacity import Needs
from digirl_dist.emulator.plugins import Device, EmulatorPlugin
from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import expert
from digirl_dist.settings.paths import EmulatorOutput
from digirl_dist.settings.plugins import values
from digirl_dist.settings.ranges import Amount, NoOrImageSize, Pause, Share, Sigma, Steps
from digirl_dist.tasks import Task


@dataclass
class RehearsalSettings(EmulatorPlugin):
    """No device: takes as long, and fails as often, as these settings say. Times are in seconds."""

    name: str = "rehearsal"
    boot_s: Pause = expert(0.0)
    """Time to start the emulator."""
    reset_s: Pause = expert(2.0)
    """Median time of a reset; times are log-normal."""
    reset_sigma: Sigma = expert(0.4)
    """Spread of the time of a reset: the standard deviation of its logarithm (0: always the median)."""
    step_s: Pause = expert(1.0)
    """Median time of a step; times are log-normal."""
    step_sigma: Sigma = expert(0.4)
    """Spread of the time of a step: the standard deviation of its logarithm (0: always the median)."""
    steps: Steps = expert(10.0)
    """Median number of steps of an episode; numbers are log-normal."""
    steps_sigma: Sigma = expert(0.3)
    """Spread of the number of steps: the standard deviation of its logarithm (0: always the median)."""
    slowness: Amount = expert(1.0)
    """Multiplies all times. For one slow machine: ``worker_ips: [{host: …, emulator: {slowness: 4}}]``."""
    hang_rate: Share = expert(0.0)
    """Probability that a step never answers."""
    crash_rate: Share = expert(0.0)
    """Probability that a step ends the emulator's process."""
    error_rate: Share = expert(0.0)
    """Probability that a step raises an error."""
    faults_once_in: EmulatorOutput | None = expert(None)
    """A folder on the worker. With it, faults follow from task and seed, and each strikes once; remove the folder to
    repeat a rehearsal. Without it, faults are random."""
    image_size: NoOrImageSize = expert([])
    """Height and width of a screenshot of noise; empty: no screenshot."""

    def build(self) -> Device:
        from digirl_dist.emulator.rehearsal import RehearsalEmulator, longest_episode, rehearsal_spec

        if self.hang_rate + self.crash_rate + self.error_rate > 1:
            raise SettingsError("emulator: hang_rate, crash_rate and error_rate must together be at most 1")
        factory = partial(RehearsalEmulator, **values(self))
        spec = rehearsal_spec(self.image_size, longest_episode(self.steps, self.steps_sigma))
        return Device(factory, spec, needs=Needs(60, 0.05))

    def default_tasks(self, split: str) -> Sequence[Task]:
        from digirl_dist.emulator.rehearsal import rehearsal_tasks

        return rehearsal_tasks()
